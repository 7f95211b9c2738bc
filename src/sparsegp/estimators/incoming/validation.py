"""Checks of what a person hands over, with messages that say which row and column to look at."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from sparsegp.errors import InputError
from sparsegp.kernels import Kernel, Stationary

Array = NDArray[np.float64]
USUAL_LENGTHSCALES = (0.02, 1e4)


def require_finite(X: Array, names: Sequence[str] | None) -> None:
    """Every entry finite, or an error that names the first bad column and row."""
    finite = np.isfinite(X)
    if finite.all():
        return
    column = int(np.flatnonzero(~finite.all(axis=0))[0])
    rows = np.flatnonzero(~finite[:, column])
    label = f"column {column}" if names is None else f"column {column} ({names[column]!r})"
    kind = "NaN" if np.isnan(X[rows[0], column]) else "inf"
    raise InputError(
        f"Input X contains {kind}: {label}, row {rows[0]}; {int((~finite).any(axis=1).sum())} of {len(X)} rows have a "
        "NaN or infinity. sparsegp needs finite numbers: drop or impute those rows."
    )


def require_finite_target(y: Any) -> None:
    """Every numeric target finite; anything that is not a vector of numbers is left to scikit-learn's own checks."""
    y = np.asarray(y)
    if y.ndim != 1 or y.dtype.kind != "f":
        return
    bad = np.flatnonzero(~np.isfinite(y))
    if bad.size:
        kind = "NaN" if np.isnan(y[bad[0]]) else "inf"
        raise InputError(f"Input y contains {kind} at row {bad[0]} ({bad.size} of {len(y)} rows). Drop those rows.")


def warn_of_constant_target(y: Array) -> None:
    """Equal targets have no scale to learn: whatever width an interval gets, the rows do not support it."""
    if len(y) and (y == y[0]).all():
        rows = "a single row" if len(y) == 1 else f"{len(y)} rows with the same target"
        warnings.warn(
            f"The model is fitted to {rows}, {y[0]:g}: it predicts this number everywhere, and the width of its "
            "intervals is arbitrary. Give rows with different targets.",
            stacklevel=4,
        )


def row_vector(values: Any, n_rows: int, name: str, *, allow_zero: bool) -> Array | None:
    """A finite, non-negative (or positive) number for each row, or None when not given."""
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0:
        array = np.full(n_rows, float(array))
    if array.shape != (n_rows,):
        raise InputError(
            f"{name} must have one value for each of the {n_rows} rows; got an array of shape {array.shape}."
        )
    smallest_ok = array >= 0 if allow_zero else array > 0
    bad = np.flatnonzero(~(np.isfinite(array) & smallest_ok))
    if bad.size:
        bound = ">= 0" if allow_zero else "> 0"
        raise InputError(f"{name} must be finite and {bound}; row {bad[0]} has {array[bad[0]]} ({bad.size} such rows).")
    return array


def require_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")


def positive_count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1; got {value!r}.")
    return int(value)


def positive_number(name: str, value: Any) -> float:
    if isinstance(value, bool | str):
        raise InputError(f"{name} must be a positive number; got {value!r}.")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a positive number; got {value!r}.") from None
    if not (np.isfinite(number) and number > 0):
        raise InputError(f"{name} must be a positive, finite number; got {value!r}.")
    return number


def warn_of_odd_lengthscales(kernel: Kernel) -> None:
    """A start so short or long, in standard deviations of a column, that learning is unlikely to recover from it."""
    parts = [part for part in kernel.modules() if isinstance(part, Stationary)]
    found = [value for part in parts for value in part.lengthscales.detach().tolist()]
    if found and (min(found) < USUAL_LENGTHSCALES[0] or max(found) > USUAL_LENGTHSCALES[1]):
        warnings.warn(
            f"The kernel starts from lengthscales between {min(found):.2g} and {max(found):.2g} standard deviations of "
            "their columns, from where learning may not recover. Kernel parameters are in the units of the data: give "
            "lengthscales that suit them, or a name such as kernel='matern32' to start from the data.",
            stacklevel=4,
        )


def inducing_array(inducing: Any, n_features: int) -> Array:
    """Given inducing inputs: a finite matrix [M, D]."""
    try:
        array = np.asarray(inducing, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] != n_features:
        raise InputError(
            "inducing must be 'kmeans', 'random', 'greedy' or an array [M, D] with a column for each of the "
            f"{n_features} features; got {type(inducing).__name__} of shape {np.shape(inducing)}."
        )
    require_finite(array, None)
    return array


def seed_of(random_state: Any) -> int:
    """A seed for numpy out of scikit-learn's `random_state`: None, a number, or a RandomState to draw from."""
    return int(check_random_state(random_state).randint(2**31))
