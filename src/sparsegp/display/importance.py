"""What matters to the predictions, and what it does to them."""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from sparsegp.display.axes import BLUE, GREY, column_number, label_axes, panels
from sparsegp.estimators.given_rows import GivenRows
from sparsegp.estimators.importance import Effect, Importance, ImportanceOptions
from sparsegp.estimators.judging import column_names

MOST_COLUMNS = 20


@dataclass
class ImportanceDisplay:
    """How much the RMSE grows when a column is shuffled, with 95 % intervals; the column that matters most on top.

    Parameters
    ----------
    importance : Importance

    Attributes
    ----------
    ax_, figure_ : after `plot`.
    """

    importance: Importance
    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, options: ImportanceOptions | None = None, ax: Any = None
    ) -> Self:
        """Measure on rows with known targets how much each column matters, and draw it.

        Parameters
        ----------
        estimator : estimator
            A fitted model.
        X : array or table of shape (n_rows, n_features)
            Rows, best rows that the model has not seen.
        y : array of shape (n_rows,)
            Their targets.
        options : ImportanceOptions, default=None
            How many rows and repetitions are used. None takes the usual ones.
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        ImportanceDisplay
            The picture. `ax_` and `figure_` are for your own changes.

        Raises
        ------
        MissingPackageError
            If matplotlib is not installed.
        InputError
            If an argument cannot be used.
        """
        return cls(Importance.of(estimator, X, y, options)).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw the bars again. Of many columns the first 20 are shown.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        ImportanceDisplay
            The picture itself.
        """
        self.figure_, (self.ax_,) = panels(ax, 1)
        shown = self.importance.order[:MOST_COLUMNS]
        growth, (lower, upper) = self.importance.rmse_growth, self.importance.interval
        places = np.arange(len(shown))
        self.ax_.axvline(0.0, color=GREY, lw=1)
        self.ax_.barh(places, growth[shown], color=BLUE, height=0.62, alpha=0.85)
        reach = np.stack([growth[shown] - lower[shown], upper[shown] - growth[shown]])
        self.ax_.errorbar(growth[shown], places, xerr=reach, fmt="none", ecolor=GREY, elinewidth=1.2, capsize=2.5)
        self.ax_.set_yticks(places, [self.importance.names[d] for d in shown], parse_math=False)
        self.ax_.invert_yaxis()
        label_axes(self.ax_, "growth of the RMSE without the column", "")
        return self


@dataclass
class EffectDisplay:
    """The average prediction along a column, with a 95 % band; per level with intervals where it has few values.

    Parameters
    ----------
    effect : Effect

    Attributes
    ----------
    ax_, figure_ : after `plot`.
    """

    effect: Effect
    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any = None,
        *,
        feature: int | str = 0,
        options: ImportanceOptions | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw the effect of one column, over its range in X.

        Parameters
        ----------
        estimator : estimator
            A fitted model.
        X : array or table of shape (n_rows, n_features)
            The rows to average over.
        y : None, default=None
            Not needed.
        feature : int or str, default=0
            The column, by number or name.
        options : ImportanceOptions, default=None
            How many rows and points are used. None takes the usual ones.
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        EffectDisplay
            The picture. `ax_` and `figure_` are for your own changes.

        Raises
        ------
        MissingPackageError
            If matplotlib is not installed.
        InputError
            If an argument cannot be used.
        """
        names = GivenRows.of(X, column_names(estimator)).names
        return cls(Effect.of(estimator, X, column_number(feature, names), options)).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw the effect again.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        EffectDisplay
            The picture itself.
        """
        self.figure_, (self.ax_,) = panels(ax, 1)
        if self.effect.has_levels:
            self._plot_levels()
        else:
            self._plot_curve()
        return self

    def _plot_curve(self) -> None:
        effect = self.effect
        self.ax_.fill_between(effect.values, effect.lower, effect.upper, color=BLUE, alpha=0.25, lw=0)
        self.ax_.plot(effect.values, effect.mean, color=BLUE, lw=1.8)
        self.ax_.set_xlim(effect.values[0], effect.values[-1])
        label_axes(self.ax_, effect.name, "average prediction")

    def _plot_levels(self) -> None:
        effect, places = self.effect, np.arange(len(self.effect.values))
        reach = np.stack([effect.mean - effect.lower, effect.upper - effect.mean])
        self.ax_.errorbar(effect.mean, places, xerr=reach, fmt="o", color=BLUE, ms=5, elinewidth=1.5, capsize=3)
        assert effect.shares is not None
        labels = [f"{_shown(value)} ({share:.0%})" for value, share in zip(effect.values, effect.shares, strict=True)]
        self.ax_.set_yticks(places, labels, parse_math=False)
        self.ax_.set_ylim(len(places) - 0.5, -0.5)
        label_axes(self.ax_, "average prediction", effect.name)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)
