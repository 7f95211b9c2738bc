"""What columns matter to the predictions, what they do to them, and how fast the function changes along them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from sparsegp.core.predictive import Array
from sparsegp.display.axes import BLUE, GREY, Display, column_number, label_axes, matplotlib_package
from sparsegp.errors import InputError
from sparsegp.estimators.given_rows import GivenRows
from sparsegp.estimators.importance import Effect, Importance, ImportanceOptions
from sparsegp.estimators.judging import checked_rows, column_names, user_columns

if TYPE_CHECKING:
    from sparsegp.kernels import Kernel

MOST_COLUMNS = 20


@dataclass
class ImportanceDisplay(Display):
    """How much the RMSE grows when a column is shuffled, with 95% intervals; the column that matters most on top.

    Parameters
    ----------
    importance : Importance
    """

    importance: Importance

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

    def _draw(self) -> None:
        """Of many columns the first 20 are shown."""
        shown = self.importance.order[:MOST_COLUMNS]
        growth, (lower, upper) = self.importance.rmse_growth, self.importance.interval
        places = np.arange(len(shown))
        self.ax_.axvline(0.0, color=GREY, lw=1)
        self.ax_.barh(places, growth[shown], color=BLUE, height=0.62, alpha=0.85)
        reach = np.stack([growth[shown] - lower[shown], upper[shown] - growth[shown]])
        ink = matplotlib_package().rcParams["axes.edgecolor"]  # to be seen on the bar and beyond it
        self.ax_.errorbar(growth[shown], places, xerr=reach, fmt="none", ecolor=ink, elinewidth=1.2, capsize=2.5)
        self.ax_.set_yticks(places, [self.importance.names[d] for d in shown], parse_math=False)
        self.ax_.invert_yaxis()
        label_axes(self.ax_, "growth of the RMSE without the column", "")


@dataclass
class EffectDisplay(Display):
    """The average prediction along a column, with a 95% band; per level with intervals where it has few values.

    Parameters
    ----------
    effect : Effect
    """

    effect: Effect

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

    def _draw(self) -> None:
        if self.effect.has_levels:
            self._plot_levels()
        else:
            self._plot_curve()

    def _plot_curve(self) -> None:
        effect = self.effect
        self.ax_.fill_between(effect.values, effect.lower, effect.upper, color=BLUE, alpha=0.25, lw=0)
        self.ax_.plot(effect.values, effect.mean, color=BLUE, lw=1.8)
        self.ax_.set_xlim(effect.values[0], effect.values[-1])
        if effect.values.dtype.kind == "M":
            _few_dates(self.ax_.xaxis)
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


def _few_dates(axis: Any) -> None:
    """Dates at the axis that do not run into each other."""
    dates = matplotlib_package().dates
    locator = dates.AutoDateLocator(minticks=3, maxticks=6)
    axis.set_major_locator(locator)
    axis.set_major_formatter(dates.ConciseDateFormatter(locator))


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


@dataclass
class RelevanceDisplay(Display):
    """std(column)/lengthscale of each column: 0 has no effect, 1 changes f within one standard deviation of the column.

    Where several parts of a kernel see a column, the shortest lengthscale counts.
    """

    relevance: Array
    feature_names: list[str]

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any, *, ax: Any = None) -> Self:
        """Draw how relevant the columns are: the spread of a column over its lengthscale.

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
        RelevanceDisplay
            The picture. `ax_` and `figure_` are for your own changes.

        Raises
        ------
        MissingPackageError
            If matplotlib is not installed.
        InputError
            If an argument cannot be used.
        """
        estimator, rows, _ = checked_rows(estimator, X, y)
        lengthscales = column_lengthscales(estimator.kernel_, rows.shape[1])
        if np.isinf(lengthscales).all():
            raise InputError(
                f"The kernel {estimator.kernel_!r} has no lengthscales to compare columns by. Those of "
                "'se', 'matern32', 'rq' and their sums and products have."
            )
        return cls(*column_relevance(estimator, rows, lengthscales)).plot(ax)

    def _draw(self) -> None:
        """The most relevant column on top. Of many columns the first 20 are shown."""
        order = np.argsort(-self.relevance, kind="stable")[:MOST_COLUMNS]
        places = np.arange(len(order))
        self.ax_.barh(places, self.relevance[order], color=BLUE, height=0.7)
        self.ax_.set_yticks(places, [self.feature_names[d] for d in order], parse_math=False)
        self.ax_.invert_yaxis()
        label_axes(self.ax_, "std of the column / lengthscale", "")


def column_relevance(model: Any, rows: Array, lengthscales: Array) -> tuple[Array, list[str]]:
    """Of each column of the user, over the numbers that it became: the root of the sum of their squares."""
    names, own = user_columns(model)
    squares = np.bincount(own, np.square(rows.std(axis=0) / lengthscales), len(names))
    return np.sqrt(squares), names


def column_lengthscales(kernel: "Kernel", n_features: int) -> Array:
    """The shortest lengthscale with which stationary parts of the kernel see each column; inf where none does."""
    shortest = np.full(n_features, np.inf)
    for column, lengthscale in _lengthscales(kernel, list(range(n_features))):
        shortest[column] = min(shortest[column], lengthscale)
    return shortest


def _lengthscales(kernel: "Kernel", columns: list[int]) -> Iterator[tuple[int, float]]:
    from sparsegp.kernels import Stationary
    from sparsegp.kernels.compose import Composite, Power

    own = columns if kernel.active_dims is None else [columns[d] for d in kernel.active_dims]
    if isinstance(kernel, Stationary):
        yield from zip(own, kernel.lengthscales.detach().expand(len(own)).tolist(), strict=True)
    parts = kernel.kernels if isinstance(kernel, Composite) else [kernel.base] if isinstance(kernel, Power) else []
    for part in parts:
        yield from _lengthscales(part, own)
