"""Numbers as a reader of a page expects them: few digits, and no powers of ten in ordinary sizes."""

import math

LARGEST, LONG, SMALLEST = 1e9, 1e4, 1e-4


def shown(number: float, digits: int = 4) -> str:
    """With so many digits that count, and all those before the point: 12,350 and not 1.235e+04."""
    rounded = float(f"{number:.{digits}g}") if math.isfinite(number) else number
    if LONG <= abs(rounded) < LARGEST:
        return f"{rounded:,.0f}"
    if 0.0 < abs(rounded) < SMALLEST or not abs(rounded) < LARGEST:
        return f"{number:.{digits}g}"
    text = f"{rounded:.{max(digits - 1 - _magnitude(rounded), 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _magnitude(number: float) -> int:
    return math.floor(math.log10(abs(number))) if number else 0
