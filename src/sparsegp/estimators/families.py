"""How each family of the table is learned and inferred: one function a family, all with the same result."""

import time
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegp import inducing, threads
from sparsegp.approximations import Approximation, Family, get
from sparsegp.committee import neighbourhoods
from sparsegp.data import Block, Rows
from sparsegp.dense import ExactObjective, ExactPosterior, NystromPosterior, require_dense_size
from sparsegp.engines import batch
from sparsegp.kernels import Kernel
from sparsegp.learning.deadline import Deadline
from sparsegp.learning.hyperparameters import Hyperparameters, Limits
from sparsegp.learning.progressive import OPTIMIZERS, Schedule, learn
from sparsegp.learning.recorder import LearningResult, StepCallback
from sparsegp.posterior import LatentPosterior
from sparsegp.prior import SparsePrior

NOISE_FLOOR = 1e-6
LEAST_NOISE_SHARE, SUSPICIOUS_NOISE = 0.005, 1e-4
NOISE_CEILING = 100.0
INTERRUPTED = "interrupted"
SURVEY_INDUCING = 128
SURVEY = Schedule(warm_up_iterations=20, first_rows=4096, most_rows=4096, first_iterations=40, tolerance=1e-5)
# Where the survey is all that f starts from: a climb that ends early calls what it has not found yet noise.
THOROUGH_SURVEY = replace(SURVEY, warm_up_iterations=60, first_iterations=100, tolerance=1e-6)


@dataclass(frozen=True)
class Start:
    """Kernel and noise to learn from, and the record of how they were found."""

    kernel: Kernel
    noise_var: float
    stages: tuple[LearningResult, ...] = ()

    @property
    def stopped(self) -> bool:
        """Whether the caller asked to stop."""
        return bool(self.stages) and self.stages[-1].stopped

    def going_on(self) -> "Start":
        """The same, with nobody having asked to stop; an interrupt stays one."""
        stages = (s if s.reason == INTERRUPTED else replace(s, stopped=False) for s in self.stages)
        return replace(self, stages=tuple(stages))


@dataclass(frozen=True)
class Problem:
    """A regression problem in the model's units, with every choice the user made."""

    rows: Rows
    row: Approximation
    start: Start
    inducing: Any
    n_inducing: int
    learn_inducing: bool
    optimizer: str | None
    rng: np.random.Generator
    on_step: StepCallback | None = None
    clip_variances: bool = False
    deadline: Deadline | None = None


@dataclass(frozen=True)
class Fitted:
    """What fitting gives: hyper-parameters, the posterior of f and the record of how they came about."""

    kernel: Kernel
    noise_var: float
    inducing: Tensor
    posterior: LatentPosterior
    log_evidence: float
    info: dict[str, Any] = field(default_factory=dict)
    state: batch.BatchState | None = None


def fit(problem: Problem) -> Fitted:
    return _FITTERS[problem.row.family](problem)


def scout(
    block: Block, start: Start, optimizer: str, rng: np.random.Generator, on_step: StepCallback | None = None
) -> Start:
    """Kernel and noise learned from a few neighbourhoods, before there are blocks.

    They are the start of models by blocks, and their lengthscales the metric in which blocks are compact. Exact GPs
    have nothing for "ngd" to sample.
    """
    optimizer = "lbfgs" if optimizer == "ngd" else optimizer
    learn_noise = block.noise_var is None
    hyper = Hyperparameters(start.kernel, start.noise_var, block.X[:1], learn_noise=learn_noise, learn_inducing=False)
    limits = limits_of(block, start.noise_var)
    results = until_interrupted(
        lambda: neighbourhoods.learn(block, hyper, limits, optimizer=optimizer, rng=rng, on_step=on_step)
    )
    hyper.clear_gradient()
    return Start(hyper.kernel, float(hyper.noise_var), tuple(results))


