"""Shared hyper-parameters: the sum of the experts' log evidences, climbed on a few experts first, then on more."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch

from sparsegp import linalg, parallel
from sparsegp.committee.experts import ExpertSpec, Trained
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.schedules import OPTIMIZERS, WORTHWHILE_EVALUATIONS
from sparsegp.learn.sum_objective import SumObjective, place
from sparsegp.learn.trace import Deadline, LearningResult, Terms
from sparsegp.parallel import Executor, Placed, Threads, itself


@dataclass(frozen=True)
class Schedule:
    """Experts and iterations of each stage. Kernel and noise are few numbers: more experts change them little.

    With a deadline, inference is expected to take `inference_margin` times what evaluations say of it, and of the time
    that is left for learning, `inducing_fraction` goes to inducing inputs.
    """

    experts: tuple[int, ...] = (8, 32)
    iterations: tuple[int, ...] = (60, 20)
    inducing_iterations: int = 20
    tolerance: float = 1e-5
    inference_margin: float = 1.3
    inducing_fraction: float = 0.6

    def stages(self, n_experts: int) -> list[tuple[int, int]]:
        """(experts, iterations) of each stage, no number of experts twice."""
        stages: dict[int, int] = {}
        for size, iterations in zip(self.experts, self.iterations, strict=True):
            stages.setdefault(min(size, n_experts), iterations)
        return list(stages.items())


@dataclass(frozen=True)
class Lesson:
    """How a committee learns. By the deadline learning and the inference of all experts must be done."""

    terms: Terms
    learn_inducing: bool
    executor: Executor = field(default_factory=Threads)
    schedule: Schedule = field(default_factory=Schedule)
    inference_work: float = 0.0


@dataclass(frozen=True)
class Learned:
    """How far learning has come: the experts here and at their homes, and the results so far."""

    specs: Sequence[ExpertSpec]
    placed: Placed
    results: tuple[LearningResult, ...] = ()

    def after(self, result: LearningResult) -> "Learned":
        return replace(self, results=(*self.results, result))


def learn(specs: Sequence[ExpertSpec], hyper: Hyperparameters, lesson: Lesson) -> Iterator[Learned]:
    """Learn the shared hyper-parameters in place. At first and after every phase: how far it has come.

    Inducing inputs belong to one expert each: they are learned expert by expert once kernel and noise make sense,
    and kernel and noise once more afterwards.
    """
    order = lesson.terms.rng.permutation(len(specs)).tolist()
    stages = lesson.schedule.stages(len(specs))
    learned = Learned(specs, _placed_in_stages(specs, order, [n for n, _ in stages], lesson.executor))
    yield learned
    for n_experts, iterations in stages:
        chosen = order[:n_experts]
        if not _worthwhile(learned.placed.subset(chosen), [specs[k] for k in chosen], lesson):
            return
        learned = learned.after(_climb(learned.placed.subset(chosen), hyper, iterations, lesson))
        yield learned
        if learned.results[-1].stopped:
            return
    if lesson.learn_inducing and any(spec.has_inducing for spec in specs):
        seconds = _seconds_for_inducing(learned.placed, order[: stages[-1][0]], lesson)
        if seconds is not None and seconds <= 0.0:
            return
        learned = with_own_inducing(learned, hyper, lesson, seconds)
        yield learned
        n_experts, iterations = stages[-1]
        yield learned.after(_climb(learned.placed.subset(order[:n_experts]), hyper, iterations, lesson))


def _placed_in_stages(
    specs: Sequence[ExpertSpec], order: Sequence[int], sizes: Sequence[int], executor: Executor
) -> Placed:
    """Workers have equally much to do in every stage, not only when all experts are asked."""
    placed = None
    for start, stop in pairwise([0, *sizes, len(specs)]):
        placed = place([specs[k] for k in order[start:stop]], executor, placed)
    assert placed is not None
    return placed.subset(np.argsort(order).tolist())


def inference_work(specs: Sequence[ExpertSpec], *, communicates: bool) -> float:
    """Of the posteriors of all experts, as `ExpertSpec.work`."""
    if not communicates:
        return sum(spec.inference_work for spec in specs)
    common, *others = specs
    return common.inference_work + sum(spec.augmented(common).inference_work for spec in others)


def _worthwhile(placed: Placed, specs: Sequence[ExpertSpec], lesson: Lesson) -> bool:
    """Whether a few evaluations of these experts fit, as far as it is known what they cost."""
    n_rows = sum(len(spec.block) for spec in specs)
    deadline = _deadline(placed, n_rows, lesson)
    return deadline is None or deadline.allows(n_rows, WORTHWHILE_EVALUATIONS)


def _deadline(placed: Placed, n_rows: int, lesson: Lesson) -> Deadline | None:
    """The deadline, with time in reserve for the inference of all experts: evaluations of some say what that costs."""
    deadline = lesson.terms.deadline
    if deadline is not None:
        work = lesson.schedule.inference_margin * lesson.inference_work
        deadline.reserve = n_rows * work / max(sum(placed.costs), 1.0)
    return deadline


def _seconds_for_inducing(placed: Placed, last: Sequence[int], lesson: Lesson) -> float | None:
    """A fraction of what is left, 0 where that is not worth it; None: as long as it takes."""
    deadline = lesson.terms.deadline
    if deadline is None:
        return None
    seconds = lesson.schedule.inducing_fraction * deadline.left
    # the reserve is all experts' inference: by their work, it says what one evaluation of all of them takes
    inference = deadline.reserve * deadline.seconds_per_row / lesson.schedule.inference_margin
    evaluation = inference * sum(placed.costs) / max(lesson.inference_work, 1.0)
    return seconds if seconds > WORTHWHILE_EVALUATIONS * evaluation else 0.0


def _climb(specs: Placed, hyper: Hyperparameters, iterations: int, lesson: Lesson) -> LearningResult:
    objective = SumObjective.of(specs, hyper, lesson.executor)
    return OPTIMIZERS[lesson.terms.optimizer](
        objective,
        hyper,
        lesson.terms.limits,
        max_iterations=iterations,
        tolerance=lesson.schedule.tolerance,
        on_step=lesson.terms.on_step,
        deadline=_deadline(specs, objective.n_rows, lesson),
    )


def with_own_inducing(
    learned: Learned, hyper: Hyperparameters, lesson: Lesson, seconds: float | None = None
) -> Learned:
    """Every expert with the inducing inputs of `own_inducing`, within so many seconds.

    They come back before they are given to the specs: some climbs are longer than others, and workers that are done
    help with those that wait.
    """
    executor, placed, terms = lesson.executor, learned.placed, lesson.terms
    limits: list[float | None] = [None] * len(placed)
    if seconds is not None:
        each = seconds * executor.n_workers / sum(placed.costs)
        limits = [min(seconds, each * cost) for cost in placed.costs]
    found = executor.map(own_inducing, placed, hyper, terms.limits, terms.optimizer, lesson.schedule, each=limits)
    specs = [with_inducing(spec, own)[0] for spec, own in zip(learned.specs, found, strict=True)]
    return replace(learned, specs=specs, placed=executor.step(with_inducing, placed, each=found)[0])


@linalg.flushed_denormals()
def own_inducing(
    spec: ExpertSpec,
    seconds: float | None,
    hyper: Hyperparameters,
    limits: Limits,
    optimizer: str,
    schedule: Schedule,
) -> Hyperparameters | None:
    """The inducing inputs that the expert's own objective prefers under the shared hyper-parameters, if it has any.

    The time starts when the expert's turn comes, by the clock of whoever computes it.
    """
    if not spec.has_inducing:
        return None
    own = spec.hyperparameters(hyper, learn_inducing=True)
    for parameter, shared in zip(own.parameters(), hyper.parameters(), strict=True):
        parameter.requires_grad_(parameter.requires_grad and not shared.requires_grad)
    OPTIMIZERS[optimizer](
        spec.objective,
        own,
        limits,
        max_iterations=schedule.inducing_iterations,
        tolerance=schedule.tolerance,
        deadline=None if seconds is None else Deadline(time.perf_counter() + seconds),
    )
    return own


def with_inducing(spec: ExpertSpec, own: Hyperparameters | None) -> tuple[ExpertSpec, None]:
    return spec if own is None else spec.with_inducing_of(own), None


@dataclass(frozen=True)
class Inference:
    """The posteriors of all experts, and of the communications expert if there is one."""

    experts: list[Trained]
    common: Trained | None = None

    @property
    def log_evidence(self) -> float:
        """Of the rows of all experts together.

        Experts are independent, given the rows of the communications expert c if there is one (they have them all):
        log p(y) = log p(y_c) + sum_i log p(y_i | y_c).
        """
        base = 0.0 if self.common is None else self.common.log_evidence
        return float(base + sum(trained.log_evidence - base for trained in self.experts))

    @property
    def jitter(self) -> float:
        """The largest that a factorisation took."""
        common = [] if self.common is None else [self.common]
        return max((trained.jitter for trained in (*common, *self.experts)), default=0.0)


def infer(specs: Placed, hyper: Hyperparameters, executor: Executor, *, communicates: bool = False) -> Inference:
    """The posterior of every expert at the shared hyper-parameters; `communicates`: the first is common to all."""
    if not communicates:
        return Inference(executor.map(train, specs, hyper))
    (common,) = executor.map(itself, specs.subset([0]))
    return Inference(executor.map(train, specs.subset(range(1, len(specs))), hyper, common), train(common, hyper))


@linalg.flushed_denormals()
def train(spec: ExpertSpec, hyper: Hyperparameters, common: ExpertSpec | None = None) -> Trained:
    """The posterior of an expert, which has seen the rows of `common` too."""
    with torch.no_grad(), parallel.single():
        return (spec if common is None else spec.augmented(common)).train(hyper)
