"""The prediction along one column, with its interval, and maps of it over two."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sparsegp.core.predictive import Array
from sparsegp.display.axes import (
    BLUE,
    GREY,
    MOST_POINTS,
    ORANGE,
    Display,
    column_number,
    label_axes,
    legend_above,
)
from sparsegp.errors import InputError
from sparsegp.estimators.judging import checked_rows, column_names, origin_of, spread_rows, without_names

MAP_POINTS = 500


@dataclass
class PredictionDisplay(Display):
    """Mean and central interval of y along a column; with more columns, a slice at the medians of the others."""

    x: Array
    mean: Array
    lower: Array
    upper: Array
    coverage: float
    feature_name: str
    x_rows: Array
    y_rows: Array
    is_slice: bool
    inducing: Array | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        feature: int | str = 0,
        coverage: float = 0.95,
        n_points: int = 200,
        ax: Any = None,
    ) -> Self:
        """Draw mean and interval along one column. The other columns are at their medians.

        Parameters
        ----------
        estimator : estimator
            A fitted model.
        X : array or table of shape (n_rows, n_features)
            Rows, best rows that the model has not seen.
        y : array of shape (n_rows,)
            Their targets.
        feature : int or str, default=0
            The column, by number or name.
        coverage : float, default=0.95
            Coverage of the interval.
        n_points : int, default=200
            Number of points of the curve.
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        PredictionDisplay
            The picture. `ax_` and `figure_` are for your own changes.

        Raises
        ------
        MissingPackageError
            If matplotlib is not installed.
        InputError
            If an argument cannot be used.
        """
        estimator, rows, target = checked_rows(estimator, X, y)
        names = column_names(estimator)
        column = column_number(feature, names)
        grid = _column_grid(rows[:, column], n_points)
        at = _slice_rows(estimator, rows, [column], [grid])
        with without_names():
            mean, (lower, upper) = estimator.predict(at), estimator.predict_interval(at, coverage)
        shown = spread_rows(len(rows), MOST_POINTS)
        inducing = estimator.judged.inducing if len(names) == 1 else None
        return cls(
            x=grid,
            mean=mean,
            lower=lower,
            upper=upper,
            coverage=coverage,
            feature_name=names[column],
            x_rows=rows[shown, column],
            y_rows=target[shown],
            is_slice=len(names) > 1,
            inducing=None if inducing is None else inducing[:, 0],
        ).plot(ax)

    def _draw(self) -> None:
        rows = "rows (their other columns differ)" if self.is_slice else "rows"
        alpha = 0.25 if self.is_slice else 0.6
        self.ax_.scatter(self.x_rows, self.y_rows, s=6, color=GREY, alpha=alpha, label=rows, rasterized=True, lw=0)
        interval = f"{self.coverage:.0%} interval"
        self.ax_.fill_between(self.x, self.lower, self.upper, color=BLUE, alpha=0.25, lw=0, label=interval)
        mean = "mean (other columns at their medians)" if self.is_slice else "mean"
        self.ax_.plot(self.x, self.mean, color=BLUE, lw=1.8, label=mean)
        if self.inducing is not None:
            self._mark_inducing(self.inducing)
        label_axes(self.ax_, self.feature_name, "y")
        self.ax_.set_xlim(self.x[0], self.x[-1])
        legend_above(self.ax_)

    def _mark_inducing(self, inducing: Array) -> None:
        bottom = np.zeros(len(inducing))
        edge = self.ax_.get_xaxis_transform()
        self.ax_.plot(inducing, bottom, "|", color=ORANGE, ms=9, transform=edge, label="inducing inputs")


@dataclass
class MapDisplay(Display):
    """Mean and standard deviation of y over two columns, the others at their medians.

    `rows` are given rows, drawn as points. Inducing inputs are shown where the model has just two columns, the edges of
    blocks where it has blocks. `mean`, `std` and `blocks` have a row for each entry of `y`.
    """

    n_axes = 2

    x: Array
    y: Array
    mean: Array
    std: Array
    feature_names: tuple[str, str]
    inducing: Array | None = None
    blocks: NDArray[np.int64] | None = None
    rows: Array | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        features: tuple[int | str, int | str] = (0, 1),
        n_points: int = 60,
        ax: Any = None,
    ) -> Self:
        """Draw mean and standard deviation as maps of two columns. The other columns are at their medians.

        Parameters
        ----------
        estimator : estimator
            A fitted model.
        X : array or table of shape (n_rows, n_features)
            Rows, best rows that the model has not seen.
        y : array of shape (n_rows,)
            Their targets.
        features : pair of int or str, default=(0, 1)
            The two columns, by number or name.
        n_points : int, default=60
            Points of the grid in each direction.
        ax : pair of matplotlib Axes, default=None
            Where to draw. None makes a new figure with two panels.

        Returns
        -------
        MapDisplay
            The picture. `ax_` and `figure_` are for your own changes.

        Raises
        ------
        MissingPackageError
            If matplotlib is not installed.
        InputError
            If an argument cannot be used.
        """
        estimator, rows, _ = checked_rows(estimator, X, y)
        names = column_names(estimator)
        if len(names) < 2:
            raise InputError("A map needs two columns and this model has one: use PredictionDisplay.")
        first, second = (column_number(feature, names) for feature in features)
        axes = _column_grid(rows[:, first], n_points), _column_grid(rows[:, second], n_points)
        at = _slice_rows(estimator, rows, [first, second], [part.ravel() for part in np.meshgrid(*axes)])
        with without_names():
            mean, std = estimator.predict(at, return_std=True)
        inducing = estimator.judged.inducing if len(names) == 2 else None
        blocks = estimator.judged.blocks_at(at)
        shape = n_points, n_points
        return cls(
            *axes,
            mean.reshape(shape),
            std.reshape(shape),
            (names[first], names[second]),
            None if inducing is None else inducing[:, [first, second]],
            None if blocks is None else blocks.reshape(shape),
            rows[:: math.ceil(len(rows) / MAP_POINTS), [first, second]],
        ).plot(ax)

    def _draw(self) -> None:
        for axes, values, title, colours in zip(
            self.ax_, (self.mean, self.std), ("Mean", "Standard deviation"), ("viridis", "magma"), strict=True
        ):
            colour_map = axes.pcolormesh(self.x, self.y, values, cmap=colours, shading="nearest", rasterized=True)
            axes.figure.colorbar(colour_map, ax=axes)
            if self.blocks is not None:
                self._draw_edges(axes, self.blocks)
            if self.rows is not None:
                axes.plot(*self.rows.T, ".", color="white", ms=2, mew=0, alpha=0.6, rasterized=True)
            if self.inducing is not None:
                axes.plot(*self.inducing.T, "+", color=ORANGE, ms=5, mew=1.2)
            axes.set_xlim(self.x[0], self.x[-1])
            axes.set_ylim(self.y[0], self.y[-1])
            label_axes(axes, *self.feature_names, title)

    def _draw_edges(self, axes: Any, blocks: NDArray[np.int64]) -> None:
        """A line between neighbouring points of the grid that belong to different blocks."""
        x, y = (_edges(points) for points in (self.x, self.y))
        i, j = np.nonzero(blocks[:, 1:] != blocks[:, :-1])
        axes.vlines(x[j + 1], y[i], y[i + 1], color="white", lw=0.7)
        i, j = np.nonzero(blocks[1:] != blocks[:-1])
        axes.hlines(y[i + 1], x[j], x[j + 1], color="white", lw=0.7)


def _edges(points: Array) -> Array:
    step = points[1] - points[0]
    return np.append(points - 0.5 * step, points[-1] + 0.5 * step)


def _column_grid(values: Array, n_points: int) -> Array:
    """Evenly spaced points over the range of a column; around the one value of a constant column."""
    low, high = float(values.min()), float(values.max())
    margin = 0.0 if high > low else 1.0
    return np.linspace(low - margin, high + margin, n_points)


def _slice_rows(model: Any, X: Array, columns: Sequence[int], values: Sequence[Array]) -> Array:
    """Rows at the medians of X, and at the commonest levels, with the given values in some columns."""
    origin = origin_of(model)
    rows = np.tile(np.median(X, axis=0) if origin is None else origin.typical(X), (len(values[0]), 1))
    for column, own in zip(columns, values, strict=True):
        rows[:, column] = own
    return rows
