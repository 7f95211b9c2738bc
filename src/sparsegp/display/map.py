"""Maps of the prediction over two columns."""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sparsegp.display.canvas import ORANGE, label_axes, panels
from sparsegp.display.slices import column_grid, column_number, slice_rows
from sparsegp.errors import InputError
from sparsegp.estimators.diagnosis import checked_rows, column_names, without_names
from sparsegp.estimators.incoming.blocking import Blocking
from sparsegp.estimators.predictive import Array


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
        rows, _ = checked_rows(estimator, X, y)
        names = column_names(estimator)
        if len(names) < 2:
            raise InputError("A map needs two columns and this model has one: use PredictionDisplay.")
        first, second = (column_number(feature, names) for feature in features)
        axes = column_grid(rows[:, first], n_points), column_grid(rows[:, second], n_points)
        at = slice_rows(rows, [first, second], [part.ravel() for part in np.meshgrid(*axes)])
        with without_names():
            mean, std = estimator.predict(at, return_std=True)
        inducing = vars(estimator).get("inducing_") if len(names) == 2 else None
        shape = n_points, n_points
        return cls(
            *axes,
            mean.reshape(shape),
            std.reshape(shape),
            (names[first], names[second]),
            None if inducing is None else np.asarray(inducing)[:, [first, second]],
            _blocks_at(estimator, at, shape),
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


def _blocks_at(estimator: Any, rows: Array, shape: tuple[int, int]) -> NDArray[np.int64] | None:
    blocking = vars(estimator).get("_blocking")
    if not isinstance(blocking, Blocking):
        return None
    labels: NDArray[np.int64] = blocking.labels(estimator._standardizer.tensor(rows), None).numpy().reshape(shape)
    return labels
