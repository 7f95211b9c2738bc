"""From a checked problem to a fitted committee: start, divide the rows, learn what is shared, infer."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp import approximations, parallel
from sparsegp.approximations import Approximation
from sparsegp.committee import training
from sparsegp.committee.aggregation import Aggregation
from sparsegp.committee.division import divide
from sparsegp.committee.experts import ExpertPlan, Process
from sparsegp.committee.nearest import Nearest
from sparsegp.committee.plans import Recipe, can_be_expert, require_expert
from sparsegp.committee.prediction import Committee
from sparsegp.data import Block, Rows
from sparsegp.errors import InputError
from sparsegp.estimators import families, noisy_experts
from sparsegp.heteroscedastic.hyperparameters import JointHyperparameters
from sparsegp.heteroscedastic.starting_values import NoiseStart, local_noise_start, noise_start
from sparsegp.kernels import Kernel
from sparsegp.learning.hyperparameters import Hyperparameters, Limits
from sparsegp.learning.recorder import LearningResult, StepCallback
from sparsegp.partition import kernel_metric

LARGEST_DENSE_SHARE = 2048
# Cells are compact in the metric of the scouted kernel. Noise that varies can stand for variation of f: under
# lengthscales far longer than theirs, an expert with quiet rows is sure of places where it has none.
FARTHEST_LENGTHSCALES = 5.0


@dataclass(frozen=True)
class ExpertKind:
    """The row of the table that models f, and whether the noise is learned as a process of its own."""

    row: Approximation
    noisy: bool = False

    @classmethod
    def get(cls, name: Any, power: float) -> "ExpertKind":
        noisy = isinstance(name, str) and name in noisy_experts.ROWS
        if isinstance(name, str) and not noisy and name not in approximations.NAMES:
            known = [row for row in approximations.NAMES if can_be_expert(approximations.get(row))]
            raise InputError(f"expert must be one of {', '.join([*noisy_experts.ROWS, *known])}; got {name!r}.")
        row = approximations.get(noisy_experts.ROWS[name] if noisy else name, power)
        require_expert(row)
        return cls(row, noisy)


@dataclass(frozen=True)
class CommitteeProblem:
    """A regression problem in the model's units, with every choice the user made."""

    block: Block
    labels: ArrayLike | None
    kernel: Kernel
    noise_var: float
    noise_kernel: Kernel
    kind: ExpertKind
    aggregation: Aggregation
    partition: str
    n_experts: int
    n_inducing: int
    n_noise_inducing: int
    inducing: str
    optimizer: str | None
    learn_inducing: bool
    tolerance: float
    most_asked: int | None
    n_jobs: int | None
    rng: np.random.Generator
    on_step: StepCallback
    executor: parallel.Executor = field(default_factory=parallel.Threads)


@dataclass(frozen=True)
class FittedCommittee:
    """The committee, the hyper-parameters its experts share, and the record of how they came about."""

    committee: Committee
    hyper: Hyperparameters
    log_evidence: float
    info: dict[str, Any] = field(default_factory=dict)


def fit(problem: CommitteeProblem) -> FittedCommittee:
    block, found, executor = problem.block, _scouted(problem), problem.executor
    scouted = found.start
    kernel, noise_var = scouted.kernel, scouted.noise_var
    limits = families.limits_of(block, noise_var, found.least_noise_var)
    metric = kernel_metric(kernel, block.X.shape[1])
    communicates = problem.aggregation.communicates
    shares = divide(
        block.X * metric,
        problem.n_experts,
        problem.partition,
        problem.rng,
        communicates=communicates,
        blocks=problem.labels,
    )
    setup = _with_learned_noise if problem.kind.noisy else _with_shared_noise
    plans, hyper = setup(problem, shares, kernel, noise_var, limits, metric)
    learning: list[LearningResult] = list(scouted.stages)
    placed = None
    if problem.optimizer is not None and not scouted.stopped:
        lesson = training.Lesson(
            limits,
            problem.optimizer,
            problem.learn_inducing,
            problem.rng,
            executor,
            on_step=problem.on_step,
        )
        placed, results = _learned(plans, hyper, lesson)
        learning += results
    hyper.clear_gradient()
    placed = training.place(plans, executor) if placed is None else placed
    inference = training.infer(placed, hyper, executor, communicates=communicates)
    committee = Committee(
        problem.aggregation,
        processes(hyper),
        inference.experts,
        inference.common,
        problem.tolerance,
        problem.n_jobs,
        _nearest(problem, shares[len(shares) - len(inference.experts) :], metric),
    )
    info = _report([len(share) for share in shares], inference.jitter, learning)
    return FittedCommittee(committee, hyper, inference.log_evidence, info)


