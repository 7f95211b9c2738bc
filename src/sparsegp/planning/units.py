"""Seconds, bytes and counts as people say them."""

_TIMES = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))
_SIZES = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"))
LONG_UNTIL = 1.5


def duration(seconds: float) -> str:
    """Like 0.3 s, 12 s, 4.1 min, 2.6 h, 3.2 d."""
    for size, name in _TIMES:
        if seconds >= LONG_UNTIL * size:
            return f"{_short(seconds / size)} {name}"
    return f"{_short(seconds)} s"


def size(n_bytes: float) -> str:
    """Like 12 MB or 1.3 GB; nothing below a tenth of a megabyte is told."""
    for unit, name in _SIZES:
        if n_bytes >= unit:
            return f"{_short(n_bytes / unit)} {name}"
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes >= 1e5 else "0"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.1 else f"{value:.2g}"
