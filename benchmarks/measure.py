"""Seconds and peak memory of one piece of work, measured inside the process that does it.

Standard library only, because both our interpreter and the peers' one import it. Linux counts the peak
resident set of a process since the counter was last reset; resetting it after the imports and the loading of
the data makes the difference exactly "peak memory above the data".
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def _status_megabytes(field: str) -> float:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return float(line.split()[1]) / 1024.0
    raise OSError(f"{_STATUS} has no field {field}: peak memory is measured on Linux only")


class PeakMemory:
    """Peak resident megabytes since construction, above the resident set at construction."""

    def __init__(self) -> None:
        _CLEAR_REFS.write_text(_RESET_PEAK)
        self._start_mb = _status_megabytes("VmRSS")

    def above_start_mb(self) -> float:
        return max(0.0, _status_megabytes("VmHWM") - self._start_mb)


@dataclass(frozen=True)
class Timing:
    """Median and all single times of the repeats of one call, after the warm-up calls."""

    median: float
    repeats: list[float]

    def as_facts(self) -> dict[str, Any]:
        return {"seconds": self.median, "repeats": self.repeats}


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median_seconds(work: Callable[[], object], repeats: int = 5, warmup: int = 1) -> Timing:
    """Median wall-clock seconds of `work()` over `repeats` calls, after `warmup` uncounted ones."""
    for _ in range(warmup):
        work()
    times = [seconds_of(work) for _ in range(repeats)]
    return Timing(statistics.median(times), times)
