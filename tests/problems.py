"""Small random regression problems, solved by the package and by the dense oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegp import kernels
from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.dense import ExactPosterior, NystromPosterior
from sparsegp.core.local import LocalPosterior
from sparsegp.core.partition import block_slices
from sparsegp.core.posterior import InducingPosterior, LatentPosterior, SparsePosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.trend import Trend
from sparsegp.infer import batch
from sparsegp.kernels import Kernel
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.neighbourhoods import Rounds
from sparsegp.testing import oracle

POWER = 0.4
INDUCING_ROWS = ("sor", "dtc", "vfe", "fitc", "fic", "pitc", "pic", "pep", "block-pep")
ALL_ROWS = ("exact", *INDUCING_ROWS, "nystrom")
COMBINATIONS: Mapping[str, Mapping[str, float]] = {
    "points": {"dtc": 0.3, "fitc": 0.7},
    "with blocks": {"dtc": 0.35, "pitc": 0.65},
    "all shapes": {"dtc": 0.2, "fitc": 0.3, "pitc": 0.5},
}
BLOCK_SIZES = (9, 1, 6, 4)
# A start from few and small neighbourhoods, with all the parts that it has for users.
FEW_ROUNDS = Rounds(
    counts=(3, 3),
    n_rows=100,
    iterations=20,
    n_judged=60,
    n_neighbours=40,
    opening_count=3,
    opening_rows=60,
    opening_iterations=10,
)

Results = tuple[Any, ...]


def get_row(name: str) -> Approximation:
    """An approximation, or one of COMBINATIONS."""
    return approximations.get(COMBINATIONS.get(name, name), POWER)


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True)
class Problem:
    """Training rows with block labels (any order), test rows with theirs, and hyper-parameters."""

    kernel: Kernel
    X: Tensor
    y: Tensor
    inducing: Tensor
    noise_var: float
    X_test: Tensor
    labels: Tensor
    test_labels: Tensor
    row_noise: Tensor | None = None
    weight: Tensor | None = None
    trend: Trend | None = None

    @property
    def n_blocks(self) -> int:
        return int(self.labels.max()) + 1

    @property
    def block(self) -> Block:
        return Block(self.X, self.y, self.row_noise, self.weight)

    @property
    def rows(self) -> MemoryRows:
        order, offsets = block_slices(self.labels, self.n_blocks)
        return MemoryRows(self.block.take(order), offsets)

    def prior(self, row: Approximation) -> SparsePrior:
        return SparsePrior.build(self.kernel, self.inducing, self.noise_var, row, trend=self.trend)

    def infer(self, row: Approximation) -> tuple[SparsePosterior | LocalPosterior, float]:
        """Posterior and log evidence of a row that works through inducing values."""
        _, posterior, info = batch.infer(self.prior(row), self.rows)
        return posterior, info.log_evidence

    def posterior(self, name: str) -> tuple[LatentPosterior, float]:
        """Posterior and log evidence of any row."""
        if name == "exact":
            noise_var = torch.tensor(self.noise_var, dtype=torch.float64)
            exact = ExactPosterior.build(self.kernel, self.block, noise_var, self.trend)
            return exact, exact.log_evidence
        posterior, evidence = self.infer(get_row(name))
        if name == "nystrom":
            prior = self.prior(get_row(name))
            return NystromPosterior.build(prior, self.rows.all, posterior.q), evidence
        return posterior, evidence

    def predict(self, posterior: LatentPosterior) -> Results:
        """Joint mean, joint covariance, marginal mean, marginal variance at the test rows."""
        at = self.X_test, self.test_labels
        return *posterior.joint(*at), *posterior.marginals(*at)

    def results(self, name: str) -> Results:
        """Evidence, then as `predict`, by the package."""
        posterior, evidence = self.posterior(name)
        return evidence, *self.predict(posterior)

    def hyperparameters(self) -> Hyperparameters:
        return Hyperparameters(self.kernel, self.noise_var, self.inducing, trend=self.trend)


@dataclass(frozen=True)
class DenseProblem:
    """The same problem as numpy arrays; a row with a weight stands there as often as the weight says."""

    k: oracle.Covariance
    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray
    noise_var: Any
    Xs: np.ndarray
    blocks: np.ndarray
    test_blocks: np.ndarray
    trend: oracle.Features | None = None

    @classmethod
    def of(cls, problem: Problem) -> DenseProblem:
        X, y, blocks = (tensor.numpy() for tensor in (problem.X, problem.y, problem.labels))
        noise = problem.noise_var if problem.row_noise is None else problem.row_noise.numpy()
        if problem.weight is not None:
            counts = problem.weight.numpy().astype(int)
            X, y, blocks = oracle.repeat_rows(X, y, counts, blocks)
            noise = noise if problem.row_noise is None else np.repeat(noise, counts)
        tests = problem.X_test.numpy(), blocks, problem.test_labels.numpy()
        trend = None if problem.trend is None else features(problem.trend)
        return cls(covariance(problem.kernel), X, y, problem.inducing.numpy(), noise, *tests, trend)

    @property
    def data(self) -> tuple[Any, ...]:
        return self.k, self.X, self.y, self.Z, self.noise_var

    def results(self, name: str, power: float = POWER) -> Results:
        """What `Problem.results` gives, by the oracle."""
        evidence = oracle.log_evidence(name, *self.data, self.blocks, power, trend=self.trend)
        mean, cov = oracle.predict(name, *self.data, self.Xs, self.blocks, self.test_blocks, power, trend=self.trend)
        return evidence, mean, cov, mean, np.diag(cov)


def covariance(kernel: Kernel) -> oracle.Covariance:
    """A torch kernel as the oracle's k(A, B) of numpy arrays."""

    def k(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            values: np.ndarray = kernel(torch.from_numpy(A), torch.from_numpy(B)).numpy()
        return values

    return k


def features(trend: Trend) -> oracle.Features:
    """A trend as the oracle's h(A), written out: b (1, x_j, ...)."""

    def h(A: np.ndarray) -> np.ndarray:
        return trend.width * np.column_stack([np.ones(len(A)), *(A[:, j] for j in trend.columns)])

    return h


def _sum_kernel(rng: np.random.Generator, n_dims: int) -> Kernel:
    smooth = kernels.SquaredExponential(rng.uniform(0.5, 2.5), rng.uniform(0.5, 1.2))
    return smooth + kernels.Linear(rng.uniform(0.1, 0.5), rng.normal(size=n_dims))


def _product_kernel(rng: np.random.Generator, n_dims: int) -> Kernel:
    shape = {"variance": rng.uniform(0.6, 1.5), "lengthscales": rng.uniform(1.0, 2.0)}
    periodic = kernels.Periodic(**shape, period=rng.uniform(2.0, 4.0), active_dims=[0])
    return kernels.Matern52(rng.uniform(0.5, 2.5), rng.uniform(0.5, 1.4, n_dims)) * periodic


KERNELS: Mapping[str, Callable[[np.random.Generator, int], Kernel]] = {
    "se-ard": lambda rng, d: kernels.SquaredExponential(rng.uniform(0.5, 2.5), rng.uniform(0.5, 1.4, d)),
    "matern32": lambda rng, d: kernels.Matern32(rng.uniform(0.5, 2.5), rng.uniform(0.6, 1.5)),
    "rq": lambda rng, d: kernels.RationalQuadratic(1.8, rng.uniform(0.5, 1.4, d), rng.uniform(0.5, 3.0)),
    "se+linear": _sum_kernel,
    "product": _product_kernel,
}


def random_problem(seed: int = 0, kernel: str = "se-ard", n_dims: int = 2, n_inducing: int = 6) -> Problem:
    """20 rows in uneven shuffled blocks (one of a single row), 6 inducing inputs, 5 test rows.

    Two test rows share a block, one is in the block of a single row, the last in a block without rows.
    """
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(BLOCK_SIZES)), BLOCK_SIZES))
    n = len(labels)
    X, X_test = rng.uniform(-2.0, 2.0, (n, n_dims)), rng.uniform(-2.0, 2.0, (5, n_dims))
    y = np.sin(2.0 * X[:, 0]) + 0.4 * X.sum(1) + 0.2 * rng.normal(size=n)
    # One inducing input in each slice of the first column: Kuu stays well conditioned, no jitter.
    inducing = rng.uniform(-2.0, 2.0, (n_inducing, n_dims))
    inducing[:, 0] = -2.0 + 4.0 * (np.arange(n_inducing) + rng.uniform(0.3, 0.7, n_inducing)) / n_inducing
    test_labels = np.array([0, 2, 1, 2, len(BLOCK_SIZES)])
    arrays = (X, y, inducing, X_test, labels, test_labels)
    X_, y_, inducing_, X_test_, labels_, test_labels_ = (torch.from_numpy(array) for array in arrays)
    chosen, noise_var = KERNELS[kernel](rng, n_dims), float(rng.uniform(0.05, 0.3))
    return Problem(chosen, X_, y_, inducing_, noise_var, X_test_, labels_, test_labels_)


