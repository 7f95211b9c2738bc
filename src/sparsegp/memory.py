"""Memory: how much this process may have, how much of it is free, and errors that say how much was needed.

Limits are those of the machine, of the groups that a container puts the process in (cgroup, version 1 and 2), and of
the process itself (ulimit -v and -d). The least of them counts.
"""

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from functools import cache, wraps
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from sparsegp.errors import MemoryLimitError, SparseGPError

Given = ParamSpec("Given")
Result = TypeVar("Result")

RESERVE_BYTES = 64 * 2**20
"""Left to threads and libraries: what they cannot have ends the process."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 64 * 2**20
LARGEST_FROM_HEAP = 32 * 2**20
SHORTAGE = re.compile(r"allocate|out of memory|can't start new thread|launch worker thread|os error 12", re.IGNORECASE)
ADVICE = (
    "Use fewer inducing inputs (n_inducing=) or dtype='float32', ask for fewer rows at once, or give the rows as a "
    "Parquet file, which 'vfe', 'fitc' and 'pic' read in passes."
)


class Room(NamedTuple):
    """Whose limit it is, how high it is, and how much is free below it, in bytes."""

    owner: str
    limit: float
    free: float


def limit_bytes() -> float:
    """The memory that this process may have, however much of it others use."""
    return min(room.limit for room in rooms())


def available_bytes() -> float:
    """How much more this process can have."""
    return max(0.0, min(room.free for room in rooms()) - RESERVE_BYTES)


def require(n_bytes: float, what: str, advice: str = ADVICE) -> None:
    """Raise before the work begins if the memory would not suffice."""
    if n_bytes > available_bytes():
        least = min(rooms(), key=lambda room: room.free)
        raise MemoryLimitError(
            f"{what} needs about {in_words(n_bytes)} of memory; {in_words(available_bytes())} can be had (the limit of "
            f"{least.owner} is {in_words(least.limit)}). {advice}"
        )


@cache
def keep_freed() -> bool:
    """Once a process; whether there was something to set.

    Temporaries of a chunk (megabytes) go back to the system when they are freed and are faulted in again: a tenth of an
    evaluation, and a third with the MALLOC_TRIM_THRESHOLD_=65536 that Dask gives its workers. These are the values that
    glibc comes to by itself after a larger temporary; other C libraries have no such setting.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    settings = {M_MMAP_THRESHOLD: LARGEST_FROM_HEAP, M_TRIM_THRESHOLD: KEPT_BYTES}
    return all(library.mallopt(name, value) == 1 for name, value in settings.items())


def require_reserve(what: str) -> None:
    """Raise before a thread begins if the memory would not suffice for what nobody can refuse it."""
    least = min(rooms(), key=lambda room: room.free)
    left = max(0.0, least.free)
    if left < RESERVE_BYTES:
        raise MemoryLimitError(
            f"{what} takes a thread, for which {in_words(RESERVE_BYTES)} must be free; {in_words(left)} "
            f"are left below the limit of {least.owner}, {in_words(least.limit)}. {ADVICE}"
        )


def is_shortage(error: BaseException) -> bool:
    """Whether a library could not get the memory, or the thread, that it asked for."""
    return isinstance(error, MemoryError) or bool(SHORTAGE.search(str(error)))


def shortage(error: BaseException) -> MemoryLimitError:
    """What to raise in its place."""
    least = min(rooms(), key=lambda room: room.free)
    return MemoryLimitError(
        f"There is not enough memory: {str(error).strip() or 'a request was refused'}. "
        f"{in_words(least.free)} are left below the limit of {least.owner}, {in_words(least.limit)}. {ADVICE}"
    )


def explained(method: Callable[Given, Result]) -> Callable[Given, Result]:
    """A method that reports every shortage of memory as a MemoryLimitError."""

    @wraps(method)
    def guarded(*given: Given.args, **named: Given.kwargs) -> Result:
        try:
            return method(*given, **named)
        except SparseGPError:
            raise
        except (MemoryError, RuntimeError) as error:
            if not is_shortage(error):
                raise
            raise shortage(error) from error

    return guarded


def in_words(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:,.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:,.0f} MiB"


def rooms(root: Path = Path("/")) -> list[Room]:
    """Every limit that is known. `root` is where the files of the system are."""
    return [_machine(root), *_groups(root), *_process(root)]


def _machine(root: Path) -> Room:
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _text(root / "proc/meminfo"), re.MULTILINE))
    return Room("the machine", total, 1024.0 * float(fields.get("MemAvailable", total / 1024)))


def _groups(root: Path) -> Iterator[Room]:
    """The groups of the process and those around them; a container sees its own group as the outermost."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        most, used = ("limit_in_bytes", "usage_in_bytes") if controllers else ("max", "current")
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            limit, current = (_text(folder / f"memory.{name}").strip() for name in (most, used))
            if limit.isdigit():
                cached = re.search(r"^(?:total_)?inactive_file (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
                taken = float(current or 0) - float(cached[1] if cached else 0)
                yield Room("the container", float(limit), float(limit) - taken)
            if folder == top:
                break


def _process(root: Path) -> Iterator[Room]:
    try:
        import resource  # not on every system
    except ImportError:
        return
    pages = _text(root / "proc/self/statm").split()
    for kind, field in (("RLIMIT_AS", 0), ("RLIMIT_DATA", 5)):
        limit = resource.getrlimit(getattr(resource, kind))[0]
        if limit != resource.RLIM_INFINITY:
            used = float(pages[field]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > field else 0.0
            yield Room("the process (ulimit)", float(limit), limit - used)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
