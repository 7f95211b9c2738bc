"""Experts in processes of this machine.

Threads wait for one another between their matrix products, because only one at a time runs Python; processes do not.
They take a few seconds to start.
"""

import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsegp import linalg
from sparsegp.committee.experts import ExpertPlan, Trained
from sparsegp.committee.shares import Answer, Share, add_up, answers_of, largest_first, shared_out
from sparsegp.committee.training import CommitteeObjective, Lesson, Threads, own_inducing, train
from sparsegp.errors import SparseGPError
from sparsegp.learning.hyperparameters import Hyperparameters


@contextmanager
def started(n_processes: int) -> Iterator["Processes"]:
    """That many processes; they start in the background and end with the block."""
    from loky import ProcessPoolExecutor

    pools = tuple(ProcessPoolExecutor(1, initializer=_prepare) for _ in range(n_processes))
    try:
        for pool in pools:
            pool.submit(int)
        yield Processes(pools)
    finally:
        for pool in pools:
            pool.shutdown(wait=True, kill_workers=True)


@dataclass(frozen=True)
class Processes:
    """`Crew` of a committee. Every pool is a single process: what it was told first, it has done first."""

    pools: tuple[Executor, ...]

    def objective(self, plans: Sequence[ExpertPlan], shared: Hyperparameters) -> "ProcessObjective":
        shares = shared_out([plan.work for plan in plans], dict.fromkeys(range(len(self.pools)), 1))
        for share in shares:
            _result(self.pools[share.home].submit(_take_up, [plans[place] for place in share.places], shared))
        return ProcessObjective(self.pools, shares, sum(plan.objective.n_rows for plan in plans))

    def with_learned_inducing(
        self, plans: Sequence[ExpertPlan], hyper: Hyperparameters, lesson: Lesson
    ) -> list[ExpertPlan]:
        learned = self._each(_learned_inducing, plans, hyper, replace(lesson, crew=Threads(1), on_step=None))
        return [plan if own is None else plan.with_inducing_of(own) for plan, own in zip(plans, learned, strict=True)]

    def train(
        self, plans: Sequence[ExpertPlan], hyper: Hyperparameters, common: ExpertPlan | None = None
    ) -> list[Trained]:
        return self._each(_trained, plans, hyper, common)

    def _each(self, task: Callable[..., Any], plans: Sequence[ExpertPlan], *given: Any) -> list[Any]:
        """The results of the task for every expert; a process that is done takes the next one."""
        waiting = iter(largest_first([plan.work for plan in plans]))
        results: dict[int, Any] = {}

        def serve(pool: Executor) -> None:
            for place in waiting:
                results[place] = _result(pool.submit(task, plans[place], *given))

        with ThreadPoolExecutor(len(self.pools)) as servers:
            try:
                list(servers.map(serve, self.pools))
            finally:
                # After an error or Ctrl-C, nobody begins another one.
                deque(waiting, maxlen=0)
        return [results[place] for place in range(len(plans))]


@dataclass(frozen=True)
class ProcessObjective:
    """`CommitteeObjective` with a share of the experts in each process, which keeps it for the next evaluation."""

    pools: tuple[Executor, ...]
    shares: list[Share[int]]
    n_rows: int

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        hyper.clear_gradient()
        vector = hyper.vector()
        asked = [self.pools[share.home].submit(_evaluate, vector) for share in self.shares]
        return add_up(hyper, self.shares, [_result(future) for future in asked])


def _result(future: "Future[Any]") -> Any:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise SparseGPError(
            f"A process of the committee died: {error}. Most often there is not enough memory for all of them: use "
            "fewer (n_jobs=), smaller experts (n_experts=), or backend='threads', which share the rows."
        ) from error


_share: CommitteeObjective | None = None
"""Of a process of the committee: the experts it has taken up."""


def _prepare() -> None:
    # Ctrl-C is for the process that waits for this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _take_up(plans: list[ExpertPlan], shared: Hyperparameters) -> None:
    global _share
    _share = CommitteeObjective.of(plans, shared, n_jobs=1)


def _evaluate(vector: NDArray[np.float64]) -> list[Answer]:
    assert _share is not None
    with linalg.flushed_denormals():
        return answers_of(_share, vector)


def _learned_inducing(plan: ExpertPlan, hyper: Hyperparameters, lesson: Lesson) -> Hyperparameters | None:
    with linalg.flushed_denormals():
        return own_inducing(plan, hyper, lesson)


def _trained(plan: ExpertPlan, hyper: Hyperparameters, common: ExpertPlan | None) -> Trained:
    with linalg.flushed_denormals():
        return train(plan, hyper, common)
