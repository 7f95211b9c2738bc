"""Experts side by side in threads, one BLAS thread inside each."""

import threading
from collections.abc import Callable, Iterator, Sequence
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
    results: dict[int, Result] = {}
    waiting = Waiting(list(enumerate(items)))

    def serve() -> None:
        for place, item in waiting:
            results[place] = function(item)

    waiting.serve([serve] * n_workers(n_jobs, len(items)))
    return [results[place] for place in range(len(items))]


class Waiting(Iterator[Item]):
    """Items that wait, each given to one thread only. After an error or Ctrl-C, nobody is given another one."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items, self.lock = iter(items), threading.Lock()

    def __next__(self) -> Item:
        with self.lock:
            return next(self.items)

    def serve(self, servers: Sequence[Callable[[], None]]) -> None:
        """Run the servers, who take items, side by side until nothing waits."""
        threads.run(servers, on_end=self.clear)

    def clear(self) -> None:
        with self.lock:
            self.items = iter(())
