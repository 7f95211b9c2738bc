"""The bound as a function of the hyper-parameters, profiled over q(g_u)."""

from dataclasses import dataclass, field

import torch

from sparsegp.approximations import Approximation
from sparsegp.data import Rows
from sparsegp.heteroscedastic.adjoint import push_noise_gradient
from sparsegp.heteroscedastic.bound import Ascent, natural_ascent
from sparsegp.heteroscedastic.hyperparameters import JointHyperparameters
from sparsegp.heteroscedastic.noise_process import NoiseProcess
from sparsegp.learning.deadline import Deadline
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.objective import CollapsedObjective
from sparsegp.posterior import InducingPosterior
from sparsegp.prior import SparsePrior


@dataclass
class Jitters:
    """The largest relative jitter met so far for f and for g: the objective must not jump between evaluations."""

    f: float = 0.0
    g: float = 0.0


def priors(
    hyper: JointHyperparameters, row: Approximation, limits: tuple[float, float], jitters: Jitters
) -> tuple[SparsePrior, NoiseProcess]:
    """Of f and of g; the jitters they need are remembered."""
    f_prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, row, jitters.f)
    process = NoiseProcess.at_prior(hyper.noise_kernel, hyper.noise_inducing, hyper.noise_mean, limits, jitters.g)
    jitters.f, jitters.g = f_prior.Luu.jitter, process.prior.Luu.jitter
    return f_prior, process


@dataclass
class ProfiledBound:
    """max over q(g_u) of F, for any row of the table; `limits` are the least and the largest noise variance.

    q of the best evaluation so far is where the next ascent starts. Bounds of experts on disjoint rows add, and so do
    their gradients where hyper-parameters are shared.
    """

    rows: Rows
    row: Approximation
    limits: tuple[float, float]
    tolerance: float = 1e-5
    max_steps: int = 10
    q: InducingPosterior | None = None
    deadline: Deadline | None = None
    best: float = -torch.inf
    jitters: Jitters = field(default_factory=Jitters)

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    def ascend(self, hyper: JointHyperparameters) -> Ascent:
        """The natural ascent of q(g_u) at these hyper-parameters, from the best q so far."""
        with torch.no_grad():
            f_prior, process = priors(hyper, self.row, self.limits, self.jitters)
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
        assert isinstance(hyper, JointHyperparameters)
        ascent = self.ascend(hyper)
        # At fixed R the gradient for f is that of the row's own objective.
        CollapsedObjective(ascent.state.rows, self.row, self.jitters.f).value_and_gradient(hyper)
        with torch.no_grad():
            push_noise_gradient(hyper, ascent.state.process, self.rows.all.X, ascent.slopes)
        return ascent.state.value
