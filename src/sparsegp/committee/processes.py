"""Experts in processes of this machine.

Threads wait for one another between their matrix products, because only one at a time runs Python; processes do not.
They take a few seconds to start.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import torch
from numpy.typing import NDArray

from sparsegp import linalg
from sparsegp.committee.experts import ExpertPlan, Trained
from sparsegp.committee.parallel import Waiting
from sparsegp.committee.shares import Answer, Share, add_up, answers_of, largest_first, shared_out
from sparsegp.committee.training import CommitteeObjective, Lesson, Threads, own_inducing, train
from sparsegp.errors import SparseGPError
from sparsegp.learning.hyperparameters import Hyperparameters

# loky replaces a process that has grown by 300 MB, which is what taking up experts does; here they end soon anyway.
KEPT = {"LOKY_MAX_MEMORY_LEAK_SIZE": str(2**62)}
PARENT_SECONDS = 2.0


@contextmanager
def started(n_processes: int) -> Iterator["Processes"]:
    """That many processes; they start in the background and end with the block."""
    from loky import ProcessPoolExecutor

    pools = tuple(
        ProcessPoolExecutor(1, initializer=_prepare, initargs=(os.getpid(),), env=KEPT) for _ in range(n_processes)
    )
    try:
        with _interrupts_held():
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
        shares, token = shared_out([plan.work for plan in plans], dict.fromkeys(range(len(self.pools)), 1)), uuid4()
        for share in shares:
            _result(_asked(self.pools[share.home], _take_up, token, [plans[k] for k in share.places], shared))
        return ProcessObjective(self.pools, shares, token, sum(plan.objective.n_rows for plan in plans))

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
        """The results of the task for every expert; a process that is done takes the next one, the largest first."""
        results: dict[int, Any] = {}
        waiting = Waiting(largest_first([plan.work for plan in plans]))

        def serve(pool: Executor) -> None:
            for place in waiting:
                results[place] = _result(_asked(pool, task, plans[place], *given))

        waiting.serve([partial(serve, pool) for pool in self.pools])
        return [results[place] for place in range(len(plans))]


@dataclass(frozen=True)
class ProcessObjective:
    """`CommitteeObjective` with a share of the experts in each process, which keeps it for the next evaluation."""

    pools: tuple[Executor, ...]
    shares: list[Share[int]]
    token: UUID
    n_rows: int

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        hyper.clear_gradient()
        vector = hyper.vector()
        asked = [_asked(self.pools[share.home], _evaluate, self.token, vector) for share in self.shares]
        return add_up(hyper, self.shares, [_result(future) for future in asked])


def _asked(pool: Executor, task: Callable[..., Any], *given: Any) -> "Future[Any]":
    with _deaths_explained():
        return pool.submit(task, *given)


def _result(future: "Future[Any]") -> Any:
    with _deaths_explained():
        return future.result()


@contextmanager
def _deaths_explained() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise SparseGPError(
            f"A process of the committee died: {error}. Most often there is not enough memory for all of them: use "
            "fewer (n_jobs=), smaller experts (n_experts=), or backend='threads', which share the rows."
        ) from error


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Within, Ctrl-C waits, and processes that start inherit that: they must not die of it before they are ready."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_share: tuple[UUID, CommitteeObjective] | None = None
"""Of a process of the committee: the experts it has taken up last."""


def _prepare(parent: int) -> None:
    # Ctrl-C is for the process that waits for this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A parent that was killed could not say goodbye."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def _take_up(token: UUID, plans: list[ExpertPlan], shared: Hyperparameters) -> None:
    global _share
    _share = token, CommitteeObjective.of(plans, shared, n_jobs=1)


def _evaluate(token: UUID, vector: NDArray[np.float64]) -> list[Answer]:
    if _share is None or _share[0] != token:
        raise SparseGPError(
            "A process of the committee has other experts than it is asked about: make the objective again."
        )
    with linalg.flushed_denormals():
        return answers_of(_share[1], vector)


def _learned_inducing(plan: ExpertPlan, hyper: Hyperparameters, lesson: Lesson) -> Hyperparameters | None:
    with linalg.flushed_denormals():
        return own_inducing(plan, hyper, lesson)


def _trained(plan: ExpertPlan, hyper: Hyperparameters, common: ExpertPlan | None) -> Trained:
    with linalg.flushed_denormals():
        return train(plan, hyper, common)
