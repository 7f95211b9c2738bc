"""Shared hyper-parameters: the sum of the experts' log evidences, climbed on a few experts first, then on more."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from sparsegp import linalg
from sparsegp.committee.experts import Expert, ExpertPlan, Trained
from sparsegp.learning.gradients import Gradients, add_gradients, gradients_of
from sparsegp.learning.hyperparameters import Hyperparameters, Limits
from sparsegp.learning.objective import Objective
from sparsegp.learning.progressive import OPTIMIZERS
from sparsegp.learning.recorder import LearningResult, StepCallback
from sparsegp.parallel import Executor, Placed, Threads, itself


@dataclass(frozen=True)
class Schedule:
    """Experts and iterations of each stage. Kernel and noise are few numbers: more experts change them little."""

    experts: tuple[int, ...] = (8, 32)
    iterations: tuple[int, ...] = (60, 20)
    inducing_iterations: int = 20
    tolerance: float = 1e-5

    def stages(self, n_experts: int) -> list[tuple[int, int]]:
        """(experts, iterations) of each stage, no number of experts twice."""
        plan: dict[int, int] = {}
        for size, iterations in zip(self.experts, self.iterations, strict=True):
            plan.setdefault(min(size, n_experts), iterations)
        return list(plan.items())


@dataclass(frozen=True)
class Member:
    """An expert's objective and its private copy of the shared hyper-parameters, where it computes its gradient."""

    objective: Objective
    hyper: Hyperparameters


@dataclass
class SumObjective:
    """sum_i J_i(theta), the log evidence of independent experts with shared theta; gradients add up (001 sec. IV-A).

    The sum runs in the order of the experts wherever they are, so its last digits do not depend on that. `members` are
    those of the last evaluation that did not fail: experts start where they ended.
    """

    executor: Executor
    members: Placed
    n_rows: int

    @classmethod
    def of(cls, plans: Placed, shared: Hyperparameters, executor: Executor) -> "SumObjective":
        members, n_rows = executor.step(as_member, plans, shared)
        return cls(executor, members, sum(n_rows))

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        hyper.clear_gradient()
        self.members, answers = self.executor.step(evaluated, self.members, hyper.vector())
        for _, gradients in answers:
            add_gradients(hyper, gradients)
        return float(sum(value for value, _ in answers))


def place(plans: Sequence[ExpertPlan], executor: Executor, beside: Placed | None = None) -> Placed:
    """Every plan at its home, by the work of an evaluation."""
    return executor.place(plans, [plan.work for plan in plans], beside)


def threaded_sum(plans: Sequence[ExpertPlan], shared: Hyperparameters, n_jobs: int | None = None) -> SumObjective:
    """`SumObjective` in threads of this process."""
    executor = Threads(n_jobs)
    return SumObjective.of(place(plans, executor), shared, executor)


def as_member(plan: ExpertPlan, shared: Hyperparameters) -> tuple[Member, int]:
    """The member, and the number of its rows."""
    member = Member(plan.objective, plan.hyperparameters(shared))
    return member, member.objective.n_rows


@linalg.flushed_denormals()
def evaluated(member: Member, vector: NDArray[np.float64]) -> tuple[Member, tuple[float, Gradients]]:
    """J_i and its gradient. What an objective remembers of it, a copy does: this one can be evaluated again."""
    objective = copy.copy(member.objective)
    member.hyper.load_vector(vector)
    value = objective.value_and_gradient(member.hyper)
    return Member(objective, member.hyper), (value, gradients_of(member.hyper))


@dataclass(frozen=True)
class Lesson:
    """How a committee learns."""

    limits: Limits
    optimizer: str
    learn_inducing: bool
    rng: np.random.Generator
    executor: Executor = field(default_factory=Threads)
    schedule: Schedule = field(default_factory=Schedule)
    on_step: StepCallback | None = None


def learn(
    plans: Sequence[ExpertPlan], hyper: Hyperparameters, lesson: Lesson
) -> Iterator[tuple[Placed, list[LearningResult]]]:
    """Learn the shared hyper-parameters in place. At first and after every phase: the plans at their homes, in the end
    with their inducing inputs learned, and the results so far.

    Inducing inputs belong to one expert each: they are learned expert by expert once kernel and noise make sense,
    and kernel and noise once more afterwards.
    """
    order = lesson.rng.permutation(len(plans)).tolist()
    stages = lesson.schedule.stages(len(plans))
    placed = _placed_in_stages(plans, order, [n_experts for n_experts, _ in stages], lesson.executor)
    results: list[LearningResult] = []
    yield placed, results
    for n_experts, iterations in stages:
        results.append(_climb(placed.subset(order[:n_experts]), hyper, iterations, lesson))
        yield placed, results
        if results[-1].stopped:
            return
    if lesson.learn_inducing and any(plan.has_inducing for plan in plans):
        placed = with_own_inducing(placed, hyper, lesson)
        yield placed, results
        n_experts, iterations = stages[-1]
        results.append(_climb(placed.subset(order[:n_experts]), hyper, iterations, lesson))
        yield placed, results


