"""Shared hyper-parameters: the sum of the experts' log evidences, climbed on a few experts first, then on more."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from sparsegp.committee.experts import Expert, ExpertPlan, Trained
from sparsegp.committee.parallel import map_in_threads
from sparsegp.learning.hyperparameters import Hyperparameters, Limits
from sparsegp.learning.objective import Objective
from sparsegp.learning.progressive import OPTIMIZERS
from sparsegp.learning.recorder import LearningResult, StepCallback


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
    """An expert's objective and its private copy of the shared hyper-parameters, in which its gradient is left."""

    objective: Objective
    hyper: Hyperparameters

    @classmethod
    def of(cls, plan: ExpertPlan, shared: Hyperparameters) -> "Member":
        return cls(plan.objective, plan.hyperparameters(shared))


@dataclass(frozen=True)
class CommitteeObjective:
    """sum_i J_i(theta), the log evidence of independent experts with shared theta; gradients add up (001 sec. IV-A).

    The sum runs in the order of the experts whatever the number of threads, so the value does not depend on it.
    """

    members: Sequence[Member]
    n_jobs: int | None = None

    @property
    def n_rows(self) -> int:
        return sum(member.objective.n_rows for member in self.members)

    @classmethod
    def of(
        cls, plans: Sequence[ExpertPlan], shared: Hyperparameters, n_jobs: int | None = None
    ) -> "CommitteeObjective":
        return cls([Member.of(plan, shared) for plan in plans], n_jobs)

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        hyper.clear_gradient()
        values = self.evaluate(hyper.vector())
        hyper.add_gradients(member.hyper for member in self.members)
        return float(sum(values))

    def evaluate(self, vector: NDArray[np.float64]) -> list[float]:
        """J_i of every expert; its gradient is left in the expert's own hyper-parameters."""

        def value(member: Member) -> float:
            member.hyper.load_vector(vector)
            return member.objective.value_and_gradient(member.hyper)

        return map_in_threads(value, self.members, self.n_jobs)


class Crew(Protocol):
    """Who works for a committee: threads of this process, or workers elsewhere."""

    def objective(self, plans: Sequence[ExpertPlan], shared: Hyperparameters) -> Objective:
        """sum_i J_i of these experts, as `CommitteeObjective`."""

    def with_learned_inducing(
        self, plans: Sequence[ExpertPlan], hyper: Hyperparameters, lesson: "Lesson"
    ) -> list[ExpertPlan]:
        """Every expert with the inducing inputs of `own_inducing`."""

    def train(
        self, plans: Sequence[ExpertPlan], hyper: Hyperparameters, common: ExpertPlan | None = None
    ) -> list[Trained]:
        """The posterior of every expert, which has seen the rows of `common` too."""


@dataclass(frozen=True)
class Threads:
    """`n_jobs` threads of this process; None: as many as torch uses."""

    n_jobs: int | None = None

    def objective(self, plans: Sequence[ExpertPlan], shared: Hyperparameters) -> CommitteeObjective:
        return CommitteeObjective.of(plans, shared, self.n_jobs)

    def with_learned_inducing(
        self, plans: Sequence[ExpertPlan], hyper: Hyperparameters, lesson: "Lesson"
    ) -> list[ExpertPlan]:
        learned = map_in_threads(partial(own_inducing, hyper=hyper, lesson=lesson), plans, self.n_jobs)
        return [plan if own is None else plan.with_inducing_of(own) for plan, own in zip(plans, learned, strict=True)]

    def train(
        self, plans: Sequence[ExpertPlan], hyper: Hyperparameters, common: ExpertPlan | None = None
    ) -> list[Trained]:
        return map_in_threads(partial(train, hyper=hyper, common=common), plans, self.n_jobs)


@dataclass(frozen=True)
class Lesson:
    """How a committee learns."""

    limits: Limits
    optimizer: str
    learn_inducing: bool
    rng: np.random.Generator
    crew: Crew = field(default_factory=Threads)
    schedule: Schedule = field(default_factory=Schedule)
    on_step: StepCallback | None = None


