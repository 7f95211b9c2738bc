"""Independent pieces of work on all cores: one thread each, and one BLAS thread inside each of them.

Products and factorisations of a few hundred rows gain little from a second BLAS thread, two of them side by side do.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")


def available() -> int:
    """As many threads as torch would use for one operation."""
    return int(torch.get_num_threads())


def run(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of the tasks, in their order. A single task keeps all BLAS threads."""
    if len(tasks) < 2:
        return [task() for task in tasks]
    before = available()
    try:
        # New threads inherit the treatment of denormal numbers from this one.
        with ThreadPoolExecutor(len(tasks), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return [future.result() for future in [pool.submit(task) for task in tasks]]
    finally:
        torch.set_num_threads(before)
