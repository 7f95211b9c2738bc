"""Does the package compute what an approximation says? A conformance suite for rows of your own."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sparsegp import kernels
from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation, Family, Residual
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.dense import ExactPosterior, NystromPosterior
from sparsegp.core.partition import block_slices
from sparsegp.core.posterior import LatentPosterior
from sparsegp.core.trend import Trend
from sparsegp.infer import batch
from sparsegp.kernels import Kernel
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective, ExactObjective, Objective
from sparsegp.testing import oracle
from sparsegp.testing.effective_prior import effective_prior

Array = NDArray[np.float64]

N_ROWS, N_INDUCING, N_TEST, N_BLOCKS = 14, 5, 4, 3
GRADIENT_RTOL = 1e-5


@dataclass(frozen=True)
class _Problem:
    """A small regression problem; the last test input lies in a block without training rows."""

    X: Tensor
    y: Tensor
    X_test: Tensor
    labels: Tensor
    test_labels: Tensor

    @classmethod
    def random(cls, n_dims: int, rng: np.random.Generator) -> "_Problem":
        X, X_test = rng.uniform(-2.0, 2.0, (N_ROWS, n_dims)), rng.uniform(-2.0, 2.0, (N_TEST, n_dims))
        y = np.sin(2.0 * X[:, 0]) + 0.3 * rng.normal(size=N_ROWS)
        labels = np.concatenate([np.arange(N_BLOCKS), rng.integers(0, N_BLOCKS - 1, N_ROWS - N_BLOCKS)])
        return cls(*(torch.from_numpy(a) for a in (X, y, X_test, labels, np.arange(N_TEST))))

    @property
    def rows(self) -> MemoryRows:
        order, offsets = block_slices(self.labels, N_BLOCKS)
        return MemoryRows(Block(self.X, self.y).take(order), offsets)


def check_approximation(
    approx: str | Mapping[str, float] | Approximation,
    *,
    kernel: Kernel | None = None,
    n_dims: int = 2,
    power: float = 0.5,
    seed: int = 0,
    rtol: float = 1e-7,
    trend: Trend | None = None,
) -> None:
    """Check an approximation of your own against dense inference with its effective prior.

    Checked are that the fields make sense, that the effective prior is positive semi-definite (not for Nystrom), and
    that log evidence, mean, variances, joint covariance and the gradient of the objective are those of dense
    inference.

    Parameters
    ----------
    approx : str, mapping of str to float, or Approximation
        The approximation.
    kernel : Kernel, default=None
        A kernel of `n_dims` columns. None takes one with uneven lengthscales.
    n_dims : int, default=2
        Number of columns.
    power : float, default=0.5
        The alpha of "pep" and "block-pep".
    seed : int, default=0
        Seed of the problem.
    rtol : float, default=1e-07
        Relative tolerance.
    trend : Trend, default=None
        A trend besides the kernel.

    Raises
    ------
    AssertionError
        If a property fails. The message names it.
    """
    approx = approximations.get(approx, power)
    _check_fields(approx)
    rng = np.random.default_rng(seed)
    problem = _Problem.random(n_dims, rng)
    inducing = torch.from_numpy(rng.uniform(-2.0, 2.0, (N_INDUCING, n_dims)))
    hyper = Hyperparameters(kernels.Matern32(1.4, 1.1) if kernel is None else kernel, 0.15, inducing, trend=trend)
    _check_prior(approx, problem, hyper)
    _check_predictions(approx, problem, hyper, rtol)
    _check_gradient(approx, problem, hyper)


def _check_fields(approx: Approximation) -> None:
    parts = approx.components
    _require(approx, "fields", abs(sum(c.weight for c in parts) - 1.0) < 1e-12, "the weights must add up to 1")
    _require(approx, "fields", all(c.weight >= 0.0 for c in parts), "the weights must not be negative")
    _require(approx, "fields", all(0.0 <= c.alpha <= 1.0 for c in parts), "alpha must lie in [0, 1]")
    without = [c.alpha for c in parts if c.residual is Residual.NONE]
    _require(approx, "fields", not any(without), "a component without residual must have alpha = 0")
    _require(approx, "fields", len(parts) == 1 or not approx.penalty, "a combination of rows cannot have a penalty")


def _check_prior(approx: Approximation, problem: _Problem, hyper: Hyperparameters) -> None:
    if approx.family is not Family.NYSTROM:
        smallest = float(np.linalg.eigvalsh(_joint_prior(approx, problem, hyper)).min())
        message = f"its smallest eigenvalue is {smallest:g}"
        _require(approx, "positive semi-definite effective prior", smallest > -1e-9, message)


def _check_predictions(approx: Approximation, problem: _Problem, hyper: Hyperparameters, rtol: float) -> None:
    posterior, evidence = _infer(approx, problem, hyper)
    joint_mean, cov = posterior.joint(problem.X_test, problem.test_labels)
    mean, var = posterior.marginals(problem.X_test, problem.test_labels)
    expected_mean, expected_cov = _dense_predictions(approx, problem, hyper)
    _require_close(approx, "log evidence", evidence, _dense_evidence(approx, problem, hyper), rtol)
    _require_close(approx, "mean", mean, expected_mean, rtol)
    _require_close(approx, "variances", var, np.diag(expected_cov), rtol)
    _require_close(approx, "mean of the joint prediction", joint_mean, expected_mean, rtol)
    _require_close(approx, "joint covariance", cov, expected_cov, rtol)


def _check_gradient(approx: Approximation, problem: _Problem, hyper: Hyperparameters) -> None:
    objective: Objective = CollapsedObjective(problem.rows, approx)
    if approx.family in (Family.EXACT, Family.SUBSET):
        objective = ExactObjective(problem.rows.all)
    objective.value_and_gradient(hyper)
    gradient, start = hyper.gradient(), hyper.vector()

    def dense(vector: Array) -> float:
        hyper.load_vector(vector)
        return _dense_evidence(approx, problem, hyper)

    expected = oracle.gradient(dense, start)
    _require_close(approx, "gradient of the objective", gradient, expected, GRADIENT_RTOL)


def _infer(approx: Approximation, problem: _Problem, hyper: Hyperparameters) -> tuple[LatentPosterior, float]:
    """What the package says: posterior and log evidence."""
    if approx.family in (Family.EXACT, Family.SUBSET):
        exact = ExactPosterior.build(hyper.kernel, problem.rows.all, hyper.noise_var, hyper.trend)
        return exact, exact.log_evidence
    prior = hyper.prior(approx)
    _, posterior, info = batch.infer(prior, problem.rows)
    if approx.family is Family.NYSTROM:
        return NystromPosterior.build(prior, problem.rows.all, posterior.q), info.log_evidence
    return posterior, info.log_evidence


def _joint_prior(approx: Approximation, problem: _Problem, hyper: Hyperparameters) -> Array:
    inputs = hyper.inducing.detach(), problem.X, problem.X_test, problem.labels, problem.test_labels
    prior = effective_prior(approx, hyper.kernel, *inputs, noise_var=hyper.noise_var, trend=hyper.trend)
    dense: Array = prior.numpy()
    return dense


def _dense_predictions(approx: Approximation, problem: _Problem, hyper: Hyperparameters) -> tuple[Array, Array]:
    """The effective prior conditioned on y."""
    C = _joint_prior(approx, problem, hyper)
    noise = float(hyper.noise_var) * np.eye(N_ROWS)
    weights = C[N_ROWS:, :N_ROWS] @ np.linalg.inv(C[:N_ROWS, :N_ROWS] + noise)
    return weights @ problem.y.numpy(), C[N_ROWS:, N_ROWS:] - weights @ C[:N_ROWS, N_ROWS:]


def _dense_evidence(approx: Approximation, problem: _Problem, hyper: Hyperparameters) -> float:
    """log N(y; 0, C_ff + noise) - rho/(2 alpha) log det(I + (C_ff - Q)/noise), or rho tr(K - Q)/(2 noise)."""
    C, noise = _joint_prior(approx, problem, hyper)[:N_ROWS, :N_ROWS], float(hyper.noise_var)
    evidence = oracle.log_gaussian(problem.y.numpy(), C + noise * np.eye(N_ROWS))
    if not approx.penalty:
        return evidence
    K, Q = _covariance_and_nystrom_part(problem, hyper)
    alpha = approx.components[0].alpha
    if alpha == 0.0:
        return evidence - approx.penalty * float(np.trace(K - Q)) / (2.0 * noise)
    logdet = float(np.linalg.slogdet(np.eye(N_ROWS) + (C - Q) / noise)[1])
    return evidence - approx.penalty / (2.0 * alpha) * logdet


def _covariance_and_nystrom_part(problem: _Problem, hyper: Hyperparameters) -> tuple[Array, Array]:
    with torch.no_grad():
        K, Kuu = hyper.kernel(problem.X).numpy(), hyper.kernel(hyper.inducing).numpy()
        Kfu = hyper.kernel(problem.X, hyper.inducing).numpy()
    H = np.zeros((N_ROWS, 0)) if hyper.trend is None else hyper.trend.features(problem.X).numpy()
    return K + H @ H.T, Kfu @ np.linalg.inv(Kuu) @ Kfu.T + H @ H.T


def _require_close(approx: Approximation, what: str, got: ArrayLike | Tensor, expected: ArrayLike, rtol: float) -> None:
    """Within rtol of the largest entry."""
    error = float(np.abs(np.asarray(got) - np.asarray(expected)).max())
    scale = float(np.abs(np.asarray(expected)).max())
    message = f"differs by {error:g} (entries up to {scale:g}) from dense inference with the effective prior"
    _require(approx, what, error <= rtol * scale, message)


def _require(approx: Approximation, what: str, holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(f"{approx.name}: {what}: {message}.")