@threads.single()
def survey(
    block: Block,
    start: Start,
    optimizer: str,
    rng: np.random.Generator,
    on_step: StepCallback | None = None,
    schedule: Schedule = SURVEY,
) -> Start:
    """Kernel and noise learned by VFE with few inducing inputs from a random subset: what varies slowly."""
    X = block.X.to(torch.float64)
    chosen = inducing.select_inducing("kmeans", start.kernel, X, SURVEY_INDUCING, rng, block.weight)
    hyper = Hyperparameters(start.kernel, start.noise_var, chosen, learn_noise=block.noise_var is None)
    limits = limits_of(block, start.noise_var)
    results = learn(
        Rows(block), get("vfe"), hyper, limits, optimizer=optimizer, rng=rng, schedule=schedule, on_step=on_step
    )
    hyper.clear_gradient()
    return Start(hyper.kernel, float(hyper.noise_var), tuple(results))


@dataclass(frozen=True)
class NoisyStart:
    """A start for noise that varies, and what it may not fall below."""

    start: Start
    least_noise_var: float = 0.0


def noisy_start(
    block: Block,
    start: Start,
    optimizer: str,
    rng: np.random.Generator,
    on_step: StepCallback,
    *,
    local: bool,
    on_survey_step: StepCallback | None = None,
) -> NoisyStart:
    """A homoscedastic start; `local`: from neighbourhoods, unless they call everything signal.

    Noise is nowhere below a share of what a smooth model leaves unexplained: else a rough f passes through every row,
    the noise falls to its floor, and a repeated input with another target is called impossible.
    """
    own_start = Start(deepcopy(start.kernel), start.noise_var)
    watched = (on_survey_step or on_step, SURVEY) if local else (on_step, THOROUGH_SURVEY)
    smooth = survey(block, own_start, optimizer, rng, *watched)
    least = LEAST_NOISE_SHARE * smooth.noise_var
    found = scout(block, start, optimizer, rng, on_step) if local else smooth
    if found.noise_var <= SUSPICIOUS_NOISE * block.target_variance:
        found = smooth
    stages = smooth.stages if found is smooth else (*smooth.stages, *found.stages)
    return NoisyStart(Start(found.kernel, max(found.noise_var, least), stages), least)


def limits_of(block: Block, noise_var: float, least_noise_var: float = 0.0) -> Limits:
    """Inducing inputs within the data; noise between a floor and a ceiling."""
    variance = block.target_variance
    floor = max(min(NOISE_FLOOR * variance, noise_var), least_noise_var)
    ceiling = max(NOISE_CEILING * variance, noise_var)
    X = block.X.to(torch.float64)
    return Limits((floor, ceiling), X.amin(0), X.amax(0))


def _hyperparameters(problem: Problem, inducing_inputs: Tensor, *, learn_inducing: bool) -> Hyperparameters:
    return Hyperparameters(
        problem.start.kernel,
        problem.start.noise_var,
        inducing_inputs,
        learn_noise=problem.rows.all.noise_var is None,
        learn_inducing=learn_inducing,
    )


def select(problem: Problem) -> Tensor:
    block = problem.rows.all
    return inducing.select_inducing(
        problem.inducing,
        problem.start.kernel,
        block.X.to(torch.float64),
        problem.n_inducing,
        problem.rng,
        block.weight,
    )


def starting_hyperparameters(problem: Problem, chosen: Tensor) -> Hyperparameters:
    # As many inducing inputs as rows: the approximation is exact already and moving them gains nothing.
    worthwhile = problem.learn_inducing and chosen.shape[0] < len(problem.rows)
    return _hyperparameters(problem, chosen, learn_inducing=worthwhile)


def learn_hyperparameters(problem: Problem, hyper: Hyperparameters) -> list[LearningResult]:
    """Learn in place, by the problem's optimiser and until its deadline; all stages, those of the start included.

    Ctrl-C ends learning and leaves the best point met.
    """
    before = list(problem.start.stages)
    optimizer = problem.optimizer
    if optimizer is None or problem.start.stopped:
        return before
    return before + until_interrupted(
        lambda: learn(
            problem.rows,
            problem.row,
            hyper,
            limits_of(problem.rows.all, problem.start.noise_var),
            optimizer=optimizer,
            rng=problem.rng,
            on_step=problem.on_step,
            deadline=problem.deadline,
        )
    )


