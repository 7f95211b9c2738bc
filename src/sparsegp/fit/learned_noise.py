"""Models that learn how their noise varies, and their fits: a start with constant noise, then f and g together."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp.core import inducing
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block, MemoryRows, Rows
from sparsegp.core.left_out import LeftOut
from sparsegp.core.local import LocalPosterior
from sparsegp.core.partition import Blocking
from sparsegp.core.posterior import InducingPosterior, LatentPosterior
from sparsegp.core.predictive import Array, Joint, NoiseMixture
from sparsegp.core.trend import Trend
from sparsegp.errors import InputError
from sparsegp.fit.blocking import arranged
from sparsegp.fit.budget import Budget
from sparsegp.fit.kept import KeptRows
from sparsegp.fit.model import Found, Model
from sparsegp.fit.problem import NoiseSpec, Problem, Start
from sparsegp.fit.scaling import Scaling
from sparsegp.fit.start import StopRequest, learned_noise_start
from sparsegp.infer.drift import Innovations
from sparsegp.kernels import Kernel
from sparsegp.learn.trace import Deadline, LearningResult, Terms
from sparsegp.noise import noise_learning, svshgp
from sparsegp.noise.joint_hyperparameters import JointHyperparameters
from sparsegp.noise.noise_learning import Inferred
from sparsegp.noise.noise_start import NoiseStart, noise_start
from sparsegp.noise.process import NoiseProcess

NOISE_IS_OF_ALL_ROWS = (
    "A model with learned noise has no leave-one-out predictions in closed form: the posterior of its noise process "
    "depends on every row, and without one of them it would have to be found again by iteration. Hold rows out "
    "instead, or name an approximation, as 'pic', and fit again."
)


@dataclass(frozen=True)
class LearnedNoiseModel:
    """A model of f and the process g of its log noise variance (001).

    Rows that come later count with the noise that is expected at their place: f is then exactly that of one pass over
    all rows, and the noise process stays as it was learned. `bound` - `mean.log_evidence` is what the bound has
    besides the evidence of f.
    """

    mean: Model
    process: NoiseProcess
    bound: float
    noise_var: float
    learns_noise: ClassVar[bool] = True

    @property
    def approx(self) -> Approximation:
        return self.mean.approx

    @property
    def kernel(self) -> Kernel:
        return self.mean.kernel

    @property
    def inducing(self) -> Tensor:
        return self.mean.inducing

    @property
    def posterior(self) -> LatentPosterior:
        return self.mean.posterior

    @property
    def trend(self) -> Trend | None:
        return self.mean.trend

    @property
    def blocking(self) -> Blocking | None:
        return self.mean.blocking

    @property
    def log_evidence(self) -> float:
        return self.bound

    @property
    def innovations(self) -> Innovations:
        return self.mean.innovations

    @property
    def known_noise(self) -> bool:
        return False

    @property
    def n_rows(self) -> int:
        return self.mean.n_rows

    def check_labels(self, blocks: ArrayLike | None, n_rows: int) -> None:
        self.mean.check_labels(blocks, n_rows)

    def expected(self, X: Tensor, blocks: ArrayLike | None, scaling: Scaling) -> Array:
        return self.mean.expected(X, blocks, scaling)

    def forecast(self, X: Tensor, blocks: ArrayLike | None, scaling: Scaling) -> NoiseMixture:
        moments = scaling.raw_moments(*self.mean.marginals(X, blocks))
        return NoiseMixture(*moments, *self._log_noise(X, scaling))

    def joint_forecast(self, X: Tensor, blocks: ArrayLike | None, scaling: Scaling) -> Joint:
        _, cov = scaling.raw_moments(*self.mean.joint(X, blocks))
        return Joint.of(self.forecast(X, blocks, scaling), cov)

    def _log_noise(self, X: Tensor, scaling: Scaling) -> tuple[Array, Array]:
        """Mean and variance of g at each row, for squared units of the user's y."""
        mean, var = self.process.predict(X)
        return mean.numpy() + scaling.log_noise_shift, var.numpy()

    def add(self, block: Block, labels: ArrayLike | None = None) -> "LearnedNoiseModel":
        return self._after(self.mean.add(self._with_noise(block), labels), block, +1.0)

    def remove(self, block: Block, labels: ArrayLike | None = None) -> "LearnedNoiseModel":
        return self._after(self.mean.remove(self._with_noise(block), labels), block, -1.0)

    def scale(self, factor: float) -> "LearnedNoiseModel":
        raise InputError("half_life is not for models with learned noise: fit again when the noise itself changes.")

    def merge(self, other: "LearnedNoiseModel") -> "LearnedNoiseModel":
        raise InputError(
            "A model with learned noise cannot be merged: its noise process belongs to its own rows. "
            "Name an approximation, as 'pic', and fit again."
        )

    def require_left_out(self) -> None:
        raise InputError(NOISE_IS_OF_ALL_ROWS)

    def left_out(self, rows: Rows) -> LeftOut:
        raise InputError(NOISE_IS_OF_ALL_ROWS)

    def reported(self) -> "LearnedNoiseModel":
        return replace(self, mean=self.mean.reported())

    def _with_noise(self, block: Block) -> Block:
        """Rows with the noise variance R = exp(mu_g - v_g/2) of their places."""
        return replace(block, noise_var=self.process.moments(block.X).R)

    def _after(self, mean: Model, block: Block, sign: float) -> "LearnedNoiseModel":
        """The bound is J(R) - sum_i w_i v_g,i/4 - KL: with the rows both sums change, and KL does not."""
        spread = 0.25 * float(block.weights @ self.process.moments(block.X).var)
        before = self.mean.filter_state.log_evidence
        bound = self.bound + mean.log_evidence - before - sign * spread
        return replace(self, mean=replace(mean, noise_var=self.mean.noise_var), bound=bound)


