"""Rows along one or two columns, the others at their medians."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsegp.errors import InputError
from sparsegp.estimators.predictive import Array

MARGIN = 0.05


def column_number(feature: Any, names: Sequence[str]) -> int:
    """The number of a column given by its name or number."""
    if isinstance(feature, str) and feature in names:
        return list(names).index(feature)
    if isinstance(feature, int | np.integer) and not isinstance(feature, bool) and 0 <= feature < len(names):
        return int(feature)
    raise InputError(
        f"A feature is a column's name or a number from 0 to {len(names) - 1}; got {feature!r}. "
        f"The columns are {', '.join(names[:20])}."
    )


def column_grid(values: Array, n_points: int) -> Array:
    """Evenly spaced points over the range of a column and a little beyond."""
    low, high = float(values.min()), float(values.max())
    margin = MARGIN * (high - low) or 1.0
    return np.linspace(low - margin, high + margin, n_points)


def slice_rows(X: Array, columns: Sequence[int], values: Sequence[Array]) -> Array:
    """Rows at the medians of X, with the given values in some columns."""
    rows = np.tile(np.median(X, axis=0), (len(values[0]), 1))
    for column, own in zip(columns, values, strict=True):
        rows[:, column] = own
    return rows
