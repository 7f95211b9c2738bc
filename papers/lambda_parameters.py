"""VSHGP in the parameters of the paper, one Lambda a row (001 eq. 11), learned in its two stages (001 sec. V).

q(g_u) has m = W^T (Lambda - weight/2) and P = I + W^T diag(Lambda) W. The library climbs q(g_u) itself by natural
gradients: the same optimum, faster. Derivation: docs/derivations/heteroscedastic.md.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsegp import linalg
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import MemoryRows
from sparsegp.core.posterior import InducingPosterior
from sparsegp.kernels import Kernel
from sparsegp.learn import lbfgs
from sparsegp.learn.adjoint import push_back
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.trace import Deadline, LearningResult, StepCallback, Terms
from sparsegp.noise import noise_learning
from sparsegp.noise.bound import BoundState, Jitters, priors
from sparsegp.noise.joint_hyperparameters import JointHyperparameters
from sparsegp.noise.noise_gradient import push_inducing
from sparsegp.noise.noise_learning import Inferred
from sparsegp.noise.process import NoiseProcess, NoiseSlopes

LAMBDA_ITERATIONS, ALL_ITERATIONS = 30, 70


class LambdaHyperparameters(JointHyperparameters):
    """What a heteroscedastic model learns, and one log Lambda a row."""

    def __init__(
        self,
        kernel: Kernel,
        inducing: Tensor,
        noise_kernel: Kernel,
        noise_inducing: Tensor,
        noise_mean: float,
        log_lambda: Tensor,
        *,
        learn_inducing: bool = True,
    ) -> None:
        super().__init__(kernel, inducing, noise_kernel, noise_inducing, noise_mean, learn_inducing=learn_inducing)
        self.log_lambda = nn.Parameter(log_lambda.detach().clone())

    @contextmanager
    def only_lambda(self) -> Iterator[None]:
        """Within, everything but `log_lambda` is fixed: the first stage of the paper."""
        others = [p for name, p in self.named_parameters() if p.requires_grad and name != "log_lambda"]
        for parameter in others:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in others:
                parameter.requires_grad_(True)


def starting_lambda(rows: MemoryRows) -> Tensor:
    """log Lambda = log weight/2: q(g_u) starts with the mean of the prior."""
    return (0.5 * rows.all.weights).log()


def from_lambda(process: NoiseProcess, X: Tensor, lam: Tensor, weight: Tensor) -> NoiseProcess:
    """The noise process with the q of these parameters."""
    precision, mean = _without_mean(process).natural_target(X, lam - 0.5 * weight, lam)
    LB = linalg.cholesky(precision, name="precision of the noise process", smallest_pivot=0.0)
    return process.with_q(InducingPosterior(mean, LB))


def _without_mean(process: NoiseProcess) -> NoiseProcess:
    return process.with_q(InducingPosterior(torch.zeros_like(process.q.mean), process.q.LB))


@dataclass(frozen=True)
class ThroughLambda:
    """What reaches W through q(g_u): bar W = c r^T + 2 lam W bar P.

    c = lambda - weight/2, r = W^T slope - m, and bar P = -P^-1 ((P - I) - W^T lam(f) W) P^-1 / 2, where lam(f) is what
    f asks for. At the optimum of q it vanishes.
    """

    centred: Tensor
    lam: Tensor
    r: Tensor
    P_bar: Tensor

    @classmethod
    def build(cls, process: NoiseProcess, rows: MemoryRows, slopes: NoiseSlopes, lam: Tensor) -> "ThroughLambda":
        wanted, pull = _without_mean(process).natural_target(rows.all.X, slopes.slope, slopes.lam)
        L, S = process.q.LB.factor, process.q.covariance
        P_bar = -0.5 * linalg.symmetric(S @ (L @ L.mT - wanted) @ S)
        return cls(lam - 0.5 * rows.all.weights, lam, pull - process.q.mean, P_bar)

    def push(self, hyper: LambdaHyperparameters, process: NoiseProcess, X: Tensor) -> None:
        """Add its part of the gradient for the kernel and the inducing inputs of g, and for Lambda."""
        inverse_L = linalg.inverse_lower(process.prior.Luu.factor)
        gram, by_lambda = torch.zeros_like(inverse_L), torch.empty_like(self.lam)
        for part, W in process.features(X):
            with torch.enable_grad():
                K = hyper.noise_kernel(X[part], hyper.noise_inducing)
            W_bar = torch.outer(self.centred[part], self.r) + 2.0 * self.lam[part][:, None] * (W @ self.P_bar)
            push_back(K, W_bar @ inverse_L)
            gram += W.mT @ W_bar
            # dF/dlambda_i = w_i^T bar P w_i + w_i^T r
            by_lambda[part] = linalg.row_dots(W, W @ self.P_bar) + W @ self.r
        push_inducing(hyper, process, inverse_L, gram)
        if hyper.log_lambda.requires_grad:
            hyper.log_lambda.grad = self.lam * by_lambda


@dataclass
class LambdaBound:
    """F as a function of the hyper-parameters and of one log Lambda a row: the paper's own objective."""

    rows: MemoryRows
    approx: Approximation
    limits: tuple[float, float]
    jitters: Jitters = field(default_factory=Jitters)

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    def state(self, hyper: LambdaHyperparameters) -> BoundState:
        with torch.no_grad():
            f_prior, process = priors(hyper, self.approx, self.limits, self.jitters)
            process = from_lambda(process, self.rows.all.X, hyper.log_lambda.exp(), self.rows.all.weights)
            return BoundState.evaluate(f_prior, process, self.rows)

    def value(self, hyper: LambdaHyperparameters) -> float:
        return self.state(hyper).value

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        assert isinstance(hyper, LambdaHyperparameters)
        state = self.state(hyper)
        with torch.no_grad():
            state.push_gradient(hyper)
            through = ThroughLambda.build(state.process, self.rows, state.row_noise.slopes, hyper.log_lambda.exp())
            through.push(hyper, state.process, self.rows.all.X)
        return state.value


def learn_lambda(
    rows: MemoryRows,
    approx: Approximation,
    hyper: LambdaHyperparameters,
    limits: Limits,
    *,
    on_step: StepCallback | None = None,
    deadline: Deadline | None = None,
    iterations: tuple[int, int] = (LAMBDA_ITERATIONS, ALL_ITERATIONS),
) -> list[LearningResult]:
    """The two stages of the paper: Lambda alone, then Lambda and all hyper-parameters together."""
    objective = LambdaBound(rows, approx, limits.noise_var)
    watched: dict[str, Any] = {"on_step": on_step, "deadline": deadline}
    with hyper.only_lambda():
        first = lbfgs.maximize(objective, hyper, limits, max_iterations=iterations[0], **watched)
    if first.stopped:
        return [first]
    return [first, lbfgs.maximize(objective, hyper, limits, max_iterations=iterations[1], **watched)]


def infer_lambda(
    rows: MemoryRows,
    approx: Approximation,
    hyper: LambdaHyperparameters,
    limits: Limits,
    *,
    rng: np.random.Generator,
    deadline: Deadline | None = None,
) -> Inferred:
    """The model, from the q(g_u) of the learned Lambda."""
    start = LambdaBound(rows, approx, limits.noise_var).state(hyper)
    return noise_learning.infer(rows, approx, hyper, Terms(limits, rng, deadline=deadline), start.process.q)
