"""How learning went, stage by stage."""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sparsegp.display.canvas import BLUE, label_axes, panels
from sparsegp.errors import InputError
from sparsegp.estimators.predictive import Array


@dataclass
class LearningCurveDisplay:
    """Log evidence per row that each stage of learning reached, against the seconds since the start.

    Stages work on different rows, as many as is written beside them, so values compare where these are equal. After
    `plot`: `ax_` and `figure_`.
    """

    seconds: Array
    objective_per_row: Array
    n_rows: list[int]
    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any = None, y: Any = None, *, ax: Any = None) -> Self:
        """The stages in `info_["stages"]` of a fitted estimator (X and y are not needed), and plot."""
        check_is_fitted(estimator)
        stages = [stage for stage in estimator.info_.get("stages", []) if stage.n_rows and np.isfinite(stage.objective)]
        if not stages:
            raise InputError(
                "This model did not learn (optimizer=None, or interrupted at once), so there is no learning curve: "
                "fit with optimizer='lbfgs'."
            )
        return cls(
            np.cumsum([stage.seconds for stage in stages]),
            np.array([stage.objective / stage.n_rows for stage in stages]),
            [int(stage.n_rows) for stage in stages],
        ).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw on the given axes, or on new ones."""
        self.figure_, (self.ax_,) = panels(ax, 1)
        self.ax_.plot(self.seconds, self.objective_per_row, "o-", color=BLUE, ms=4)
        before = [0, *self.n_rows]
        for x, height, rows, previous in zip(self.seconds, self.objective_per_row, self.n_rows, before, strict=False):
            if rows != previous:
                self.ax_.annotate(
                    f"{rows:,}", (x, height), xytext=(0, 6), textcoords="offset points", fontsize="small", ha="center"
                )
        self.ax_.margins(0.12, 0.2)
        label_axes(self.ax_, "seconds of learning", "log evidence per row", "Numbers are rows of a stage")
        return self
