"""What may be wrong with a fitted model, in plain words, with the change to try. No finding means nothing stood out.

Here is what rows and forecasts tell, of any model that predicts, with torch or without. A model says what it knows of
itself by `judged`.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsegp import metrics
from sparsegp.calibration.transform import TargetTransform, before_carried
from sparsegp.core.predictive import Array, Predictive
from sparsegp.core.reasons import INTERRUPTED, OUT_OF_TIME, TOO_SHORT
from sparsegp.data import Encoding, FeatureLayout
from sparsegp.errors import InputError, NegativeVarianceError
from sparsegp.estimators import checks
from sparsegp.estimators.segments import COVERAGE, Honesty, Segments

WARNING, NOTICE = "warning", "notice"
SAME_COLUMN = 1.0 - 1e-9
NEARLY_PRIOR = 0.9
FEW_BELOW_ZERO = 0.01


@dataclass(frozen=True)
class Finding:
    """Something to know about a model: how serious ("warning" or "notice"), what, how it is seen, what to try."""

    severity: str
    what: str
    evidence: str
    try_this: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.what} ({self.evidence}). {self.try_this}"


class Judged(Protocol):
    """What is asked of a model besides its forecasts; X are rows of the numbers that its columns become."""

    @property
    def kind(self) -> str:
        """Name of the estimator."""

    @property
    def is_light(self) -> bool:
        """Whether the model is there for its forecasts alone."""

    @property
    def origin(self) -> Encoding | None:
        """Of a model of numbers: how the user's columns became these."""

    @property
    def layout(self) -> FeatureLayout:
        """Which numbers belong together, and which were standardised."""

    @property
    def transform(self) -> TargetTransform | None:
        """What the target went through before it was learned."""

    @property
    def standardization(self) -> tuple[Array, Array] | None:
        """Mean and scale of each column in the fit; None where rows were taken as they are."""

    @property
    def inducing(self) -> Array | None:
        """Inducing inputs to draw, in the units of the data."""

    @property
    def has_blocks(self) -> bool:
        """Whether rows belong to blocks, to draw."""

    def matrix(self, X: Any) -> Array:
        """Rows as the model sees them, checked."""

    def prior_std(self, X: Array) -> Array:
        """Standard deviation of f before the fit, on the scale that was learned."""

    def blocks_at(self, X: Array) -> NDArray[np.int64] | None:
        """The block in which each row would be, to draw."""

    def findings(self, case: "Case") -> Iterator[Finding]:
        """What the model itself shows."""

    def findings_of_forecasts(self, case: "Case") -> Iterator[Finding]:
        """What the model shows of its forecasts; they have been found to have variances."""


class Diagnosis(list[Finding]):
    """The findings, warnings first, and in `segments` the coverage by parts of the rows (None: no intervals)."""

    def __init__(self, findings: Iterable[Finding], segments: Segments | None) -> None:
        super().__init__(findings)
        self.segments = segments


def checked_rows(model: Any, X: Any, y: Any) -> tuple[Any, Array, Array]:
    """The model of numbers, and rows and targets as arrays of the shape that it has. Rows need a target."""
    rows = model.judged.matrix(X)
    target = checks.target_vector(np.ravel(y))
    if len(target) != len(rows):
        raise InputError(f"y must have one target for each of the {len(rows)} rows; got {len(target)}.")
    known = ~np.isnan(target)
    if not known.any():
        raise InputError("No row has a target to judge the model by.")
    return model.of_numbers(), rows if known.all() else rows[known], target[known]


def origin_of(model: Any) -> Encoding | None:
    """How the user's columns became those of a model of numbers; None where they are the same."""
    origin: Encoding | None = model.judged.origin
    return origin


def user_columns(model: Any) -> tuple[list[str], NDArray[np.int64]]:
    """Names of the user's columns, and of each column that the model sees the number of the user's."""
    origin = origin_of(model)
    if origin is None:
        names = column_names(model)
        return names, np.arange(len(names))
    return list(origin.names), np.array(origin.origins)


def column_names(model: Any) -> list[str]:
    """Names of the columns as the model saw them, or their numbers."""
    names = vars(model).get("feature_names_in_")
    return [f"column {d}" for d in range(model.n_features_in_)] if names is None else [str(name) for name in names]


def columns_of(model: Any, X: Array) -> dict[str, Any]:
    """The values of rows by the user's columns."""
    origin = origin_of(model)
    return dict(zip(column_names(model), X.T, strict=True)) if origin is None else origin.decoded(X)


