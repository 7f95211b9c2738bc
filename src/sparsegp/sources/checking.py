"""Checks of the numbers of a batch, with messages that name file, row group, column and row."""

import numpy as np
from numpy.typing import NDArray

from sparsegp.errors import InputError
from sparsegp.sources.batch import Array, Batch


def require_valid(batch: Batch, names: tuple[str, ...] | None) -> None:
    """Inputs and targets finite, noise variances positive, weights not negative; else an error for the first row."""
    finite = np.isfinite(batch.X)
    if not finite.all():
        column = int(np.flatnonzero(~finite.all(axis=0))[0])
        label = f"column {column}" if names is None else f"column {names[column]!r}"
        _refuse(batch, label, batch.X[:, column], ~finite[:, column], "a finite number")
    if not np.isfinite(batch.y).all():
        _refuse(batch, "the target", batch.y, ~np.isfinite(batch.y), "a finite number")
    if batch.noise_var is not None:
        _require(batch, "the noise variance", batch.noise_var, batch.noise_var > 0, "finite and > 0")
    if batch.weight is not None:
        _require(batch, "the weight", batch.weight, batch.weight >= 0, "finite and >= 0")


def _require(batch: Batch, label: str, values: Array, in_range: NDArray[np.bool_], expected: str) -> None:
    valid = in_range & np.isfinite(values)
    if not valid.all():
        _refuse(batch, label, values, ~valid, expected)


def _refuse(batch: Batch, label: str, values: Array, bad: NDArray[np.bool_], expected: str) -> None:
    row = int(np.flatnonzero(bad)[0])
    value = "NaN or missing" if np.isnan(values[row]) else f"{values[row]:g}"
    raise InputError(
        f"{batch.place.row(row)}: {label} is {value}; expected {expected}. {int(bad.sum())} of the {len(batch)} rows "
        "read there are like that. Drop or impute them."
    )
