"""The prediction along one column, with its interval, and maps of it over two."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sparsegp.core.predictive import Array
from sparsegp.display.axes import BLUE, GREY, MOST_POINTS, ORANGE, label_axes, panels
from sparsegp.errors import InputError
from sparsegp.estimators.diagnosis import (
    blocks_at,
    checked_rows,
    column_names,
    inducing_of,
    origin_of,
    spread_rows,
    without_names,
)

MARGIN = 0.05


@dataclass
class PredictionDisplay:
    """Mean and central interval of y along a column; with more columns, a slice at the medians of the others.

    After `plot`: `ax_` and `figure_`.
    """

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
    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)

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
        """Predict along the column `feature`, over its range in X, and plot."""
        estimator, rows, target = checked_rows(estimator, X, y)
        names = column_names(estimator)
        column = _column_number(feature, names)
        grid = _column_grid(rows[:, column], n_points)
        at = _slice_rows(estimator, rows, [column], [grid])
        with without_names():
            mean, (lower, upper) = estimator.predict(at), estimator.predict_interval(at, coverage)
        shown = spread_rows(len(rows), MOST_POINTS)
        inducing = inducing_of(estimator) if len(names) == 1 else None
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

    def plot(self, ax: Any = None) -> Self:
        """Draw on the given axes, or on new ones."""
        self.figure_, (self.ax_,) = panels(ax, 1)
        rows = "rows (their other columns differ)" if self.is_slice else "rows"
        alpha = 0.25 if self.is_slice else 0.6
        self.ax_.scatter(self.x_rows, self.y_rows, s=6, color=GREY, alpha=alpha, label=rows, rasterized=True, lw=0)
        interval = f"{self.coverage:.0%} interval"
        self.ax_.fill_between(self.x, self.lower, self.upper, color=BLUE, alpha=0.25, lw=0, label=interval)
        self.ax_.plot(self.x, self.mean, color=BLUE, lw=1.8, label="mean")
        if self.inducing is not None:
            self._mark_inducing(self.inducing)
        label_axes(self.ax_, self.feature_name, "y", "Others at their medians" if self.is_slice else "")
        self.ax_.legend(fontsize="small", framealpha=0.0, loc="upper right")
        return self

    def _mark_inducing(self, inducing: Array) -> None:
        bottom = np.zeros(len(inducing))
        edge = self.ax_.get_xaxis_transform()
        self.ax_.plot(inducing, bottom, "|", color=ORANGE, ms=9, transform=edge, label="inducing inputs")


@dataclass
class MapDisplay:
    """Mean and standard deviation of y over two columns, the others at their medians.

    Inducing inputs are shown where the model has just two columns, the edges of blocks where it has blocks. `mean`,
    `std` and `blocks` have a row for each entry of `y`. After `plot`: `ax_` (a list of two) and `figure_`.
    """

    x: Array
    y: Array
    mean: Array
    std: Array
    feature_names: tuple[str, str]
    inducing: Array | None = None
    blocks: NDArray[np.int64] | None = None
    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)

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
        """Predict on a grid over two columns of X, and plot."""
        estimator, rows, _ = checked_rows(estimator, X, y)
        names = column_names(estimator)
        if len(names) < 2:
            raise InputError("A map needs two columns and this model has one: use PredictionDisplay.")
        first, second = (_column_number(feature, names) for feature in features)
        axes = _column_grid(rows[:, first], n_points), _column_grid(rows[:, second], n_points)
        at = _slice_rows(estimator, rows, [first, second], [part.ravel() for part in np.meshgrid(*axes)])
        with without_names():
            mean, std = estimator.predict(at, return_std=True)
        inducing = inducing_of(estimator) if len(names) == 2 else None
        blocks = blocks_at(estimator, at)
        shape = n_points, n_points
        return cls(
            *axes,
            mean.reshape(shape),
            std.reshape(shape),
            (names[first], names[second]),
            None if inducing is None else inducing[:, [first, second]],
            None if blocks is None else blocks.reshape(shape),
        ).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw the two maps on the given pair of axes, or on new ones."""
        self.figure_, self.ax_ = panels(ax, 2)
        for axes, values, title, colours in zip(
            self.ax_, (self.mean, self.std), ("Mean", "Standard deviation"), ("viridis", "magma"), strict=True
        ):
            colour_map = axes.pcolormesh(self.x, self.y, values, cmap=colours, shading="nearest", rasterized=True)
            axes.figure.colorbar(colour_map, ax=axes)
            if self.blocks is not None:
                self._draw_edges(axes, self.blocks)
            if self.inducing is not None:
                axes.plot(*self.inducing.T, "+", color=ORANGE, ms=5, mew=1.2)
            axes.set_xlim(self.x[0], self.x[-1])
            axes.set_ylim(self.y[0], self.y[-1])
            label_axes(axes, *self.feature_names, title)
        return self

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


def _column_number(feature: Any, names: Sequence[str]) -> int:
    """The number of a column given by its name or number."""
    if isinstance(feature, str) and feature in names:
        return list(names).index(feature)
    if isinstance(feature, int | np.integer) and not isinstance(feature, bool) and 0 <= feature < len(names):
        return int(feature)
    raise InputError(
        f"A feature is a column's name or a number from 0 to {len(names) - 1}; got {feature!r}. "
        f"The columns are {', '.join(names[:20])}."
    )


def _column_grid(values: Array, n_points: int) -> Array:
    """Evenly spaced points over the range of a column and a little beyond."""
    low, high = float(values.min()), float(values.max())
    margin = MARGIN * (high - low) or 1.0
    return np.linspace(low - margin, high + margin, n_points)


def _slice_rows(model: Any, X: Array, columns: Sequence[int], values: Sequence[Array]) -> Array:
    """Rows at the medians of X, and at the commonest levels, with the given values in some columns."""
    origin = origin_of(model)
    rows = np.tile(np.median(X, axis=0) if origin is None else origin.typical(X), (len(values[0]), 1))
    for column, own in zip(columns, values, strict=True):
        rows[:, column] = own
    return rows
