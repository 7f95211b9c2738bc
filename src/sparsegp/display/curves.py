"""How a fit got better: stages of learning, and errors of anytime fits against steps and seconds (000 figs. 1-4)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sparsegp import metrics
from sparsegp.core.predictive import Array
from sparsegp.display.axes import BLUE, GREEN, GREY, ORANGE, Display, label_axes, legend_above, panels
from sparsegp.errors import InputError

if TYPE_CHECKING:
    from sparsegp.fit.progress import Progress

COLOURS = (BLUE, ORANGE, GREEN, GREY)
STYLES = ("o-", "s--", "^:")
WIDE = 20.0


@dataclass
class LearningCurveDisplay(Display):
    """Log evidence per row that each stage of learning reached, against the seconds since the start.

    Stages work on different rows, as many as is written beside them, so values compare where these are equal.
    """

    seconds: Array
    objective_per_row: Array
    n_rows: list[int]

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any = None, y: Any = None, *, ax: Any = None) -> Self:
        """Draw the log evidence per row, stage by stage.

        Parameters
        ----------
        estimator : estimator
            A fitted model.
        X : None, default=None
            Not needed.
        y : None, default=None
            Not needed.
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        LearningCurveDisplay
            The picture. `ax_` and `figure_` are for your own changes.

        Raises
        ------
        MissingPackageError
            If matplotlib is not installed.
        InputError
            If an argument cannot be used.
        """
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

    def _draw(self) -> None:
        self.ax_.plot(self.seconds, self.objective_per_row, "o-", color=BLUE, ms=4)
        before = [0, *self.n_rows]
        for x, height, rows, previous in zip(self.seconds, self.objective_per_row, self.n_rows, before, strict=False):
            if rows != previous:
                self.ax_.annotate(
                    f"{rows:,}", (x, height), xytext=(0, 6), textcoords="offset points", fontsize="small", ha="center"
                )
        self.ax_.margins(0.12, 0.2)
        label_axes(self.ax_, "seconds of learning", "log evidence per row", "Numbers are rows of a stage")


@dataclass(frozen=True)
class Curve:
    """Of one fit, at each of its published steps: step, seconds, and scores by name."""

    steps: Array
    seconds: Array
    scores: dict[str, Array]

    @classmethod
    def of(cls, progress: Sequence["Progress"]) -> Self:
        if not progress:
            raise InputError(
                "An anytime curve needs at least one Progress; got none. Collect them: list(gp.fit_iter(...))."
            )
        names = [name for name in ("rmse", "nlpd") if all(name in entry.scores for entry in progress)]
        scores = {name: np.array([entry.scores[name] for entry in progress]) for name in names}
        return cls(
            np.array([float(entry.step) for entry in progress]), np.array([entry.seconds for entry in progress]), scores
        )

    def score(self, name: str) -> Array:
        if name not in self.scores:
            raise InputError(f"There is no {name} in this fit: give fit_iter a validation=(X, y) set.")
        return self.scores[name]


@dataclass
class AnytimeDisplay(Display):
    """Curves of one or more anytime fits, by name.

    `full` has seconds and RMSE of the full model that each fit approaches, for time and predictive efficiency.
    """

    curves: dict[str, Curve]
    full: dict[str, tuple[float, float]]

    @classmethod
    def from_progress(
        cls,
        progress: Iterable["Progress"] | Mapping[str, Iterable["Progress"]],
        *,
        full: tuple[float, float] | Mapping[str, tuple[float, float]] | None = None,
        pictures: Sequence[str] | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw how a fit in steps became better.

        Parameters
        ----------
        progress : iterable of Progress, or mapping of str to such
            What `fit_iter` yielded, or several runs by name.
        full : pair of float, or mapping of str to such, default=None
            Seconds and RMSE of the full model. None takes the last step for it.
        pictures : sequence of str, default=None
            "rmse-steps", "rmse-seconds", "nlpd-steps", "nlpd-seconds", "seconds-steps", "efficiency". None draws all
            that the runs allow.
        ax : matplotlib Axes or list of them, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        AnytimeDisplay
            The pictures.

        Raises
        ------
        MissingPackageError
            If matplotlib is not installed.
        InputError
            If an argument cannot be used.
        """
        runs = dict(progress) if isinstance(progress, Mapping) else {"": progress}
        curves = {name: Curve.of(list(run)) for name, run in runs.items()}
        return cls(curves, _full_models(curves, full)).plot(ax, pictures=pictures)

    @property
    def pictures(self) -> tuple[str, ...]:
        """Names of the pictures that these fits allow."""
        known = [curve.scores.keys() for curve in self.curves.values()]
        needs = {name: _NEEDS.get(name) for name in self._pictures}
        return tuple(name for name, need in needs.items() if need is None or all(need in scores for scores in known))

    def efficiency(self, name: str = "") -> tuple[Array, Array]:
        """Time efficiency and predictive efficiency of each step of a run (000 sec. 5).

        Parameters
        ----------
        name : str
            Name of the run.

        Returns
        -------
        time : ndarray
            Seconds of the full model over those of the step.
        predictive : ndarray
            RMSE of the full model over that of the step.
        """
        curve, (seconds, rmse) = self.curves[name], self.full[name]
        time = [metrics.time_efficiency(seconds, value) for value in curve.seconds.tolist()]
        predictive = [metrics.predictive_efficiency(rmse, value) for value in curve.score("rmse").tolist()]
        return np.array(time), np.array(predictive)

    def plot(self, ax: Any = None, *, pictures: Sequence[str] | None = None) -> Self:
        """Draw again.

        Parameters
        ----------
        ax : matplotlib Axes or list of them, default=None
            Where to draw. None makes a new figure.
        pictures : sequence of str, default=None
            As in `from_progress`.

        Returns
        -------
        AnytimeDisplay
            The pictures themselves.
        """
        chosen = self.pictures if pictures is None else tuple(pictures)
        unknown = [name for name in chosen if name not in self._pictures]
        if unknown or not chosen:
            raise InputError(f"pictures must be some of {', '.join(map(repr, self._pictures))}; got {list(chosen)!r}.")
        self.figure_, self.ax_ = panels(ax, len(chosen))
        for axes, name in zip(self.ax_, chosen, strict=True):
            self._pictures[name](self, axes)
        if len(self.curves) > 1:
            legend_above(self.ax_[0])
        return self

    def _lines(self, ax: Any, points: Callable[[str], tuple[Array, Array]], x: str, y: str) -> None:
        for k, name in enumerate(self.curves):
            again, colour = divmod(k, len(COLOURS))
            style = STYLES[again % len(STYLES)]
            ax.plot(*points(name), style, color=COLOURS[colour], ms=3, lw=1.2, label=name)
        ax.set_xscale("log")
        label_axes(ax, x, y)

    def _plot_rmse_by_step(self, ax: Any) -> None:
        self._lines(ax, lambda name: (self.curves[name].steps, self.curves[name].score("rmse")), "steps", "RMSE")
        self._scale_rmse(ax)

    def _plot_rmse_by_second(self, ax: Any) -> None:
        self._lines(ax, lambda name: (self.curves[name].seconds, self.curves[name].score("rmse")), "seconds", "RMSE")
        self._scale_rmse(ax)

    def _scale_rmse(self, ax: Any) -> None:
        """Logarithmic where the first models are so bad that nothing else would be seen."""
        scores = np.concatenate([curve.score("rmse") for curve in self.curves.values()])
        known = scores[np.isfinite(scores)]
        if known.size and known.min() > 0.0 and known.max() > WIDE * known.min():
            ax.set_yscale("log")

    def _plot_nlpd_by_step(self, ax: Any) -> None:
        self._lines(ax, lambda name: (self.curves[name].steps, self.curves[name].score("nlpd")), "steps", "NLPD")

    def _plot_nlpd_by_second(self, ax: Any) -> None:
        self._lines(ax, lambda name: (self.curves[name].seconds, self.curves[name].score("nlpd")), "seconds", "NLPD")

    def _plot_seconds(self, ax: Any) -> None:
        self._lines(ax, lambda name: (self.curves[name].steps, self.curves[name].seconds), "steps", "seconds")
        ax.set_yscale("log")

    def _plot_efficiency(self, ax: Any) -> None:
        ax.axhline(1.0, color=GREY, lw=1, ls="--")
        self._lines(ax, self.efficiency, "time efficiency (times faster)", "predictive efficiency")

    _pictures: ClassVar[Mapping[str, Callable[["AnytimeDisplay", Any], None]]] = {
        "rmse-steps": _plot_rmse_by_step,
        "rmse-seconds": _plot_rmse_by_second,
        "nlpd-steps": _plot_nlpd_by_step,
        "nlpd-seconds": _plot_nlpd_by_second,
        "efficiency": _plot_efficiency,
        "seconds-steps": _plot_seconds,
    }


def _full_models(
    curves: Mapping[str, Curve], full: tuple[float, float] | Mapping[str, tuple[float, float]] | None
) -> dict[str, tuple[float, float]]:
    if full is None:
        last = {name: curve for name, curve in curves.items() if "rmse" in curve.scores}
        return {name: (float(curve.seconds[-1]), float(curve.scores["rmse"][-1])) for name, curve in last.items()}
    given = dict(full) if isinstance(full, Mapping) else dict.fromkeys(curves, full)
    missing = [name for name in curves if name not in given]
    if missing:
        raise InputError(f"full must have (seconds, rmse) for every run; {', '.join(map(repr, missing))} is missing.")
    return {name: (float(seconds), float(rmse)) for name, (seconds, rmse) in given.items()}


_NEEDS = {
    "rmse-steps": "rmse",
    "rmse-seconds": "rmse",
    "nlpd-steps": "nlpd",
    "nlpd-seconds": "nlpd",
    "efficiency": "rmse",
}
