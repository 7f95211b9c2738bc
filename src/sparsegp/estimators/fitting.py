"""The way of every fit: rows are opened, a problem is posed, and its steps give better and better models."""

import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from sparsegp import linalg
from sparsegp.core import reasons
from sparsegp.estimators.fitted import Fitted
from sparsegp.estimators.given import Given
from sparsegp.estimators.listener import StepListener
from sparsegp.estimators.opening import Needs, Opened, Opener
from sparsegp.fit.budget import Budget
from sparsegp.fit.checkpoint import Checkpoint
from sparsegp.fit.held_out import steps
from sparsegp.fit.problem import Problem
from sparsegp.fit.progress import Progress, budget_report
from sparsegp.infer.drift import Innovations


@dataclass(frozen=True)
class Call:
    """One call of a fit: its rows, its time and its seed.

    `sums`: rows come in batches or the fit goes in steps, for which "auto" has a sum over rows. `in_steps`: the model
    may come to rest on a part of its rows. `watched`: somebody looks at the models in between. `workers` are those of
    experts, whose rows come from this process.
    """

    given: Given
    budget: Budget
    seed: int
    sums: bool = False
    in_steps: bool = False
    watched: bool = False
    checkpoint: Checkpoint | None = None
    workers: Any = None


@dataclass(frozen=True)
class Posed:
    """A problem, and what `info_` says of how it was chosen. Where time was short, `least_work` was all there was time
    for, and `remedy` is what would help besides more time."""

    problem: Problem
    report: dict[str, Any] = field(default_factory=dict)
    least_work: str = "one step"
    remedy: str = ""


Pose = Callable[[Call, Opened, np.random.Generator, StepListener], AbstractContextManager[Posed]]


def models(estimator: Any, call: Call, needs: Needs, pose: Pose, like: Tensor) -> Generator[tuple[Fitted, Progress]]:
    """What the estimator will be after each step."""
    listener = StepListener(estimator, estimator.verbose)
    try:
        with (
            Opener(estimator, call.seed, call.budget, like).rows(call.given, needs) as data,
            pose(call, data, np.random.default_rng(call.seed), listener) as posed,
        ):
            published = steps(posed.problem, data.rows, call.budget)
            try:
                while (progress := _next(published)) is not None:
                    yield _fitted(call, data, posed, progress), progress
            finally:
                published.close()
        if call.checkpoint is not None:
            call.checkpoint.remove()
    finally:
        listener.close()


def last(published: Generator[tuple[Fitted, Progress]], budget: Budget) -> Fitted:
    """The last model. Ctrl-C keeps the best that there is."""
    fitted: Fitted | None = None
    progress: Progress | None = None
    try:
        for found in published:
            fitted, progress = found
    except KeyboardInterrupt:
        if fitted is None or progress is None:
            raise
        report = budget_report(budget, progress.rows_seen, progress.fraction, reasons.INTERRUPTED)
        fitted = replace(fitted, info={**fitted.info, "budget": report, "seconds": report["used"]})
        warnings.warn("The fit was interrupted: the model is the best so far, see info_['budget'].", stacklevel=5)
    assert fitted is not None
    return fitted


def _next(published: Generator[Progress]) -> Progress | None:
    """Each step computes without denormal numbers; the reader in between is left alone."""
    with linalg.flushed_denormals():
        return next(published, None)


def _fitted(call: Call, data: Opened, posed: Posed, progress: Progress) -> Fitted:
    given, budget, model = call.given, call.budget, progress.model
    n_samples = data.n_given if progress.is_exact else round(progress.fraction * data.n_given)
    if data.was_cut:
        progress = replace(progress, fraction=progress.fraction * data.n_given / max(data.n_all, 1))
    trend = None if model.trend is None else model.trend.name
    report = budget_report(budget, progress.rows_seen, progress.fraction, progress.reason)
    info = {**posed.report, **progress.info, "innovations": Innovations().summary(), "trend": trend}
    info["seconds"] = report["used"]
    if "rmse" in info.get("calibration", {}):  # so far in the scaling of the model
        info["calibration"] = {**info["calibration"], "rmse": info["calibration"]["rmse"] * data.scaling.y_scale}
    if call.in_steps:
        info["budget"] = report | _said_of_short_time(call, data, posed, progress, n_samples)
    return Fitted(
        model,
        data.scaling,
        info,
        n_samples,
        data.columns,
        given.target,
        calibration=progress.calibration,
        given=None if model.learns_noise else given,  # for leave-one-out predictions
        digest=data.digest,
    )


def _said_of_short_time(call: Call, data: Opened, posed: Posed, progress: Progress, n_samples: int) -> dict[str, str]:
    """A warning where the time was too short; what it says of the model stays in `info_`."""
    budget = call.budget
    asked = f"time_budget={budget.asked:g} s" if budget.limited else ""
    if progress.reason == reasons.TOO_SHORT:
        warnings.warn(
            f"{asked} was shorter than {posed.least_work}, and the fit took {budget.used:.2g} s. The model is valid "
            f"but rests on {progress.rows_seen:,.0f} rows and starting values: give it more time{posed.remedy}.",
            stacklevel=2,
        )
    if progress.reason != reasons.TIME_IS_UP or progress.fraction == 1.0:
        return {}
    says = _of_a_part(n_samples, max(data.n_all, data.n_given), progress.model)
    warnings.warn(f"{asked}: {says}", stacklevel=2)
    return {"says": says}


def _of_a_part(n_seen: int, n_all: int, model: Any) -> str:
    """What a model of a part of its rows is."""
    later = "Updates add to the rows that it holds." if model.approx.is_local else "Updates add to those."
    return (
        f"the model rests on {n_seen:,} of {n_all:,} rows ({n_seen / n_all:.0%}). More time gives a better one. {later}"
    )