def until_interrupted(learning: Callable[[], list[LearningResult]]) -> list[LearningResult]:
    """What learning gives, or after Ctrl-C a result that says so."""
    try:
        return learning()
    except KeyboardInterrupt:
        warnings.warn("Learning was interrupted: the model is that of the best hyper-parameters met.", stacklevel=2)
        return [LearningResult(float("nan"), 0, 0, 0, 0.0, INTERRUPTED, stopped=True)]


def _learn_inducing_problem(problem: Problem) -> tuple[Hyperparameters, list[LearningResult]]:
    hyper = starting_hyperparameters(problem, select(problem))
    return hyper, learn_hyperparameters(problem, hyper)


def _fit_inducing(problem: Problem) -> Fitted:
    hyper, learning = _learn_inducing_problem(problem)
    prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, problem.row)
    state, posterior, info = batch.infer(prior, problem.rows)
    report = learning_report(learning, info.jitter, info.seconds)
    return fitted_model(problem, hyper, posterior, info.log_evidence, report, state)


def _fit_nystrom(problem: Problem) -> Fitted:
    hyper, learning = _learn_inducing_problem(problem)
    prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, problem.row)
    state, posterior, info = batch.infer(prior, problem.rows)
    nystrom = NystromPosterior.build(prior, problem.rows.all, posterior.q, clip=problem.clip_variances)
    return fitted_model(
        problem, hyper, nystrom, info.log_evidence, learning_report(learning, info.jitter, info.seconds), state
    )


def _fit_exact(problem: Problem) -> Fitted:
    return _fit_dense(problem, problem.rows.all)


def _fit_subset(problem: Problem) -> Fitted:
    block = problem.rows.all
    index = _nearest_rows(block.X.to(torch.float64), select(problem))
    return _fit_dense(problem, block.take(index))


def _nearest_rows(X: Tensor, targets: Tensor) -> Tensor:
    """Distinct rows of X nearest to the targets."""
    best = torch.full((targets.shape[0],), torch.inf, dtype=torch.float64)
    index = torch.zeros(targets.shape[0], dtype=torch.int64)
    for start in range(0, X.shape[0], 4096):
        distance, nearest = torch.cdist(targets, X[start : start + 4096]).min(dim=1)
        closer = distance < best
        best[closer], index[closer] = distance[closer], nearest[closer] + start
    distinct: Tensor = index.unique()
    return distinct


def _fit_dense(problem: Problem, block: Block) -> Fitted:
    require_dense_size(len(block))
    started = time.perf_counter()
    hyper = _hyperparameters(problem, block.X, learn_inducing=False)
    learning: list[LearningResult] = []
    if problem.optimizer is not None:
        climb, limits = OPTIMIZERS[problem.optimizer], limits_of(problem.rows.all, problem.start.noise_var)
        learning = until_interrupted(
            lambda: [climb(ExactObjective(block), hyper, limits, on_step=problem.on_step, deadline=problem.deadline)]
        )
    posterior = ExactPosterior.build(hyper.kernel, block, hyper.noise_var)
    report = learning_report(learning, posterior.C.jitter, time.perf_counter() - started)
    return fitted_model(problem, hyper, posterior, posterior.log_evidence, report, None)


def fitted_model(
    problem: Problem,
    hyper: Hyperparameters,
    posterior: LatentPosterior,
    evidence: float,
    report: dict[str, Any],
    state: batch.BatchState | None,
) -> Fitted:
    for parameter in hyper.parameters():
        parameter.grad = None
    known = problem.rows.all.noise_var
    noise_var = float(hyper.noise_var) if known is None else float(known.mean())
    return Fitted(hyper.kernel, noise_var, hyper.inducing.detach(), posterior, evidence, report, state)


def learning_report(learning: list[LearningResult], jitter: float, inference_seconds: float) -> dict[str, Any]:
    return {
        "jitter": jitter,
        "inference_seconds": inference_seconds,
        "learning_seconds": sum(stage.seconds for stage in learning),
        "evaluations": sum(stage.evaluations for stage in learning),
        "stages": learning,
    }


_FITTERS: Mapping[Family, Callable[[Problem], Fitted]] = {
    Family.INDUCING: _fit_inducing,
    Family.NYSTROM: _fit_nystrom,
    Family.EXACT: _fit_exact,
    Family.SUBSET: _fit_subset,
}