@dataclass(frozen=True)
class _Task:
    """What the two ways of inference need."""

    problem: Problem
    rows: Rows
    noise: NoiseSpec
    terms: Terms
    infer_until: Deadline | None


@dataclass(frozen=True)
class ExpectedNoise:
    """Task of a pass: the sum over rows of E exp(g)."""

    process: NoiseProcess

    def __call__(self, rows: MemoryRows) -> float:
        mean, var = self.process.predict(rows.all.X)
        return float(torch.exp(mean + 0.5 * var).sum())


def fit(problem: Problem, rows: Rows, budget: Budget) -> tuple[LearnedNoiseModel, dict[str, Any]]:
    noise = problem.noise
    assert noise is not None
    start = _started(problem, rows, budget)
    problem = replace(problem, start=start)
    n_blocks = problem.wanted_blocks(len(rows))
    in_order, blocking = arranged(problem.approx, rows, start.kernel, n_blocks, problem.labels, problem.rng)
    limits = problem.learning.start.limits(rows.sample.all, start.noise_var, start.least_noise_var)
    learn_until = budget.deadline(problem.learning.noise_fractions.learning)
    terms = Terms(limits, problem.rng, on_step=problem.on_step, deadline=learn_until)
    task = _Task(problem, in_order, noise, terms, budget.deadline(1.0))
    inferred, stages = _FITTERS[noise.inference](task, _noise_start(task))
    for parameter in (*inferred.state.prior.kernel.parameters(), *inferred.process.prior.kernel.parameters()):
        parameter.grad = None
    kept = None
    if isinstance(inferred.posterior, LocalPosterior) and isinstance(in_order, MemoryRows):
        kept = KeptRows.of(inferred.posterior.rows)
    prior, n = inferred.state.prior, len(rows)
    mean = Model(
        problem.approx,
        prior.kernel,
        float(prior.noise_var),
        prior.inducing,
        inferred.state,
        Found(inferred.posterior, inferred.bound),
        blocking,
        kept,
        known_noise=True,
        n_arrived=n,
        n_rows=n,
    )
    noise_var = in_order.sum(ExpectedNoise(inferred.process)) / n
    return LearnedNoiseModel(mean, inferred.process, inferred.bound, noise_var), {
        "stages": [*start.stages, *stages],
        "jitter": inferred.jitter,
        "inference_seconds": inferred.seconds,
        "evaluations": sum(stage.evaluations for stage in (*start.stages, *stages)) + inferred.ascent_evaluations,
        **({} if blocking is None else {"n_blocks": blocking.n_blocks}),
        **in_order.report(),
    }


def _started(problem: Problem, rows: Rows, budget: Budget) -> Start:
    """From constant noise, from the sample."""
    if problem.optimizer is None:
        return problem.start
    asked = StopRequest(problem.on_step)
    return learned_noise_start(problem, rows.sample.all, budget, asked, local=problem.approx.by_block)


def _noise_start(task: _Task) -> NoiseStart:
    """From residuals of the homoscedastic start, unless everything is given."""
    problem, noise, start = task.problem, task.noise, task.problem.start
    if problem.optimizer is None:
        return NoiseStart(noise.kernel, math.log(start.noise_var) if noise.mean is None else noise.mean)
    given = start.kernel, start.noise_var, noise.kernel, task.terms.limits, problem.rng, problem.trend
    found = noise_start(task.rows, *given, local=problem.approx.by_block)
    return found if noise.mean is None else replace(found, mean=noise.mean)


def _hyperparameters(task: _Task, start: NoiseStart) -> JointHyperparameters:
    """With as many inducing inputs as rows the approximation is exact already and moving them gains nothing."""
    problem, noise, block = task.problem, task.noise, task.rows.sample.all
    kernel, rng = problem.start.kernel, problem.rng
    of_f = problem.select_inducing(block, rng)
    of_g = inducing.select_inducing(noise.inducing, start.kernel, block.X, noise.n_inducing, rng, block.weight)
    learned = problem.learn_inducing and of_f.shape[0] < len(task.rows)
    given = kernel, of_f, start.kernel, of_g, start.mean
    return JointHyperparameters(*given, learn_inducing=learned, trend=problem.trend)


Fit = tuple[Inferred, list[LearningResult]]


def _exact(task: _Task, start: NoiseStart) -> Fit:
    problem, hyper = task.problem, _hyperparameters(task, start)
    if problem.optimizer is None:
        return _inferred(task, hyper, None), []
    schedule = problem.learning.noise_schedules.of(problem.approx, task.terms.optimizer)
    stages, q = noise_learning.learn(task.rows, problem.approx, hyper, task.terms, schedule)
    return _inferred(task, hyper, q), stages


def _inferred(task: _Task, hyper: JointHyperparameters, q: InducingPosterior | None) -> Inferred:
    terms = replace(task.terms, deadline=task.infer_until)
    return noise_learning.infer(task.rows, task.problem.approx, hyper, terms, q, task.problem.learning.inference)


def _stochastic(task: _Task, start: NoiseStart) -> Fit:
    problem, noise, hyper = task.problem, task.noise, _hyperparameters(task, start)
    if problem.optimizer is None:
        for parameter in hyper.parameters():
            parameter.requires_grad_(False)
    q, result = svshgp.learn(task.rows, problem.approx, hyper, task.terms, noise.batch_size, noise.n_steps)
    return _inferred(task, hyper, q), [result]


_FITTERS: Mapping[str, Callable[[_Task, NoiseStart], Fit]] = {"exact": _exact, "stochastic": _stochastic}
INFERENCES = tuple(_FITTERS)
