"""Errors of the mean in units of the predicted standard deviation."""

from dataclasses import dataclass, field
from typing import Any, Self

from sparsegp.display.canvas import BLUE, GREY, MOST_POINTS, label_axes, panels
from sparsegp.estimators.diagnosis import checked_rows, spread_rows, without_names
from sparsegp.estimators.predictive import Array


@dataclass
class ResidualsDisplay:
    """(y - mean)/std against the mean: without pattern, and 19 of 20 rows between the dashed lines, if all is well.

    After `plot`: `ax_` and `figure_`.
    """

    mean: Array
    residuals: Array
    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any, *, ax: Any = None) -> Self:
        """Standardised residuals of rows with known targets, and plot."""
        rows, target = checked_rows(estimator, X, y)
        with without_names():
            mean, std = estimator.predict(rows, return_std=True)
        return cls(mean, (target - mean) / std).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw on the given axes, or on new ones: at most 2,000 rows, evenly spread."""
        self.figure_, (self.ax_,) = panels(ax, 1)
        shown = spread_rows(len(self.mean), MOST_POINTS)
        self.ax_.axhline(0.0, color=GREY, lw=1)
        for end in (-1.96, 1.96):
            self.ax_.axhline(end, color=GREY, lw=1, ls="--")
        points = self.mean[shown], self.residuals[shown]
        self.ax_.scatter(*points, s=7, color=BLUE, alpha=0.5, lw=0, rasterized=True)
        label_axes(self.ax_, "predicted mean", "error / predicted std")
        return self
