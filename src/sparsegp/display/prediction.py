"""The prediction along one column, with its interval."""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from sparsegp.display.canvas import BLUE, GREY, MOST_POINTS, ORANGE, label_axes, panels
from sparsegp.display.slices import column_grid, column_number, slice_rows
from sparsegp.estimators.diagnosis import checked_rows, column_names, spread_rows, without_names
from sparsegp.estimators.predictive import Array


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
        rows, target = checked_rows(estimator, X, y)
        names = column_names(estimator)
        column = column_number(feature, names)
        grid = column_grid(rows[:, column], n_points)
        at = slice_rows(rows, [column], [grid])
        with without_names():
            mean, (lower, upper) = estimator.predict(at), estimator.predict_interval(at, coverage)
        shown = spread_rows(len(rows), MOST_POINTS)
        inducing = vars(estimator).get("inducing_") if len(names) == 1 else None
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
            inducing=None if inducing is None else np.asarray(inducing)[:, 0],
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
