"""Does the model keep its promises on rows with known targets? Coverage of intervals, and errors one by one."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from sparsegp.core.predictive import Array
from sparsegp.display.axes import BLUE, GREEN, GREY, MOST_POINTS, ORANGE, Display, label_axes
from sparsegp.estimators.judging import checked_rows, columns_of, spread_rows, without_names
from sparsegp.estimators.segments import Segment, SegmentOptions, Segments
from sparsegp.metrics import CALIBRATION_LEVELS

N_BINS = 20
MOST_QUANTITIES = 20
BEYOND_ALL = 0.004
"""So that a point at a share of 1 is whole."""


@dataclass
class CalibrationDisplay(Display):
    """Coverage of central intervals against their nominal level, and the histogram of the PIT values P(Y <= y).

    A right model has a curve on the diagonal and a flat histogram, up to the grey band (two standard errors). After
    `plot`: `ax_` (a list of two) and `figure_`.
    """

    n_axes = 2

    pit: Array

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any, *, ax: Any = None) -> Self:
        """Draw the coverage of all central intervals, and a histogram of PIT values.

        Parameters
        ----------
        estimator : estimator
            A fitted model.
        X : array or table of shape (n_rows, n_features)
            Rows, best rows that the model has not seen.
        y : array of shape (n_rows,)
            Their targets.
        ax : pair of matplotlib Axes, default=None
            Where to draw. None makes a new figure with two panels.

        Returns
        -------
        CalibrationDisplay
            The picture. `ax_` and `figure_` are for your own changes.

        Raises
        ------
        MissingPackageError
            If matplotlib is not installed.
        InputError
            If an argument cannot be used.
        """
        with without_names():
            estimator, rows, target = checked_rows(estimator, X, y)
            return cls(estimator.forecast(rows).cdf(target)).plot(ax)

    @property
    def levels(self) -> Array:
        """Nominal coverages."""
        return np.asarray(CALIBRATION_LEVELS)

    @property
    def observed(self) -> Array:
        """Fraction of rows inside the central interval of each level: |2 pit - 1| <= level."""
        inside: Array = (np.abs(2.0 * self.pit - 1.0)[:, None] <= self.levels).mean(axis=0)
        return inside

    def _draw(self) -> None:
        self._plot_curve(self.ax_[0])
        self._plot_histogram(self.ax_[1])

    def _plot_curve(self, ax: Any) -> None:
        spread = 2.0 * np.sqrt(self.levels * (1.0 - self.levels) / len(self.pit))
        ax.fill_between(self.levels, self.levels - spread, self.levels + spread, color=GREY, alpha=0.25, lw=0)
        ax.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
        ax.plot(self.levels, self.observed, "o-", color=BLUE, ms=3.5)
        ax.set_xlim(0, 1)
        ax.set_ylim(0, 1)
        label_axes(ax, "promised coverage", "share of rows inside", "Intervals")

    def _plot_histogram(self, ax: Any) -> None:
        spread = 2.0 * np.sqrt((N_BINS - 1) / len(self.pit))
        ax.axhspan(1.0 - spread, 1.0 + spread, color=GREY, alpha=0.25, lw=0)
        ax.axhline(1.0, color=GREY, lw=1, ls="--")
        ax.hist(self.pit, bins=np.linspace(0, 1, N_BINS + 1), density=True, color=GREEN, alpha=0.8)
        ax.set_xlim(0, 1)
        label_axes(ax, "P(Y ≤ y)", "density", "PIT values")


@dataclass
class CoverageDisplay(Display):
    """Coverage of the interval in parts of the rows: by values or deciles of each column, of the forecast, of its std.

    Each point is a part, with two standard deviations of chance on both sides. Parts that fail are orange and have
    squares.
    """

    segments: Segments

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any, *, coverage: float = 0.95, ax: Any = None) -> Self:
        """Draw the coverage of parts of the rows, by columns, forecast and std.

        Parameters
        ----------
        estimator : estimator
            A fitted model.
        X : array or table of shape (n_rows, n_features)
            Rows, best rows that the model has not seen.
        y : array of shape (n_rows,)
            Their targets.
        coverage : float, default=0.95
            Coverage that the intervals promise.
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        CoverageDisplay
            The picture. `ax_` and `figure_` are for your own changes.

        Raises
        ------
        MissingPackageError
            If matplotlib is not installed.
        InputError
            If an argument cannot be used.
        """
        estimator, rows, target = checked_rows(estimator, X, y)
        columns = columns_of(estimator, rows)
        with without_names():
            forecast = estimator.forecast(rows)
        return cls(Segments.of(forecast, target, columns, SegmentOptions(coverage=coverage))).plot(ax)

    @property
    def quantities(self) -> list[str]:
        """What is shown, the quantity with the clearest failure first; of many the first 20."""
        parts = self.segments.by_quantity
        return sorted(parts, key=lambda name: min(part.p_value for part in parts[name]))[:MOST_QUANTITIES]

    def _draw(self) -> None:
        shown, failing = self.quantities, set(self.segments.failing)
        self.ax_.axvline(self.segments.options.coverage, color=GREY, lw=1, ls="--")
        for place, quantity in enumerate(shown):
            parts = self.segments.by_quantity[quantity]
            # parts of a quantity from top to bottom within its line
            heights = place + np.linspace(-0.3, 0.3, len(parts))
            for part, height in zip(parts, heights, strict=True):
                self._plot_part(part, height, part in failing)
        self.ax_.set_yticks(range(len(shown)), shown, parse_math=False)
        self.ax_.set_ylim(max(len(shown), 1) - 0.5, -0.5)
        self.ax_.set_xlim(right=1.0 + BEYOND_ALL)
        label_axes(self.ax_, f"share of rows inside the {self.segments.options.coverage:.0%} interval", "")

    def _plot_part(self, part: Segment, height: float, fails: bool) -> None:
        colour, marker = (ORANGE, "s") if fails else (BLUE, "o")
        style = {"fmt": marker, "ms": 3.5, "lw": 0.8, "alpha": 0.9}
        # a share is between 0 and 1, however few rows
        reach = [[min(2.0 * part.error, part.coverage)], [min(2.0 * part.error, 1.0 - part.coverage)]]
        self.ax_.errorbar(part.coverage, height, xerr=reach, color=colour, **style)


@dataclass
class ResidualsDisplay(Display):
    """(y - mean)/std against the mean: without pattern, and 19 of 20 rows between the dashed lines, if all is well."""

    mean: Array
    residuals: Array

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any, *, ax: Any = None) -> Self:
        """Draw errors in units of the predicted standard deviation.

        Parameters
        ----------
        estimator : estimator
            A fitted model.
        X : array or table of shape (n_rows, n_features)
            Rows, best rows that the model has not seen.
        y : array of shape (n_rows,)
            Their targets.
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        ResidualsDisplay
            The picture. `ax_` and `figure_` are for your own changes.

        Raises
        ------
        MissingPackageError
            If matplotlib is not installed.
        InputError
            If an argument cannot be used.
        """
        estimator, rows, target = checked_rows(estimator, X, y)
        with without_names():
            mean, std = estimator.predict(rows, return_std=True)
        return cls(mean, (target - mean) / std).plot(ax)

    def _draw(self) -> None:
        """At most 2,000 rows, evenly spread."""
        shown = spread_rows(len(self.mean), MOST_POINTS)
        self.ax_.axhline(0.0, color=GREY, lw=1)
        for end in (-1.96, 1.96):
            self.ax_.axhline(end, color=GREY, lw=1, ls="--")
        points = self.mean[shown], self.residuals[shown]
        self.ax_.scatter(*points, s=7, color=BLUE, alpha=0.5, lw=0, rasterized=True)
        label_axes(self.ax_, "predicted mean", "error / predicted std")
