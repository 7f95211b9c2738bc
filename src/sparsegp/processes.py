"""An executor of processes of this machine, each of which keeps its items."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self
from uuid import UUID, uuid4
from weakref import finalize

import torch

from sparsegp.errors import SparseGPError
from sparsegp.parallel import (
    Placed,
    Waiting,
    arguments_of,
    costs_of,
    homes_by_cost,
    largest_first,
    packed,
    run,
    unpacked,
)

# loky replaces a process that has grown by 300 MB, which is what taking up items does; here they end soon anyway.
KEPT = {"LOKY_MAX_MEMORY_LEAK_SIZE": str(2**62)}
PARENT_SECONDS = 2.0


@dataclass(frozen=True)
class _Group:
    """Items that were made by the same call. When nobody has a handle of it, the processes forget it."""

    token: UUID


class _Elsewhere:
    """In place of an item that only its process has."""


@dataclass(frozen=True)
class _Held:
    """An item by its number among those of a group in its process, and the item itself where it is here too."""

    group: _Group
    number: int
    item: Any = _Elsewhere

    @property
    def name(self) -> tuple[UUID, int]:
        return self.group.token, self.number


class Processes:
    """`n_workers` processes of this machine. They take a few seconds to start, in the background, and end with `with`.

    Threads wait for one another between their matrix products, because only one at a time runs Python; processes do
    not. Every pool is a single process, which keeps its items. A process that has done with its own takes over items
    that wait elsewhere in `map`, if they are in this process too.
    """

    def __init__(self, n_workers: int) -> None:
        from loky import ProcessPoolExecutor

        self._pools = tuple(
            ProcessPoolExecutor(1, initializer=_prepare, initargs=(os.getpid(),), env=KEPT) for _ in range(n_workers)
        )
        self._forgotten: tuple[deque[UUID], ...] = tuple(deque() for _ in self._pools)
        try:
            with _interrupts_held():
                for pool in self._pools:
                    pool.submit(int)
        except BaseException:
            self.close()
            raise

    @property
    def n_workers(self) -> int:
        return len(self._pools)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown(wait=True, kill_workers=True)

    def place(self, items: Sequence[Any], costs: Sequence[float] | None = None, beside: Placed | None = None) -> Placed:
        cost, group = costs_of(items, costs), self._new_group()
        homes = homes_by_cost(cost, dict.fromkeys(range(self.n_workers), 1), beside)
        placed = Placed(tuple(items), homes, cost)
        mine = placed.by_home()
        asked = [
            self._asked(home, _take_up, group.token, packed([items[k] for k in numbers]))
            for home, numbers in mine.items()
        ]
        for future in asked:
            _result(future)
        number = {k: n for numbers in mine.values() for n, k in enumerate(numbers)}
        held = tuple(_Held(group, number[k], item) for k, item in enumerate(items))
        placed = replace(placed, handles=held)
        return placed if beside is None else beside + placed

    def map(
        self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Sequence[Any] | None = None
    ) -> list[Any]:
        message, given, results = packed((fn, broadcast)), arguments_of(placed, each), dict[int, Any]()
        waiting = Waiting({home: _largest_of(numbers, placed) for home, numbers in placed.by_home().items()})
        can_move = all(held.item is not _Elsewhere for held in placed.handles)

        def answered(home: int, k: int) -> Any:
            held = placed.handles[k]
            item = held.name if placed.homes[k] == home else packed(held.item)
            return unpacked(_result(self._asked(home, _answer, message, item, packed(given[k]))))

        def serve(home: int, k: int | None) -> None:
            while k is not None:
                results[k] = answered(home, k)
                k = waiting.take(home)
                if k is None and can_move:
                    k = waiting.steal()

        # Everybody has an item of its own in hand before anybody takes those of others.
        first = {home: waiting.take(home) for home in range(self.n_workers)}
        if can_move:
            first = {home: waiting.steal() if k is None else k for home, k in first.items()}
        run([partial(serve, home, k) for home, k in first.items() if k is not None], on_end=waiting.clear)
        return [results[k] for k in range(len(placed))]

    def step(
        self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Sequence[Any] | None = None
    ) -> tuple[Placed, list[Any]]:
        message, given, group = packed((fn, broadcast)), arguments_of(placed, each), self._new_group()
        mine, answers, handles = placed.by_home(), dict[int, Any](), dict[int, _Held]()
        asked = []
        for home, numbers in mine.items():
            names, own = [placed.handles[k].name for k in numbers], packed([given[k] for k in numbers])
            asked.append(self._asked(home, _step, message, group.token, names, own))
        for numbers, future in zip(mine.values(), asked, strict=True):
            for number, (k, answer) in enumerate(zip(numbers, unpacked(_result(future)), strict=True)):
                answers[k], handles[k] = answer, _Held(group, number)
        new = replace(placed, handles=tuple(handles[k] for k in range(len(placed))))
        return new, [answers[k] for k in range(len(placed))]

    def _new_group(self) -> _Group:
        group = _Group(uuid4())
        for forgotten in self._forgotten:
            finalize(group, forgotten.append, group.token).atexit = False
        return group

    def _asked(self, home: int, task: Callable[..., Any], *given: Any) -> "Future[Any]":
        forgotten = self._forgotten[home]
        names = [forgotten.popleft() for _ in range(len(forgotten))]
        with _deaths_explained():
            future: Future[Any] = self._pools[home].submit(_forget_and, names, task, *given)
        return future


def _largest_of(numbers: Sequence[int], placed: Placed) -> list[int]:
    return [numbers[n] for n in largest_first([placed.costs[k] for k in numbers])]


def _result(future: "Future[Any]") -> Any:
    with _deaths_explained():
        return future.result()


@contextmanager
def _deaths_explained() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise SparseGPError(
            f"A worker process died: {error}. Most often there is not enough memory for all of them: use fewer "
            "(n_jobs=), smaller pieces (for a committee n_experts=), or backend='threads', which share the rows."
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


_held: dict[UUID, list[Any]] = {}
"""Of a worker process: the items it has, by group."""


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


def _forget_and(tokens: Sequence[UUID], task: Callable[..., Any], *given: Any) -> Any:
    for token in tokens:
        _held.pop(token, None)
    return task(*given)


def _take_up(token: UUID, items: bytes) -> None:
    _held[token] = unpacked(items)


def _answer(message: bytes, item: tuple[UUID, int] | bytes, own: bytes) -> bytes:
    fn, broadcast = unpacked(message)
    found = unpacked(item) if isinstance(item, bytes) else _held[item[0]][item[1]]
    return packed(fn(found, *unpacked(own), *broadcast))


def _step(message: bytes, token: UUID, names: Sequence[tuple[UUID, int]], own: bytes) -> bytes:
    fn, broadcast = unpacked(message)
    results = [fn(_held[group][n], *given, *broadcast) for (group, n), given in zip(names, unpacked(own), strict=True)]
    answers = packed([answer for _, answer in results])
    _held[token] = [new for new, _ in results]
    return answers
