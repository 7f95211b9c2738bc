"""How fast the function changes along each column."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from sparsegp.core.predictive import Array
from sparsegp.display.axes import BLUE, label_axes, panels
from sparsegp.errors import InputError
from sparsegp.estimators.judging import checked_rows, user_columns
from sparsegp.kernels import Kernel, Stationary
from sparsegp.kernels.compose import Composite, Power

MOST_COLUMNS = 20


@dataclass
class RelevanceDisplay:
    """std(column)/lengthscale of each column: 0 has no effect, 1 changes f within one standard deviation of the column.

    Where several parts of a kernel see a column, the shortest lengthscale counts. After `plot`: `ax_` and `figure_`.
    """

    relevance: Array
    feature_names: list[str]
    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)

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

    def plot(self, ax: Any = None) -> Self:
        """Draw the bars again, the most relevant column on top. Of many columns the first 20 are shown.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        RelevanceDisplay
            The picture itself.
        """
        self.figure_, (self.ax_,) = panels(ax, 1)
        order = np.argsort(-self.relevance, kind="stable")[:MOST_COLUMNS]
        places = np.arange(len(order))
        self.ax_.barh(places, self.relevance[order], color=BLUE, height=0.7)
        self.ax_.set_yticks(places, [self.feature_names[d] for d in order], parse_math=False)
        self.ax_.invert_yaxis()
        label_axes(self.ax_, "std of the column / lengthscale", "")
        return self


def column_relevance(model: Any, rows: Array, lengthscales: Array) -> tuple[Array, list[str]]:
    """Of each column of the user, over the numbers that it became: the root of the sum of their squares."""
    names, own = user_columns(model)
    squares = np.bincount(own, np.square(rows.std(axis=0) / lengthscales), len(names))
    return np.sqrt(squares), names


def column_lengthscales(kernel: Kernel, n_features: int) -> Array:
    """The shortest lengthscale with which stationary parts of the kernel see each column; inf where none does."""
    shortest = np.full(n_features, np.inf)
    for column, lengthscale in _lengthscales(kernel, list(range(n_features))):
        shortest[column] = min(shortest[column], lengthscale)
    return shortest


def _lengthscales(kernel: Kernel, columns: list[int]) -> Iterator[tuple[int, float]]:
    own = columns if kernel.active_dims is None else [columns[d] for d in kernel.active_dims]
    if isinstance(kernel, Stationary):
        yield from zip(own, kernel.lengthscales.detach().expand(len(own)).tolist(), strict=True)
    parts = kernel.kernels if isinstance(kernel, Composite) else [kernel.base] if isinstance(kernel, Power) else []
    for part in parts:
        yield from _lengthscales(part, own)
