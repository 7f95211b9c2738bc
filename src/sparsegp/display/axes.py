"""What all pictures share: matplotlib when it is there, axes to draw on, colours for light and dark pages."""

from importlib import import_module
from typing import Any

import numpy as np

from sparsegp.errors import InputError, MissingPackageError

BLUE, ORANGE, GREEN, GREY = "#3b7dd8", "#e07b28", "#2a9d78", "#8a8f98"
PANEL_INCHES = (4.8, 3.6)
MOST_POINTS = 2000


def matplotlib_module(name: str = "pyplot") -> Any:
    """A module of matplotlib, which is an optional dependency."""
    try:
        return import_module(f"matplotlib.{name}")
    except ImportError:
        raise MissingPackageError("Pictures need matplotlib: pip install 'sparsegp[plot]'.") from None


def panels(ax: Any, n_panels: int) -> tuple[Any, list[Any]]:
    """The figure and its axes: those given, or new ones side by side."""
    if ax is None:
        width, height = PANEL_INCHES
        figure, axes = matplotlib_module().subplots(
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