def learn(
    plans: list[ExpertPlan], hyper: Hyperparameters, lesson: Lesson
) -> Iterator[tuple[list[ExpertPlan], list[LearningResult]]]:
    """Learn the shared hyper-parameters in place. After every phase: the plans, in the end with their inducing inputs
    learned, and the results so far.

    Inducing inputs belong to one expert each: they are learned expert by expert once kernel and noise make sense,
    and kernel and noise once more afterwards.
    """
    order = lesson.rng.permutation(len(plans)).tolist()
    stages = lesson.schedule.stages(len(plans))
    results: list[LearningResult] = []
    for n_experts, iterations in stages:
        results.append(_climb([plans[k] for k in order[:n_experts]], hyper, iterations, lesson))
        yield plans, results
        if results[-1].stopped:
            return
    if lesson.learn_inducing and any(plan.has_inducing for plan in plans):
        plans = lesson.crew.with_learned_inducing(plans, hyper, lesson)
        yield plans, results
        n_experts, iterations = stages[-1]
        results.append(_climb([plans[k] for k in order[:n_experts]], hyper, iterations, lesson))
        yield plans, results


def _climb(plans: list[ExpertPlan], hyper: Hyperparameters, iterations: int, lesson: Lesson) -> LearningResult:
    return OPTIMIZERS[lesson.optimizer](
        lesson.crew.objective(plans, hyper),
        hyper,
        lesson.limits,
        max_iterations=iterations,
        tolerance=lesson.schedule.tolerance,
        on_step=lesson.on_step,
    )


def own_inducing(plan: ExpertPlan, hyper: Hyperparameters, lesson: Lesson) -> Hyperparameters | None:
    """The inducing inputs that the expert's own objective prefers under the shared hyper-parameters, if it has any."""
    if not plan.has_inducing:
        return None
    own = plan.hyperparameters(hyper, learn_inducing=True)
    for parameter, shared in zip(own.parameters(), hyper.parameters(), strict=True):
        parameter.requires_grad_(parameter.requires_grad and not shared.requires_grad)
    OPTIMIZERS[lesson.optimizer](
        plan.objective,
        own,
        lesson.limits,
        max_iterations=lesson.schedule.inducing_iterations,
        tolerance=lesson.schedule.tolerance,
    )
    return own


@dataclass(frozen=True)
class Inference:
    """The posteriors of all experts, the log evidence of their rows together, and the largest jitter."""

    experts: list[Expert]
    common: Expert | None
    log_evidence: float
    jitter: float


def infer(
    plans: Sequence[ExpertPlan], hyper: Hyperparameters, *, communicates: bool = False, crew: Crew | None = None
) -> Inference:
    """The posterior of every expert at the shared hyper-parameters; `communicates`: the first is everybody's.

    Experts are independent, given the rows of the communications expert c if there is one (they have them all):
    log p(y) = log p(y_c) + sum_i log p(y_i | y_c).
    """
    crew = crew or Threads()
    if not communicates:
        trained = crew.train(plans, hyper)
        return Inference([t.expert for t in trained], None, sum(t.log_evidence for t in trained), _jitter(trained))
    common, *others = plans
    base = train(common, hyper)
    trained = crew.train(others, hyper, common)
    evidence = base.log_evidence + sum(t.log_evidence - base.log_evidence for t in trained)
    return Inference([t.expert for t in trained], base.expert, evidence, _jitter([base, *trained]))


def _jitter(trained: Sequence[Trained]) -> float:
    return max(t.jitter for t in trained)


def train(plan: ExpertPlan, hyper: Hyperparameters, common: ExpertPlan | None = None) -> Trained:
    """The posterior of an expert, which has seen the rows of `common` too."""
    with torch.no_grad():
        return (plan if common is None else plan.augmented(common)).train(hyper)