def _placed_in_stages(
    plans: Sequence[ExpertPlan], order: Sequence[int], sizes: Sequence[int], executor: Executor
) -> Placed:
    """Workers have equally much to do in every stage, not only when all experts are asked."""
    placed = None
    for start, stop in pairwise([0, *sizes, len(plans)]):
        placed = place([plans[k] for k in order[start:stop]], executor, placed)
    assert placed is not None
    return placed.subset(np.argsort(order).tolist())


def _climb(plans: Placed, hyper: Hyperparameters, iterations: int, lesson: Lesson) -> LearningResult:
    return OPTIMIZERS[lesson.optimizer](
        SumObjective.of(plans, hyper, lesson.executor),
        hyper,
        lesson.limits,
        max_iterations=iterations,
        tolerance=lesson.schedule.tolerance,
        on_step=lesson.on_step,
    )


def with_own_inducing(plans: Placed, hyper: Hyperparameters, lesson: Lesson) -> Placed:
    """Every expert with the inducing inputs of `own_inducing`.

    They come back before they are given to the plans: some climbs are longer than others, and workers that are done
    help with those that wait.
    """
    executor = lesson.executor
    learned = executor.map(own_inducing, plans, hyper, lesson.limits, lesson.optimizer, lesson.schedule)
    return executor.step(with_inducing, plans, each=learned)[0]


@linalg.flushed_denormals()
def own_inducing(
    plan: ExpertPlan, hyper: Hyperparameters, limits: Limits, optimizer: str, schedule: Schedule
) -> Hyperparameters | None:
    """The inducing inputs that the expert's own objective prefers under the shared hyper-parameters, if it has any."""
    if not plan.has_inducing:
        return None
    own = plan.hyperparameters(hyper, learn_inducing=True)
    for parameter, shared in zip(own.parameters(), hyper.parameters(), strict=True):
        parameter.requires_grad_(parameter.requires_grad and not shared.requires_grad)
    OPTIMIZERS[optimizer](
        plan.objective,
        own,
        limits,
        max_iterations=schedule.inducing_iterations,
        tolerance=schedule.tolerance,
    )
    return own


def with_inducing(plan: ExpertPlan, own: Hyperparameters | None) -> tuple[ExpertPlan, None]:
    return plan if own is None else plan.with_inducing_of(own), None


@dataclass(frozen=True)
class Inference:
    """The posteriors of all experts, the log evidence of their rows together, and the largest jitter."""

    experts: list[Expert]
    common: Expert | None
    log_evidence: float
    jitter: float


def infer(plans: Placed, hyper: Hyperparameters, executor: Executor, *, communicates: bool = False) -> Inference:
    """The posterior of every expert at the shared hyper-parameters; `communicates`: the first is everybody's.

    Experts are independent, given the rows of the communications expert c if there is one (they have them all):
    log p(y) = log p(y_c) + sum_i log p(y_i | y_c).
    """
    if not communicates:
        trained = executor.map(train, plans, hyper)
        return Inference([t.expert for t in trained], None, sum(t.log_evidence for t in trained), _jitter(trained))
    (common,) = executor.map(itself, plans.subset([0]))
    base = train(common, hyper)
    trained = executor.map(train, plans.subset(range(1, len(plans))), hyper, common)
    evidence = base.log_evidence + sum(t.log_evidence - base.log_evidence for t in trained)
    return Inference([t.expert for t in trained], base.expert, evidence, _jitter([base, *trained]))


def _jitter(trained: Sequence[Trained]) -> float:
    return max(t.jitter for t in trained)


@linalg.flushed_denormals()
def train(plan: ExpertPlan, hyper: Hyperparameters, common: ExpertPlan | None = None) -> Trained:
    """The posterior of an expert, which has seen the rows of `common` too."""
    with torch.no_grad():
        return (plan if common is None else plan.augmented(common)).train(hyper)
