"""Committees on workers: every expert lives on one of them, and only hyper-parameters and gradients travel."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sparsegp.committee.experts import ExpertPlan, Trained
from sparsegp.committee.shares import Answer, Share, add_up, answers_of, largest_first, shared_out
from sparsegp.committee.training import CommitteeObjective, Lesson, Threads, own_inducing, train
from sparsegp.distributed.connecting import connected, worker_threads
from sparsegp.distributed.messages import packed, unpacked
from sparsegp.distributed.rounds import gathered, submit
from sparsegp.distributed.worker_tasks import all_threads, torch_threads
from sparsegp.learning.hyperparameters import Hyperparameters


@contextmanager
def crew(client: Any) -> Iterator["DaskCrew"]:
    """The workers of a Dask client, of a cluster, or of the scheduler at an address."""
    with connected(client) as cluster:
        yield DaskCrew(cluster, worker_threads(cluster))


@dataclass(frozen=True)
class Placed:
    """An expert's plan, the worker that is its home, and the future of the plan there."""

    plan: ExpertPlan
    home: str
    future: Any


@dataclass(frozen=True)
class DaskCrew:
    """`Crew` of a committee. The rows of an expert are sent once, with its plan, to the worker that is its home."""

    client: Any
    n_threads: Mapping[str, int]
    # By the id of the plan, which must not pass to another one: `Placed` holds the plan.
    _placed: dict[int, Placed] = field(default_factory=dict, repr=False, compare=False)

    def objective(self, plans: Sequence[ExpertPlan], shared: Hyperparameters) -> "DaskCommitteeObjective":
        shares, message = self._share_out(plans), packed(shared)
        last = [
            submit(self.client, first_evaluation, self._futures(plans, share), message, home=share.home)
            for share in shares
        ]
        return DaskCommitteeObjective(self.client, shares, last, sum(plan.objective.n_rows for plan in plans))

    def with_learned_inducing(
        self, plans: Sequence[ExpertPlan], hyper: Hyperparameters, lesson: Lesson
    ) -> list[ExpertPlan]:
        message = packed((hyper, replace(lesson, crew=Threads(), on_step=None)))
        learned = self._each(learned_inducing, plans, message)
        return [self._improved(plan, own) for plan, own in zip(plans, learned, strict=True)]

    def train(
        self, plans: Sequence[ExpertPlan], hyper: Hyperparameters, common: ExpertPlan | None = None
    ) -> list[Trained]:
        if common is not None:
            self._share_out([common])
        shared = None if common is None else self._placed[id(common)].future
        return [unpacked(answer) for answer in self._each(trained, plans, packed(hyper), shared)]

    def _each(self, task: Any, plans: Sequence[ExpertPlan], *given: Any) -> list[Any]:
        """One task an expert; a worker runs as many side by side as it has threads."""
        self._share_out(plans)
        n_threads = max(1, sum(self.n_threads.values()) // max(1, len(plans)))
        futures: dict[int, Any] = {}
        for place in largest_first([plan.work for plan in plans]):
            placed = self._placed[id(plans[place])]
            futures[place] = submit(self.client, task, n_threads, placed.future, *given, home=placed.home)
        return gathered(self.client, [futures[place] for place in range(len(plans))])

    def _share_out(self, plans: Sequence[ExpertPlan]) -> list[Share[str]]:
        """Every expert has a home, which has its plan."""
        settled = {k: self._placed[id(plan)].home for k, plan in enumerate(plans) if id(plan) in self._placed}
        shares = shared_out([plan.work for plan in plans], self.n_threads, settled)
        for share in shares:
            for place in share.places:
                if place not in settled:
                    self._send(plans[place], share.home)
        return shares

    def _send(self, plan: ExpertPlan, home: str) -> None:
        with warnings.catch_warnings():
            # Its rows have no other home than the task itself, from which a lost expert is made again.
            warnings.filterwarnings("ignore", message="Sending large graph")
            self._placed[id(plan)] = Placed(plan, home, submit(self.client, unpacked, packed(plan), home=home))

    def _futures(self, plans: Sequence[ExpertPlan], share: Share[str]) -> list[Any]:
        return [self._placed[id(plans[place])].future for place in share.places]

    def _improved(self, plan: ExpertPlan, own: bytes | None) -> ExpertPlan:
        """With inducing inputs learned by its worker, which has the rows already."""
        if own is None:
            return plan
        before, after = self._placed[id(plan)], plan.with_inducing_of(unpacked(own))
        future = submit(self.client, with_inducing_of, before.future, own, home=before.home)
        self._placed[id(after)] = Placed(after, before.home, future)
        return after


@dataclass
class DaskCommitteeObjective:
    """`CommitteeObjective` with a share of the experts on each worker.

    `last` are futures of the last `Evaluation` of each share: experts start where they ended, so a lost share is made
    again by the same evaluations from its plans.
    """

    client: Any
    shares: list[Share[str]]
    last: list[Any]
    n_rows: int

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        hyper.clear_gradient()
        vector = hyper.vector()
        last = [
            submit(self.client, next_evaluation, before, vector, home=share.home)
            for before, share in zip(self.last, self.shares, strict=True)
        ]
        answers = gathered(self.client, [submit(self.client, said, evaluation) for evaluation in last])
        # Not before: an optimiser that goes back after a failed factorisation must not build on the failure.
        self.last = last
        return add_up(hyper, self.shares, answers)


@dataclass(frozen=True)
class Evaluation:
    """Of one share: its objective, and what its experts said last."""

    objective: CommitteeObjective
    answers: Sequence[Answer] = ()


def first_evaluation(plans: list[ExpertPlan], message: bytes) -> Evaluation:
    """Runs on a worker: nothing is evaluated yet."""
    return Evaluation(CommitteeObjective.of(plans, unpacked(message)))


def next_evaluation(before: Evaluation, vector: Any) -> Evaluation:
    """Runs on a worker."""
    with all_threads():
        return Evaluation(before.objective, answers_of(before.objective, vector))


def said(evaluation: Evaluation) -> Sequence[Answer]:
    """Runs on a worker."""
    return evaluation.answers


def learned_inducing(n_threads: int, plan: ExpertPlan, message: bytes) -> bytes | None:
    """Runs on a worker: the expert's own hyper-parameters with its learned inducing inputs, if it has any."""
    hyper, lesson = unpacked(message)
    with torch_threads(n_threads):
        own = own_inducing(plan, hyper, lesson)
    return None if own is None else packed(own)


def with_inducing_of(plan: ExpertPlan, own: bytes) -> ExpertPlan:
    """Runs on a worker."""
    return plan.with_inducing_of(unpacked(own))


def trained(n_threads: int, plan: ExpertPlan, message: bytes, common: ExpertPlan | None) -> bytes:
    """Runs on a worker."""
    with torch_threads(n_threads):
        return packed(train(plan, unpacked(message), common))
