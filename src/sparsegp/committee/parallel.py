"""Experts side by side: a fixed share of them for each thread, one BLAS thread inside each."""

from collections.abc import Callable, Sequence
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

    torch releases the interpreter while it computes and threads share the rows, so nothing is copied. A single
    worker leaves torch all its threads.
    """
    n = n_workers(n_jobs, len(items))
    shares = threads.run([partial(_each, function, items[k::n]) for k in range(n)])
    results: list[Result] = [share[place] for place in range(len(shares[0])) for share in shares if place < len(share)]
    return results


def _each(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [function(item) for item in items]