def _learned(
    plans: list[ExpertPlan], hyper: Hyperparameters, lesson: training.Lesson
) -> tuple[parallel.Placed | None, list[LearningResult]]:
    """Plans and results of `training.learn`; Ctrl-C ends it and leaves what the phases before have learned."""
    reached: tuple[parallel.Placed | None, list[LearningResult]] = None, []

    def learn() -> list[LearningResult]:
        nonlocal reached
        for phase in training.learn(plans, hyper, lesson):
            reached = phase
        return []

    interrupted = families.until_interrupted(learn)
    learned, results = reached
    return learned, [*results, *interrupted]


def _nearest(problem: CommitteeProblem, shares: list[Tensor], metric: Tensor) -> Nearest | None:
    if problem.most_asked is None or problem.most_asked >= len(shares):
        return None
    return Nearest.of(problem.most_asked, [problem.block.X[share] for share in shares], metric)


def processes(hyper: Hyperparameters) -> tuple[Process, ...]:
    """The prior of f, and of g where it is learned."""
    f = Process(hyper.kernel)
    if not isinstance(hyper, JointHyperparameters):
        return (f,)
    return f, Process(hyper.noise_kernel, float(hyper.noise_mean.detach()))


def _scouted(problem: CommitteeProblem) -> families.NoisyStart:
    """A start from a few neighbourhoods, in whose metric cells are compact; a single expert needs none."""
    start = families.Start(problem.kernel, problem.noise_var)
    if problem.optimizer is None or (problem.n_experts == 1 and not problem.kind.noisy):
        return families.NoisyStart(start)
    given = problem.block, start, problem.optimizer, problem.rng, problem.on_step
    if problem.kind.noisy:
        return families.noisy_start(*given, local=True)
    return families.NoisyStart(families.scout(*given))


Setup = tuple[list[ExpertPlan], Hyperparameters]


def _with_shared_noise(
    problem: CommitteeProblem, shares: list[Tensor], kernel: Kernel, noise_var: float, limits: Limits, metric: Tensor
) -> Setup:
    block = problem.block
    recipe = Recipe(problem.kind.row, problem.n_inducing, problem.inducing, kernel, metric, problem.rng)
    learn_noise = block.noise_var is None
    hyper = Hyperparameters(kernel, noise_var, block.X[:1], learn_noise=learn_noise, learn_inducing=False)
    return _planned(recipe, block, shares), hyper


def _with_learned_noise(
    problem: CommitteeProblem, shares: list[Tensor], kernel: Kernel, noise_var: float, limits: Limits, metric: Tensor
) -> Setup:
    block, rng = problem.block, problem.rng
    start = NoiseStart(problem.noise_kernel, math.log(noise_var))
    if problem.optimizer is not None:
        start = _noise_start(problem, shares, kernel, noise_var, limits)
    recipe = noisy_experts.NoisyRecipe(
        problem.kind.row,
        problem.n_inducing,
        problem.n_noise_inducing,
        problem.inducing,
        kernel,
        start.kernel,
        limits.noise_var,
        rng,
    )
    first = block.X[:1]
    hyper = JointHyperparameters(
        kernel,
        first,
        start.kernel,
        first,
        start.mean,
        learn_inducing=False,
        lengthscale_factor=FARTHEST_LENGTHSCALES if len(shares) > 1 else None,
    )
    return _planned(recipe, block, shares), hyper


@parallel.single()
def _planned(recipe: Recipe | noisy_experts.NoisyRecipe, block: Block, shares: list[Tensor]) -> list[ExpertPlan]:
    return [recipe.plan(block.take(index)) for index in shares]


def _noise_start(
    problem: CommitteeProblem, shares: list[Tensor], kernel: Kernel, noise_var: float, limits: Limits
) -> NoiseStart:
    """From residuals inside the experts' own cells, as dense as the data; of large cells, from random rows."""
    choices = kernel, noise_var, problem.noise_kernel, limits, problem.rng
    cells = shares[1:] if problem.aggregation.communicates and len(shares) > 1 else shares
    sizes = [len(cell) for cell in cells]
    if max(sizes) > LARGEST_DENSE_SHARE:
        return noise_start(problem.block, *choices)
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    return local_noise_start(Rows(problem.block.take(torch.cat(cells)), offsets), *choices)


def _report(sizes: list[int], jitter: float, learning: list[LearningResult]) -> dict[str, Any]:
    return {
        "n_experts": len(sizes),
        "rows_per_expert": (min(sizes), int(np.median(sizes)), max(sizes)),
        "jitter": jitter,
        "learning_seconds": sum(stage.seconds for stage in learning),
        "evaluations": sum(stage.evaluations for stage in learning),
        "stages": learning,
    }
