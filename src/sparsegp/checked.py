"""Numbers that a caller gives, as arrays of them; what is no number is an error of ours."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsegp.errors import InputError

Array = NDArray[np.float64]
NO_NUMBERS = {"c": "complex numbers", "m": "durations", "M": "dates"}
"""What numpy would turn into real numbers of its own, by the kind of its type."""
LONGEST = 60
"""Characters of a value in a message."""


def require_unmasked(values: Any, label: str) -> None:
    """Nothing masked: converted to plain numbers, what a mask hides would be learned from."""
    if isinstance(values, np.ma.MaskedArray) and np.any(values.mask):
        raise InputError(
            f"{label} is a masked array with {np.sum(values.mask)} masked values, which are no numbers. "
            "Drop or impute the rows that have them."
        )


def as_array(values: Any, label: str) -> NDArray[Any]:
    """Whatever numpy makes of it, but for parts of unequal length."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{label} must be numbers in a list or an array of one shape: {error}") from error


def as_numbers(values: Any, label: str, hint: str = "") -> Array:
    """Real numbers, of numbers or of text that is one. `hint` says what to do about other values."""
    require_unmasked(values, label)
    array = as_array(values, label)
    kind = array.dtype.kind
    if kind in NO_NUMBERS:
        raise InputError(f"{label} must be numbers; got {NO_NUMBERS[kind]}. {hint}".rstrip())
    try:
        return array.astype(np.float64, copy=False)
    except OverflowError as error:
        raise InputError(f"{label} has a whole number that is too large: above 1.8e308.") from error
    except (TypeError, ValueError) as error:
        raise InputError(f"{label} has values such as {_strange(array)}; expected numbers. {hint}".rstrip()) from error


def _strange(array: NDArray[Any]) -> str:
    """The first value that is no number, cut short."""
    for value in array.ravel().tolist():
        try:
            float(value)
        except (TypeError, ValueError):
            text = repr(value)
            return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return "these"


def checked_coverage(coverage: Any) -> Array:
    """The levels of the ends of a central interval."""
    share = as_numbers(coverage, "coverage")
    if share.ndim or not 0.0 < share < 1.0:
        raise InputError(f"coverage is a probability strictly between 0 and 1; got {coverage!r}.")
    return np.array([(1 - share) / 2, (1 + share) / 2])


def checked_levels(q: Any) -> Array:
    """Levels of quantiles [levels]."""
    levels = np.atleast_1d(as_numbers(q, "q"))
    if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all():
        raise InputError(f"Quantile levels must lie strictly between 0 and 1; got {q!r}.")
    return levels


def checked_targets(y: Any, rows: NDArray[Any]) -> Array:
    """A target for each of `rows`."""
    target = as_numbers(y, "y").ravel()
    if target.shape != rows.shape:
        raise InputError(f"y must have one target for each of the {len(rows)} rows; got {len(target)}.")
    return target
