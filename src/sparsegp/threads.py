"""Independent pieces of work on all cores: one thread each, and one BLAS thread inside each of them.

Products and factorisations of a few hundred rows gain little from a second BLAS thread, two of them side by side do.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from threadpoolctl import ThreadpoolController

Result = TypeVar("Result")


def available() -> int:
    """As many threads as torch would use for one operation."""
    return int(torch.get_num_threads())


def run(tasks: Sequence[Callable[[], Result]], on_end: Callable[[], None] = lambda: None) -> list[Result]:
    """The results of the tasks, in their order. A single task keeps all BLAS threads.

    `on_end` is called when all are done, or when one of them fails or at Ctrl-C, before the others are waited for.
    """
    if len(tasks) < 2:
        return [task() for task in tasks]
    before = available()
    try:
        # New threads inherit the treatment of denormal numbers from this one.
        pool = ThreadPoolExecutor(len(tasks), initializer=torch.set_num_threads, initargs=(1,))
        with one_scipy_thread(), pool:
            futures = [pool.submit(task) for task in tasks]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                on_end()
            return [future.result() for future in futures]
    finally:
        torch.set_num_threads(before)


@contextmanager
def single() -> Iterator[None]:
    """Within, torch and the OpenMP loops of scikit-learn compute in this thread alone.

    For work on a few thousand rows: a second thread costs more than it gives, and the last digits of sums would depend
    on the number of threads.
    """
    before = available()
    torch.set_num_threads(1)
    try:
        with _all_pools().limit(limits=1, user_api="openmp"):
            yield
    finally:
        torch.set_num_threads(before)


def one_scipy_thread() -> AbstractContextManager[Any]:
    """Within, the BLAS of numpy and scipy has one thread; that of torch keeps its own.

    The vectors of an optimiser are short. OpenBLAS wakes its threads for them all the same, and they spin on a core
    that torch needs. The setting belongs to the process: the first thread that asks controls it, others leave it alone.
    """
    limited: AbstractContextManager[Any] = _openblas().limit(limits=1)
    return limited


@cache
def _openblas() -> ThreadpoolController:
    return _all_pools().select(internal_api="openblas")


@cache
def _all_pools() -> ThreadpoolController:
    return ThreadpoolController()