@contextmanager
def without_names() -> Iterator[None]:
    """Within, rows without column names may be given to a model that was fitted with them.

    Nothing is said of single values either: whoever looks at rows many times has been told once.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Values that the fit has not met")
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        yield


@dataclass(frozen=True)
class Case:
    """A model and the rows to judge it by."""

    model: Any
    X: Array
    y: Array
    names: list[str]

    @cached_property
    def forecast(self) -> Predictive:
        """The distribution of y at each row."""
        forecast: Predictive = self.model.forecast(self.X)
        return forecast

    @cached_property
    def honesty(self) -> Honesty:
        """Coverage of all rows together."""
        return Honesty.of(self.forecast, self.y)

    @cached_property
    def segments(self) -> Segments:
        """Coverage by parts of the rows."""
        return Segments.of(self.forecast, self.y, columns_of(self.model, self.X))


def spread_rows(n_rows: int, most: int) -> Any:
    """Numbers of at most `most` rows, evenly spread."""
    return np.unique(np.linspace(0, n_rows - 1, min(n_rows, most)).round().astype(np.int64))


def _columns(case: Case) -> Iterator[Finding]:
    constant = np.ptp(case.X, axis=0) == 0.0
    names, own = user_columns(case.model)
    one_value = np.array([bool((own == d).any() and constant[own == d].all()) for d in range(len(names))])
    if one_value.any() and len(case.X) > 1:
        yield Finding(
            NOTICE,
            f"Constant columns: {listed(names, np.flatnonzero(one_value))}",
            "they have one value in all given rows",
            "Drop them: the model can learn nothing about them.",
        )
    # indicators of one column say of each other what they are
    live = np.flatnonzero(~constant & np.array(case.model.judged.layout.standardized))
    if len(live) > 1 and len(case.X) > 2:
        same = np.triu(np.abs(np.corrcoef(case.X[:, live].T)) > SAME_COLUMN, 1)
        for a, b in np.argwhere(same):
            yield Finding(
                NOTICE,
                f"Two columns say the same: {case.names[live[a]]} and {case.names[live[b]]}",
                "each is a multiple of the other, up to a constant",
                "Drop one of them.",
            )


def _calibration(case: Case) -> Iterator[Finding]:
    found = case.honesty
    evidence = (
        f"the 95% interval holds {found.covered:.1%} of {found.n_rows:,} given rows; mean error over all intervals "
        f"{found.error:.1%}"
    )
    if found.is_narrow or found.is_short:
        yield Finding(
            WARNING if found.is_narrow else NOTICE,
            "The intervals are too narrow" if found.is_narrow else "The inner intervals are too narrow",
            evidence,
            "Try HeteroscedasticGPRegressor (noise that varies), kernel='matern32', or target_transform='log' for a "
            "skewed y above zero; if these rows are newer than the training rows, fit again on recent ones.",
        )
    elif found.is_wide:
        is_calibrated = getattr(case.model, "calibration", "auto") is not None
        first = "" if is_calibrated else "calibration='auto', "
        yield Finding(
            NOTICE,
            "The intervals are wider than needed",
            evidence,
            f"They are safe but say less than they could. Try {first}HeteroscedasticGPRegressor (noise that varies) or "
            "more inducing inputs.",
        )


def _natural_zero(case: Case) -> Iterator[Finding]:
    lower, _ = case.forecast.interval(COVERAGE)
    below = float(np.mean(lower < 0.0))
    if case.y.min() < 0.0 or below <= FEW_BELOW_ZERO:
        return
    transform = "log" if case.y.min() > 0.0 else "log1p"
    yield Finding(
        NOTICE,
        "Some intervals reach below zero, where no target is",
        f"{below:.1%} of the 95% intervals do; the smallest target of the given rows is {case.y.min():.4g}",
        f"If the target cannot be negative, fit with target_transform={transform!r} (sparsegp fit --target-transform "
        f"{transform}): its intervals end at zero, and are as exact.",
    )


def _unfinished(case: Case) -> Iterator[Finding]:
    budget = case.model.info_.get("budget", {})
    fraction, reason = budget.get("fraction", 1.0), budget.get("reason")
    stages = [stage.reason for stage in case.model.info_.get("stages", [])]
    if fraction >= 1.0 and reason not in (TOO_SHORT, INTERRUPTED) and OUT_OF_TIME not in stages[-1:]:
        return
    rested = (
        f"the model rests on {fraction:.1%} of its rows"
        if fraction < 1.0
        else "it has seen all rows, but learned little"
    )
    yield Finding(
        WARNING if fraction < 1.0 or reason == TOO_SHORT else NOTICE,
        "The fit was interrupted before it was done" if reason == INTERRUPTED else "The fit ran out of time",
        f"{rested}, after {budget.get('used', case.model.info_.get('seconds', 0.0)):.3g} s",
        "Fit again with more time: a larger time_budget, or none.",
    )


def _segments(case: Case) -> Iterator[Finding]:
    segments = case.segments
    worst = segments.worst
    if worst is None or (case.honesty.is_wide and not worst.is_narrow):  # all are too wide, which is said already
        return
    evidence = (
        f"the {100 * worst.expected:g}% interval holds {worst.coverage:.1%} of these {worst.n_rows:,} rows, "
        f"±{worst.error:.1%} by chance; {len(segments.failing)} of {len(segments.tested)} parts of the rows fail, this "
        "one most clearly"
    )
    if worst.is_narrow:
        yield Finding(
            WARNING,
            f"The intervals are too narrow for rows with {worst.name}",
            evidence,
            "Do not rely on the intervals there. Try HeteroscedasticGPRegressor (noise that varies), or a column that "
            "tells these rows from others.",
        )
    else:
        yield Finding(
            NOTICE,
            f"The intervals are wider than needed for rows with {worst.name}",
            evidence,
            "Try HeteroscedasticGPRegressor, whose noise may be smaller there.",
        )


def _discrete(case: Case) -> Iterator[Finding]:
    values = metrics.TargetValues.of(case.y)
    if not values.is_discrete:
        return
    few = f"The target has only {values.n_distinct} distinct value{'' if values.n_distinct == 1 else 's'}"
    yield Finding(
        NOTICE,
        few if values.has_few else "Many rows have the same target",
        f"{values.n_commonest:,} of {values.n_rows:,} given rows have the target {values.commonest:.4g}",
        "Do not compare models by their NLPD here: a density can be as high as it likes at a repeated value. Compare "
        f"the CRPS, which is {case.forecast.crps(case.y).mean():.4g}, and the coverage.",
    )


def share_far(model: Any, X: Array, forecast: Predictive) -> float:
    """Share of the rows at which f is nearly as uncertain as before the fit."""
    return float(np.mean(before_carried(forecast).f_std > NEARLY_PRIOR * model.judged.prior_std(X)))


def _extrapolation(case: Case) -> Iterator[Finding]:
    far = share_far(case.model, case.X, case.forecast)
    if far > 0.01:
        yield Finding(
            WARNING if far > 0.1 else NOTICE,
            "Some rows are far from all that the model has seen",
            f"at {far:.1%} of the given rows it knows hardly more than before the fit",
            "Do not rely on the mean there; collect rows like these, or use a kernel with a trend (+ kernels.Linear).",
        )


def _drift(case: Case) -> Iterator[Finding]:
    innovations = case.model.info_.get("innovations", {})
    if innovations.get("drift", False):
        yield Finding(
            WARNING,
            "The data have drifted",
            f"recent squared errors are {innovations['mean_square']:.2g} times what the model expected",
            "Set window= or half_life=, or fit again on recent rows.",
        )


_Check = Callable[[Case], Iterator[Finding]]
_OF_DATA: tuple[_Check, ...] = (_unfinished, _columns, _drift)
_OF_PREDICTIONS: tuple[_Check, ...] = (_calibration, _segments, _natural_zero, _discrete, _extrapolation)


def diagnose(model: Any, X: Any, y: Any) -> Diagnosis:
    """What stands out when a fitted model is held against rows with known targets, best those it has not seen."""
    model, rows, target = checked_rows(model, X, y)
    case = Case(model, rows, target, column_names(model))
    found, segments = [finding for check in _OF_DATA for finding in check(case)], None
    found += model.judged.findings(case)
    with without_names():
        try:
            segments = case.segments
            found += [finding for check in _OF_PREDICTIONS for finding in check(case)]
            found += model.judged.findings_of_forecasts(case)
        except NegativeVarianceError as error:
            found.append(Finding(WARNING, "Some variances are negative", str(error), "Use another approximation."))
    return Diagnosis(sorted(found, key=lambda finding: finding.severity != WARNING), segments)


def listed(names: list[str], chosen: Any) -> str:
    return ", ".join(names[d] for d in chosen[:5]) + (f" and {len(chosen) - 5} more" if len(chosen) > 5 else "")
