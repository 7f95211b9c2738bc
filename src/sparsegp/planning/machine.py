"""A machine as the cost model sees it: its memory, how much of each kind of work it does in a second; and this one."""

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from typing import Any

import torch

from sparsegp import memory, parallel
from sparsegp.core.block import CHUNK_ROWS
from sparsegp.errors import InputError

SECONDS_EACH = 0.1
REPEATS = 3
INDUCING = 512
CACHED_ENTRIES = 2**15
LARGE_ENTRIES = 2**21
FILE_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Machine:
    """One machine with all its cores at work.

    Parameters
    ----------
    cores, memory_bytes : threads that compute, and memory that a fit may use.
    flops_per_second : float64 operations in matrix products of some hundred rows and columns.
    exps_per_second : exponentials.
    memory_bytes_per_second : read and written by sums of arrays that are larger than the caches.
    disk_bytes_per_second : read from files that are not in memory yet.
    network_bytes_per_second : through the link of one machine; the default is 10 Gbit/s.
    round_seconds, task_seconds : of a cluster's scheduler, for a round and for each worker in it.
    """

    cores: int
    memory_bytes: float
    flops_per_second: float
    exps_per_second: float
    memory_bytes_per_second: float
    disk_bytes_per_second: float
    network_bytes_per_second: float = 1.25e9
    round_seconds: float = 0.02
    task_seconds: float = 0.001

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise InputError(f"Machine.{part.name} must be a positive, finite number; got {value!r}.")

    @classmethod
    def of(cls, given: Any) -> "Machine":
        """The machine itself, or one from the mapping that `to_dict` gave."""
        if isinstance(given, Machine):
            return given
        if not isinstance(given, Mapping):
            raise InputError(
                f"machine must be a sparsegp.planning.Machine or the mapping of its fields; got {type(given).__name__}."
            )
        names = [part.name for part in fields(cls)]
        needed = names[: names.index("network_bytes_per_second")]
        missing, unknown = [name for name in needed if name not in given], [name for name in given if name not in names]
        if missing or unknown:
            raise InputError(
                f"A machine has the fields {', '.join(names)}; missing: {', '.join(missing) or 'none'}, "
                f"unknown: {', '.join(map(str, unknown)) or 'none'}. `sparsegp.planning.measured()` gives this one's."
            )
        return cls(**given)

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


@cache
def measured() -> Machine:
    """This machine with the threads that torch uses. Measured once in a process; keep `to_dict()` for others."""
    return Machine(
        cores=parallel.available(),
        memory_bytes=memory.limit_bytes(),
        flops_per_second=2.0 * CHUNK_ROWS * INDUCING**2 * _calls_per_second(_products),
        exps_per_second=CACHED_ENTRIES * _calls_per_second(_exps),
        memory_bytes_per_second=3.0 * 8.0 * LARGE_ENTRIES * _calls_per_second(_sums),
        disk_bytes_per_second=_disk_bytes_per_second(),
    )


def _products() -> Callable[[], object]:
    A, B = torch.ones(CHUNK_ROWS, INDUCING, dtype=torch.float64), torch.ones(INDUCING, INDUCING, dtype=torch.float64)
    return partial(torch.mm, A, B, out=torch.empty_like(A))


def _exps() -> Callable[[], object]:
    values = torch.linspace(-5.0, 0.0, CACHED_ENTRIES, dtype=torch.float64)
    return partial(torch.exp, values, out=torch.empty_like(values))


def _sums() -> Callable[[], object]:
    first, second = torch.ones(2, LARGE_ENTRIES, dtype=torch.float64)
    return partial(torch.add, first, second, out=torch.empty_like(first))


def _calls_per_second(make: Callable[[], Callable[[], object]]) -> float:
    """Of all threads together, each with operands of its own: the best of some trials, which others disturb least."""
    works = [make() for _ in range(parallel.available())]
    trials = [sum(parallel.run([partial(_pace, work) for work in works])) for _ in range(REPEATS)]
    return max(trials)


def _pace(work: Callable[[], object]) -> float:
    """Calls a second of one thread."""
    work()
    started, calls = time.perf_counter(), 0
    while (seconds := time.perf_counter() - started) < SECONDS_EACH:
        work()
        calls += 1
    return max(calls, 1) / seconds


def _disk_bytes_per_second() -> float:
    """Reading a file that was written and then dropped from memory, where the system does that on request."""
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(2**20) * (FILE_BYTES // 2**20))
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        started = time.perf_counter()
        while file.read(2**20):
            pass
        return FILE_BYTES / (time.perf_counter() - started)
