"""Committees on workers: every expert lives on one of them, and only hyper-parameters and gradients travel."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sparsegp.committee.experts import ExpertPlan, Trained
from sparsegp.committee.training import CommitteeObjective, Lesson, Threads, own_inducing, train
from sparsegp.distributed.connecting import connected, worker_threads
from sparsegp.distributed.messages import Gradients, add_gradients, gradients_of, packed, unpacked
from sparsegp.distributed.rounds import gathered, submit
from sparsegp.distributed.worker_tasks import all_threads
from sparsegp.learning.hyperparameters import Hyperparameters


@contextmanager
def crew(client: Any) -> Iterator["DaskCrew"]:
    """The workers of a Dask client, of a cluster, or of the scheduler at an address."""
    with connected(client) as cluster:
        yield DaskCrew(cluster, tuple(worker_threads(cluster)))


@dataclass(frozen=True)
class DaskCrew:
    """`Crew` of a committee. The rows of an expert are sent once, with its plan, to the worker that is its home."""

    client: Any
    homes: tuple[str, ...]
    _placed: dict[int, tuple[ExpertPlan, str, Any]] = field(default_factory=dict, repr=False, compare=False)

    def objective(self, plans: Sequence[ExpertPlan], shared: Hyperparameters) -> "DaskCommitteeObjective":
        placed, message = [self._place(plan) for plan in plans], packed(shared)
        shares = [
            submit(self.client, first_evaluation, [plan for where, plan in placed if where == home], message, home=home)
            for home in self.homes
        ]
        n_rows = sum(plan.objective.n_rows for plan in plans)
        return DaskCommitteeObjective(self.client, self.homes, shares, n_rows)

    def with_learned_inducing(
        self, plans: Sequence[ExpertPlan], hyper: Hyperparameters, lesson: Lesson
    ) -> list[ExpertPlan]:
        message = packed((hyper, replace(lesson, crew=Threads(), on_step=None)))
        learned = self._each(learned_inducing, plans, message)
        return [self._improved(plan, own) for plan, own in zip(plans, learned, strict=True)]

    def train(
        self, plans: Sequence[ExpertPlan], hyper: Hyperparameters, common: ExpertPlan | None = None
    ) -> list[Trained]:
        shared = None if common is None else self._place(common)[1]
        return [unpacked(answer) for answer in self._each(trained, plans, packed(hyper), shared)]

    def _each(self, task: Any, plans: Sequence[ExpertPlan], *given: Any) -> list[Any]:
        placed = [self._place(plan) for plan in plans]
        return gathered(self.client, [submit(self.client, task, plan, *given, home=home) for home, plan in placed])

    def _place(self, plan: ExpertPlan) -> tuple[str, Any]:
        """The home of an expert and the future of its plan there: all wait for the slowest, so rows are balanced."""
        if id(plan) not in self._placed:
            home = min(self.homes, key=self._n_rows)
            with warnings.catch_warnings():
                # Its rows have no other home than the task itself, from which a lost expert is made again.
                warnings.filterwarnings("ignore", message="Sending large graph")
                self._note(plan, home, submit(self.client, unpacked, packed(plan), home=home))
        return self._placed[id(plan)][1:]

    def _n_rows(self, home: str) -> int:
        return sum(plan.objective.n_rows for plan, where, _ in self._placed.values() if where == home)

    def _improved(self, plan: ExpertPlan, own: bytes | None) -> ExpertPlan:
        """With inducing inputs learned by its worker, which has the rows already."""
        if own is None:
            return plan
        home, before = self._place(plan)
        after = plan.with_inducing_of(unpacked(own))
        self._note(after, home, submit(self.client, with_inducing_of, before, own, home=home))
        return after

    def _note(self, plan: ExpertPlan, home: str, future: Any) -> None:
        # the plan is held too: its id must not pass to another one
        self._placed[id(plan)] = (plan, home, future)


@dataclass
class DaskCommitteeObjective:
    """`CommitteeObjective` with a share of the experts on each worker, pre-summed there and added in order.

    `shares` are futures of the last `Evaluation`: experts start where they ended, so a lost share is made again by
    the same evaluations from its plans.
    """

    client: Any
    homes: tuple[str, ...]
    shares: list[Any]
    n_rows: int

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        hyper.clear_gradient()
        vector = hyper.vector()
        self.shares = [
            submit(self.client, next_evaluation, share, vector, home=home)
            for share, home in zip(self.shares, self.homes, strict=True)
        ]
        answers = gathered(self.client, [submit(self.client, answer_of, share) for share in self.shares])
        for _, gradients in answers:
            add_gradients(hyper, gradients)
        return float(sum(value for value, _ in answers))


@dataclass(frozen=True)
class Evaluation:
    """Of one share: its objective, its copy of the shared hyper-parameters, and the sum over its experts."""

    objective: CommitteeObjective
    hyper: Hyperparameters
    value: float = 0.0
    gradients: Gradients = ()


def first_evaluation(plans: list[ExpertPlan], message: bytes) -> Evaluation:
    """Runs on a worker: nothing is evaluated yet."""
    shared = unpacked(message)
    return Evaluation(CommitteeObjective.of(plans, shared), shared)


def next_evaluation(before: Evaluation, vector: Any) -> Evaluation:
    """Runs on a worker."""
    hyper = before.hyper
    hyper.load_vector(vector)
    with all_threads():
        value = before.objective.value_and_gradient(hyper)
    return Evaluation(before.objective, hyper, value, gradients_of(hyper))


def answer_of(evaluation: Evaluation) -> tuple[float, Gradients]:
    return evaluation.value, evaluation.gradients


def learned_inducing(plan: ExpertPlan, message: bytes) -> bytes | None:
    """Runs on a worker: the expert's own hyper-parameters with its learned inducing inputs, if it has any."""
    hyper, lesson = unpacked(message)
    with all_threads():
        own = own_inducing(plan, hyper, lesson)
    return None if own is None else packed(own)


def with_inducing_of(plan: ExpertPlan, own: bytes) -> ExpertPlan:
    """Runs on a worker."""
    return plan.with_inducing_of(unpacked(own))


def trained(plan: ExpertPlan, message: bytes, common: ExpertPlan | None) -> bytes:
    """Runs on a worker."""
    with all_threads():
        return packed(train(plan, unpacked(message), common))
