"""What all pictures share: matplotlib when it is there, axes to draw on, colours for light and dark pages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from sparsegp.errors import InputError, MissingPackageError

BLUE, ORANGE, GREEN, GREY = "#3b7dd8", "#e07b28", "#2a9d78", "#8a8f98"
PANEL_INCHES = (4.8, 3.6)
MOST_POINTS = 2000


def matplotlib_package() -> Any:
    """matplotlib, which is an optional dependency, with `figure` and `pyplot`."""
    try:
        import matplotlib.figure
        import matplotlib.pyplot
    except ImportError:
        raise MissingPackageError("Pictures need matplotlib: pip install 'sparsegp[plot]'.") from None
    return matplotlib


def panels(ax: Any, n_panels: int) -> tuple[Any, list[Any]]:
    """The figure and its axes: those given, or new ones side by side."""
    if ax is None:
        width, height = PANEL_INCHES
        figure, axes = matplotlib_package().pyplot.subplots(
            1, n_panels, figsize=(width * n_panels, height), layout="constrained", squeeze=False
        )
        return figure, list(axes[0])
    axes = list(np.ravel(np.asarray(ax, dtype=object)))
    if len(axes) != n_panels:
        raise InputError(f"This picture needs ax= with {n_panels} matplotlib axes, or None; got {len(axes)}.")
    return axes[0].figure, axes


def label_axes(ax: Any, x: str, y: str, title: str = "") -> None:
    """Labels as they are: a dollar sign in a column's name starts no formula."""
    ax.set_xlabel(x, parse_math=False)
    ax.set_ylabel(y, parse_math=False)
    if title:
        ax.set_title(title, parse_math=False)


def legend_above(ax: Any) -> None:
    """The legend in a line above the axes, where it hides no data."""
    ax.legend(fontsize="small", frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, borderpad=0.2)


def column_number(feature: Any, names: Sequence[str]) -> int:
    """The number of a column given by its name or number."""
    if isinstance(feature, str) and feature in names:
        return list(names).index(feature)
    if isinstance(feature, int | np.integer) and not isinstance(feature, bool) and 0 <= feature < len(names):
        return int(feature)
    raise InputError(
        f"A feature is a column's name or a number from 0 to {len(names) - 1}; got {feature!r}. "
        f"The columns are {', '.join(names[:20])}."
    )


@dataclass
class Display:
    """A picture. `figure_` and `ax_`, a list where there are several axes, are for changes of your own."""

    n_axes: ClassVar[int] = 1
    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)

    def plot(self, ax: Any = None) -> Self:
        """Draw again.

        Parameters
        ----------
        ax : matplotlib Axes or sequence of them, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        Display
            The picture itself.
        """
        self.figure_, axes = panels(ax, self.n_axes)
        self.ax_ = axes if self.n_axes > 1 else axes[0]
        self._draw()
        return self

    def _draw(self) -> None:
        """Draw on `ax_`."""
        raise NotImplementedError
