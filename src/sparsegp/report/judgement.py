"""How a model stands up to rows with known targets: scores, findings, and whether the rows have moved since the fit."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegp import metrics
from sparsegp.core.predictive import Array
from sparsegp.estimators.diagnosis import (
    NOTICE,
    WARNING,
    Finding,
    checked_rows,
    column_names,
    diagnose,
    scaling_of,
    share_far,
    without_names,
)
from sparsegp.estimators.given_rows import GivenRows
from sparsegp.estimators.importance import Importance
from sparsegp.estimators.segments import Honesty, Segments
from sparsegp.report.baselines import Baselines
from sparsegp.report.headline import scores
from sparsegp.report.verdict import Verdict, unknowns

FEWEST_ROWS = 20
FAR, VERY_FAR = 0.5, 1.5
MOST_NAMES = 5
MOST_PARTS = 3
LEANS = 0.25


@dataclass(frozen=True)
class Judgement:
    """How a model stands up to rows with known targets: scores by name, and what stood out, warnings first.

    `verdict` says in two sentences how good and how honest the model is, `baselines` what the mean and a straight line
    achieve. `importance` tells which columns matter, `unknowns` what the model does not know. `segments` is the
    coverage by parts of the rows, `targets` tells how often targets repeat.
    """

    scores: dict[str, float]
    findings: list[Finding]
    segments: Segments
    targets: metrics.TargetValues
    baselines: Baselines
    verdict: Verdict
    importance: Importance | None
    unknowns: list[str]


def judge(model: Any, X: Any, y: Any) -> Judgement:
    """Scores, the findings of `diagnose`, what matters, and whether the rows have moved since the fit.

    Parameters
    ----------
    model : a fitted estimator
    X, y : rows with known targets, best rows that the model has not seen

    Returns
    -------
    Judgement
    """
    given = GivenRows.of(X, column_names(model))
    seen, rows, target = checked_rows(model, X, y)
    with without_names():
        own = scores(seen, rows, target)
        diagnosis = diagnose(seen, rows, target)
        forecast = seen.forecast(rows)
    # scores have refused a model without intervals
    segments = diagnosis.segments
    assert segments is not None
    found = sorted([*diagnosis, *_drift(seen, rows, target)], key=lambda finding: finding.severity != WARNING)
    baselines = Baselines.of(given, target)
    importance = Importance.of(model, X, y) if len(target) > 1 else None
    return Judgement(
        own,
        found,
        segments,
        metrics.TargetValues.of(target),
        baselines,
        Verdict.of(own["rmse"], len(target), baselines, Honesty.of(forecast, target), segments),
        importance,
        unknowns(given, forecast, importance.sure[:MOST_PARTS] if importance else [], share_far(seen, rows, forecast)),
    )


def _drift(model: Any, X: Array, y: Array) -> Iterator[Finding]:
    """Findings about checked rows; few rows say nothing."""
    if len(y) >= FEWEST_ROWS:
        with without_names():
            yield from _moved_columns(model, X)
            yield from _leaning_errors(model, X, y)


def _moved_columns(model: Any, X: Array) -> Iterator[Finding]:
    """Means further away than sampling explains, in standard deviations of the training rows."""
    if not model.normalize:
        return
    scaling = scaling_of(model)
    moved = np.abs(X.mean(axis=0) - scaling.x_mean) / scaling.x_scale
    chance = 4.0 * X.std(axis=0) / scaling.x_scale / math.sqrt(len(X))
    is_number = np.array(model.fitted_.columns.layout.standardized)
    far = np.flatnonzero((moved > np.maximum(FAR, chance)) & is_number)
    if not far.size:
        return
    worst, names = far[np.argsort(-moved[far])], column_names(model)
    listed = ", ".join(names[d] for d in worst[:MOST_NAMES])
    more = f" and {len(worst) - MOST_NAMES} more" if len(worst) > MOST_NAMES else ""
    yield Finding(
        WARNING if moved[worst[0]] > VERY_FAR else NOTICE,
        f"These rows are not where the training rows were: {listed}{more}",
        f"the mean of {names[worst[0]]} is {moved[worst[0]]:.1f} standard deviations from that of the training rows",
        "If the world has drifted, fit again on recent rows or add them with update; if not, look at how these rows "
        "were chosen.",
    )


def _leaning_errors(model: Any, X: Array, y: Array) -> Iterator[Finding]:
    """Errors in predicted standard deviations average zero, up to chance, unless the target has moved."""
    mean, std = model.predict(X, return_std=True)
    errors = (y - mean) / std
    average = float(errors.mean())
    if abs(average) <= max(LEANS, 4.0 * float(errors.std()) / math.sqrt(len(y))):
        return
    yield Finding(
        WARNING,
        "The predictions lean to one side",
        f"targets are on average {abs(average):.2g} predicted standard deviations "
        f"{'above' if average > 0 else 'below'} their predictions",
        "If these rows are newer than the training rows, the target has drifted: add them with update, or fit again on "
        "recent rows. If not, look for a column that the model lacks.",
    )
