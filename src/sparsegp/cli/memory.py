"""Peak memory of this process (Linux)."""

import resource
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak() -> None:
    """Start counting the peak anew, where the system allows it."""
    try:
        RESET.write_text("5")
    except OSError:
        return


def peak_megabytes() -> float:
    """Largest resident memory since `reset_peak` (since the start, where that is not possible)."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(peak) * 1024 / 1e6
