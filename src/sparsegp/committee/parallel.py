"""Experts side by side in threads, one BLAS thread inside each."""

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from sparsegp import threads

Item = TypeVar("Item")
Result = TypeVar("Result")


def n_workers(n_jobs: int | None, n_items: int) -> int:
    """Threads to use: n_jobs (None: as many as torch uses), never more than there are items."""
    return max(1, min(n_jobs or threads.available(), n_items))


def map_in_threads(function: Callable[[Item], Result], items: Sequence[Item], n_jobs: int | None) -> list[Result]:
    """[function(item) for item in items]; the order of results does not depend on the number of threads.

    torch releases the interpreter while it computes and threads share the rows, so nothing is copied. A thread that is
    done takes the next item, since experts differ in size. A single worker leaves torch all its threads.
    """
    waiting = _Waiting(items)
    parts = threads.run([partial(_each, function, waiting)] * n_workers(n_jobs, len(items)))
    results = {place: result for part in parts for place, result in part}
    return [results[place] for place in range(len(items))]


class _Waiting(Iterator[tuple[int, Item]]):
    """Items with their places, each given to one thread only."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items, self.lock = iter(enumerate(items)), threading.Lock()

    def __next__(self) -> tuple[int, Item]:
        with self.lock:
            return next(self.items)


def _each(function: Callable[[Item], Result], waiting: _Waiting[Item]) -> list[tuple[int, Result]]:
    return [(place, function(item)) for place, item in waiting]
