"""The bound as a function of the hyper-parameters: profiled over q(g_u), or in the paper's parameters Lambda."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.approximations import Approximation
from sparsegp.data import Rows
from sparsegp.heteroscedastic.adjoint import ThroughLambda, push_noise_gradient
from sparsegp.heteroscedastic.bound import Ascent, BoundState, natural_ascent
from sparsegp.heteroscedastic.coupling import row_weights
from sparsegp.heteroscedastic.hyperparameters import JointHyperparameters
from sparsegp.heteroscedastic.noise_process import NoiseProcess, NoiseSlopes
from sparsegp.learning.deadline import Deadline
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.objective import CollapsedObjective
from sparsegp.posterior import InducingPosterior
from sparsegp.prior import SparsePrior


@dataclass
class _Jitters:
    """The largest relative jitter met so far for f and for g: the objective must not jump between evaluations."""

    f: float = 0.0
    g: float = 0.0


def _priors(
    hyper: JointHyperparameters, row: Approximation, limits: tuple[float, float], jitters: _Jitters
) -> tuple[SparsePrior, NoiseProcess]:
    f_prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, row, jitters.f)
    process = NoiseProcess.at_prior(hyper.noise_kernel, hyper.noise_inducing, hyper.noise_mean, limits, jitters.g)
    jitters.f, jitters.g = f_prior.Luu.jitter, process.prior.Luu.jitter
    return f_prior, process


def _joint(hyper: Hyperparameters) -> JointHyperparameters:
    assert isinstance(hyper, JointHyperparameters)
    return hyper


@dataclass
class ProfiledBound:
    """max over q(g_u) of F, for any row of the table; `limits` are the least and the largest noise variance.

    q of the best evaluation so far is where the next ascent starts. Bounds of experts on disjoint rows add, and so do
    their gradients where hyper-parameters are shared (`JointHyperparameters.shared_mask`).
    """

    rows: Rows
    row: Approximation
    limits: tuple[float, float]
    tolerance: float = 1e-5
    max_steps: int = 10
    q: InducingPosterior | None = None
    deadline: Deadline | None = None
    best: float = -torch.inf
    jitters: _Jitters = field(default_factory=_Jitters)

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    def ascend(self, hyper: JointHyperparameters) -> Ascent:
        """The natural ascent of q(g_u) at these hyper-parameters, from the best q so far."""
        self.jitters = replace(self.jitters)  # a copy of this objective keeps its own
        with torch.no_grad():
            f_prior, process = _priors(hyper, self.row, self.limits, self.jitters)
            start = process if self.q is None else process.with_q(self.q)
            ascent = natural_ascent(
                f_prior,
                start,
                self.rows,
                tolerance=self.tolerance,
                max_steps=self.max_steps,
                deadline=self.deadline,
            )
        if ascent.state.value > self.best:
            self.best, self.q = ascent.state.value, ascent.state.process.q
        return ascent

    def value(self, hyper: JointHyperparameters) -> float:
        return self.ascend(hyper).state.value

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        hyper = _joint(hyper)
        ascent = self.ascend(hyper)
        # At fixed R the gradient for f is that of the row's own objective.
        CollapsedObjective(ascent.state.rows, self.row, self.jitters.f).value_and_gradient(hyper)
        with torch.no_grad():
            push_noise_gradient(hyper, ascent.state.process, self.rows.all.X, ascent.slopes)
        return ascent.state.value


@dataclass
class LambdaBound:
    """F as a function of the hyper-parameters and of one log Lambda a row (001 eq. 11): the paper's own objective."""

    rows: Rows
    row: Approximation
    limits: tuple[float, float]
    jitters: _Jitters = field(default_factory=_Jitters)

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    def state(self, hyper: JointHyperparameters) -> BoundState:
        assert hyper.log_lambda is not None
        with torch.no_grad():
            f_prior, process = _priors(hyper, self.row, self.limits, self.jitters)
            process = process.from_lambda(self.rows.all.X, hyper.log_lambda.exp(), row_weights(self.rows.all))
            return BoundState.evaluate(f_prior, process, self.rows)

    def value(self, hyper: JointHyperparameters) -> float:
        return self.state(hyper).value

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        hyper = _joint(hyper)
        assert hyper.log_lambda is not None
        state = self.state(hyper)
        CollapsedObjective(state.rows, self.row, self.jitters.f).value_and_gradient(hyper)
        with torch.no_grad():
            slopes, lam = state.slopes(), hyper.log_lambda.exp()
            through = self._through_lambda(state.process, slopes, lam)
            push_noise_gradient(hyper, state.process, self.rows.all.X, slopes, through)
            if hyper.log_lambda.requires_grad:
                hyper.log_lambda.grad = lam * self._lambda_adjoint(state.process, through)
        return state.value

    def _through_lambda(self, process: NoiseProcess, slopes: NoiseSlopes, lam: Tensor) -> ThroughLambda:
        """r = W^T slope - m;  bar P = -P^-1 ( (P - I) - W^T lam(f) W ) P^-1 / 2, where lam(f) is what f asks for."""
        at_zero = process.with_q(InducingPosterior(torch.zeros_like(process.q.mean), process.q.LB))
        wanted, pull = at_zero.natural_target(self.rows.all.X, slopes.slope, slopes.lam)
        L, S = process.q.LB.factor, process.q.covariance
        P_bar = -0.5 * linalg.symmetric(S @ (L @ L.mT - wanted) @ S)
        return ThroughLambda(lam - 0.5 * row_weights(self.rows.all), lam, pull - process.q.mean, P_bar)

    def _lambda_adjoint(self, process: NoiseProcess, through: ThroughLambda) -> Tensor:
        """dF/dlambda_i = w_i^T bar P w_i + w_i^T r."""
        adjoint = torch.empty(len(self.rows), dtype=torch.float64)
        for part, W in process.features(self.rows.all.X):
            adjoint[part] = linalg.row_dots(W, W @ through.P_bar) + W @ through.r
        return adjoint
