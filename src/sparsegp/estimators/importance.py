"""What matters to the predictions: how much worse they get without a column, and what a column does to them.

Both are measured on rows with known targets, best those the model has not seen, and in the columns that the user gave.
Lengthscales do not tell: a short one in a column that hardly matters is still short.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sparsegp.core.predictive import Array
from sparsegp.data.codes import Date
from sparsegp.data.values import days_since_epoch
from sparsegp.errors import InputError
from sparsegp.estimators.given_rows import GivenRows, Values, has_levels, known
from sparsegp.estimators.judging import checked_rows, column_names, origin_of, spread_rows, without_names

SECONDS_OF_A_DAY = 86400
TWO_SIDED_95 = 1.959963984540054


@dataclass(frozen=True)
class ImportanceOptions:
    """How much is computed: rows that are looked at, shuffles of each column, and points of an effect."""

    n_rows: int = 1000
    n_shuffles: int = 5
    n_background: int = 100
    n_points: int = 30
    most_levels: int = 12
    outside: float = 0.01
    """Share of the rows beyond each end of an effect: single rows far out would decide its range."""
    seed: int = 0


@dataclass(frozen=True)
class Importance:
    """How much the RMSE grows when the values of a column are shuffled among the rows, so that they say nothing.

    `mse` is that of the rows as they are, `growth` by how much it is larger with each column shuffled, and `error` the
    standard error of that, from row to row.
    """

    names: tuple[str, ...]
    mse: float
    growth: Array
    error: Array
    n_rows: int

    @classmethod
    def of(cls, model: Any, X: Any, y: Any, options: ImportanceOptions | None = None) -> "Importance":
        """Of rows with known targets."""
        options = options or ImportanceOptions()
        with without_names():
            _, _, target = checked_rows(model, X, y)
        given, rng = GivenRows.of(X, column_names(model)), np.random.default_rng(options.seed)
        index = spread_rows(len(target), options.n_rows)
        if len(index) < 2:
            raise InputError(f"Importance is measured by shuffling rows: give at least 2 of them; got {len(index)}.")
        with without_names():
            squares = (target[index] - model.predict(given.rows(index))) ** 2
            lost = [_lost(model, given, target, index, d, rng, options) for d in range(len(given.names))]
        differences = np.stack(lost) - squares
        error = differences.std(axis=1, ddof=1) / math.sqrt(len(index))
        return cls(given.names, float(squares.mean()), differences.mean(axis=1), error, len(index))

    @property
    def rmse(self) -> float:
        return math.sqrt(self.mse)

    @property
    def rmse_growth(self) -> Array:
        """By how much the RMSE grows without each column; below zero, by chance, for columns that say nothing."""
        return self._rooted(self.growth)

    @property
    def interval(self) -> tuple[Array, Array]:
        """95% intervals of `rmse_growth`."""
        half = TWO_SIDED_95 * self.error
        return self._rooted(self.growth - half), self._rooted(self.growth + half)

    @property
    def order(self) -> list[int]:
        """Columns, the one that matters most first."""
        return [int(d) for d in np.argsort(-self.growth, kind="stable")]

    @property
    def sure(self) -> list[int]:
        """Columns that matter beyond chance, in order."""
        return [d for d in self.order if self.growth[d] > TWO_SIDED_95 * self.error[d] and self.growth[d] > 0.0]

    def _rooted(self, growth: Array) -> Array:
        rooted: Array = np.sqrt(np.clip(self.mse + growth, 0.0, None)) - self.rmse
        return rooted


def _lost(
    model: Any,
    given: GivenRows,
    y: Array,
    index: Any,
    column: int,
    rng: np.random.Generator,
    options: ImportanceOptions,
) -> Array:
    """Squared errors of the rows with a shuffled column, averaged over the shuffles."""
    n, shuffles = len(index), options.n_shuffles
    every = np.tile(index, shuffles)
    taken = np.concatenate([index[rng.permutation(n)] for _ in range(shuffles)])
    mean = model.predict(given.rows(every, {column: given.column(column)[taken]}))
    squares: Array = ((y[every] - mean) ** 2).reshape(shuffles, n).mean(axis=0)
    return squares


@dataclass(frozen=True)
class Effect:
    """The average prediction if a column had the same value in all rows (partial dependence), value after value.

    `lower` and `upper` are a 95% interval of that average: what the model does not know of it. `shares` has the part
    of the rows with each value where the column has `levels`, else None. With a `target_transform` the average is
    taken on the transformed scale, and carried back.
    """

    name: str
    values: Values
    mean: Array
    lower: Array
    upper: Array
    shares: Array | None = None

    @classmethod
    def of(cls, model: Any, X: Any, column: int, options: ImportanceOptions | None = None) -> "Effect":
        """Of the column with this number."""
        options = options or ImportanceOptions()
        given = GivenRows.of(X, column_names(model))
        dates = instants(model, given, column)
        values, shares = _points(given.column(column) if dates is None else dates, options)
        background = spread_rows(len(given), options.n_background)
        # text that is a date goes back as text
        put = values if dates is None else np.array([f"{date}Z" for date in values.astype("datetime64[us]")], object)
        with without_names():
            moments = np.array([_average(model, given, background, column, value) for value in put])
        mean, half = moments[:, 0], TWO_SIDED_95 * moments[:, 1]
        transform = model.judged.transform
        middle, lower, upper = (
            curve if transform is None else transform.inverse(curve) for curve in (mean, mean - half, mean + half)
        )
        return cls(given.names[column], values, middle, lower, upper, shares)

    @property
    def has_levels(self) -> bool:
        return self.shares is not None

    @property
    def span(self) -> float:
        """From the lowest to the highest average."""
        return float(np.ptp(self.mean))


def instants(model: Any, given: GivenRows, column: int) -> Values | None:
    """The moments that the model took the text of a column for; None of a column that is not such text."""
    origin, values = origin_of(model.of_numbers()), given.column(column)
    code = None if origin is None else dict(zip(origin.names, origin.codes, strict=True)).get(given.names[column])
    if not isinstance(code, Date) or code.mean is None or values.dtype.kind != "O":
        return None
    days, _ = days_since_epoch(pa.chunked_array([pa.array(values, from_pandas=True)]), code.zone, code.name)
    seconds = np.where(np.isnan(days), 0.0, days) * SECONDS_OF_A_DAY
    return np.where(np.isnan(days), np.datetime64("NaT"), seconds.round().astype("datetime64[s]"))


def _average(model: Any, given: GivenRows, background: Any, column: int, value: Any) -> tuple[float, float]:
    """Mean and std of the average of f over some rows, all with one value in a column."""
    source = given.column(column)
    same = np.full(len(background), value, dtype=source.dtype)
    joint = model.joint_forecast(given.rows(background, {column: same}), latent=True)
    return float(joint.mean.mean()), math.sqrt(max(float(joint.cov.mean()), 0.0))


def _points(values: Values, options: ImportanceOptions) -> tuple[Values, Array | None]:
    """Where an effect is computed: the commonest levels, or points over the range of the rows."""
    held = values[known(values)]
    if has_levels(held):
        levels, counts = np.unique(held, return_counts=True)
        shown = np.sort(np.argsort(-counts, kind="stable")[: options.most_levels])
        return levels[shown], counts[shown] / len(values)
    if held.dtype.kind in "mM":
        ends, _ = _points(held.astype(np.int64).astype(np.float64), options)
        return ends.astype(np.int64).astype(held.dtype), None
    low, high = np.quantile(held, [options.outside, 1.0 - options.outside])
    points = np.linspace(low, high, options.n_points)
    # between whole numbers there are no rows
    return (np.unique(points.round()) if held.dtype.kind in "iu" else points), None
