"""Freed memory that a worker keeps for the next chunk of rows."""

import ctypes
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 64 * 2**20
LARGEST_FROM_HEAP = 32 * 2**20


@cache
def keep_freed_memory() -> bool:
    """Once a process; whether there was something to set.

    Dask starts its workers with MALLOC_TRIM_THRESHOLD_=65536, so that every temporary of a chunk (megabytes) goes back
    to the system and is faulted in again: a third more time an evaluation. These are the values that glibc comes to
    by itself; other C libraries have no such setting.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    settings = {M_MMAP_THRESHOLD: LARGEST_FROM_HEAP, M_TRIM_THRESHOLD: KEPT_BYTES}
    return all(library.mallopt(name, value) == 1 for name, value in settings.items())
