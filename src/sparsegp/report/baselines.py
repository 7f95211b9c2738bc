"""What a model must beat: the mean, and a straight line through the same columns."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegp.core.predictive import Array
from sparsegp.estimators.given_rows import GivenRows, Values, known

N_FOLDS = 5
FEWEST_ROWS_PER_TERM = 3
MOST_LEVELS = 30


@dataclass(frozen=True)
class Baselines:
    """RMSE of guessing the mean of the rows, and of a straight line; None where there are too few rows for one.

    The rows of the fit are not at hand. So the line for each fifth of the rows is fitted to the other fifths.
    """

    mean_rmse: float
    line_rmse: float | None

    @classmethod
    def of(cls, rows: GivenRows, y: Array) -> "Baselines":
        terms = _terms(rows)
        enough = len(y) * (N_FOLDS - 1) // N_FOLDS >= FEWEST_ROWS_PER_TERM * terms.shape[1]
        return cls(float(y.std()), _line_rmse(terms, y) if enough else None)


def _line_rmse(terms: Array, y: Array) -> float:
    """Rows are dealt out at random, always in the same way."""
    fold = np.random.default_rng(0).permutation(len(y)) % N_FOLDS
    squares = np.empty(len(y))
    for k in range(N_FOLDS):
        out = fold == k
        coefficients, *_ = np.linalg.lstsq(terms[~out], y[~out], rcond=None)
        # a line beyond the targets it has seen is not what anybody would use
        low, high = y[~out].min(), y[~out].max()
        squares[out] = (y[out] - np.clip(terms[out] @ coefficients, low, high)) ** 2
    return math.sqrt(squares.mean())


def _terms(rows: GivenRows) -> Array:
    """1, every column of numbers in standard units, and an indicator of each level of the others but one."""
    parts: list[Array] = [np.ones((len(rows), 1))]
    for number in range(len(rows.names)):
        parts += _of_column(rows.column(number))
    return np.hstack(parts)


def _of_column(values: Values) -> list[Array]:
    is_known = known(values)
    if values.dtype.kind in "iufbmM":
        numbers: Any = values.astype(np.int64) if values.dtype.kind in "mM" else values
        numbers = np.asarray(numbers, dtype=np.float64)
        held = numbers[is_known]
        if not len(held) or np.ptp(held) == 0.0:
            return []
        scaled = np.where(is_known, (numbers - held.mean()) / held.std(), 0.0)
        return [scaled[:, None]]
    text = np.where(is_known, values.astype(str), "")
    levels, counts = np.unique(text, return_counts=True)
    common = levels[np.argsort(-counts, kind="stable")][: MOST_LEVELS + 1]
    return [(text[:, None] == common[1:]).astype(np.float64)] if len(common) > 1 else []