def with_row_noise(problem: Problem, seed: int = 1) -> Problem:
    noise = np.random.default_rng(seed).uniform(0.03, 0.5, len(problem.y))
    return replace(problem, row_noise=torch.from_numpy(noise))


def with_weights(problem: Problem, seed: int = 2) -> Problem:
    weight = np.random.default_rng(seed).integers(1, 5, len(problem.y)).astype(np.float64)
    return replace(problem, weight=torch.from_numpy(weight))


CHANGES: Mapping[str, Callable[[Problem], Problem]] = {
    "row noise": with_row_noise,
    "weights": with_weights,
    "weights and row noise": lambda problem: with_weights(with_row_noise(problem)),
}


def agree(got: Results, expected: Results, rtol: float = 1e-8) -> None:
    """Each entry within rtol of its reference, or of the largest entry of the reference."""
    for value, reference in zip(got, expected, strict=True):
        scale = np.abs(np.asarray(reference)).max()
        np.testing.assert_allclose(np.asarray(value), np.asarray(reference), rtol=rtol, atol=rtol * scale)


def unwhitened(q: InducingPosterior, prior: SparsePrior) -> tuple[Tensor, Tensor]:
    """Mean and covariance of u = L v."""
    L = prior.Luu.factor
    return L @ q.mean, L @ q.covariance @ L.mT
