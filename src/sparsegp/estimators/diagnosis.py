"""What may be wrong with a fitted model, in plain words, with the change to try. No finding means nothing stood out."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from sklearn.utils.validation import check_is_fitted

from sparsegp import linalg, metrics
from sparsegp.calibration.calibration import Calibrated
from sparsegp.calibration.transform import before_carried
from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation, Family
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.partition import kernel_metric
from sparsegp.core.posterior import InducingPosterior, log_evidence
from sparsegp.core.predictive import Array, Predictive
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.data import Encoding
from sparsegp.errors import InputError, NegativeVarianceError
from sparsegp.estimators import checks
from sparsegp.estimators.segments import COVERAGE, Honesty, Segments
from sparsegp.fit.problem import INTERRUPTED
from sparsegp.fit.scaling import Scaling
from sparsegp.infer.anytime_run import TOO_SHORT
from sparsegp.kernels import Stationary
from sparsegp.learn.trace import OUT_OF_TIME


def scaling_of(estimator: Any) -> Scaling:
    """Means and scales of the training rows."""
    scaling: Scaling = estimator.scaling_
    return scaling


def approximation_of(estimator: Any) -> Approximation | None:
    """The approximation that the model is; None for a committee."""
    approx: Approximation | None = estimator.model_.approx
    return approx


def inducing_of(estimator: Any) -> Array | None:
    """Inducing inputs in the units of the data; None for a model without them."""
    found = estimator.model_.inducing
    return None if found is None else estimator.scaling_.raw_inputs(found.cpu().numpy())


def has_blocks(estimator: Any) -> bool:
    return estimator.model_.blocking is not None


def blocks_at(estimator: Any, X: Array) -> NDArray[np.int64] | None:
    """The block in which each row would be; None for a model without blocks."""
    if not has_blocks(estimator):
        return None
    labels: NDArray[np.int64] = estimator.model_.blocking.nearest(scaling_of(estimator).tensor(X)).numpy()
    return labels


def learns_noise(estimator: Any) -> bool:
    """Whether the noise variance is a function of the inputs."""
    return bool(estimator.model_.learns_noise)


def knows_noise(estimator: Any) -> bool:
    """Whether the noise variance of each training row was given."""
    return bool(estimator.model_.known_noise)


WARNING, NOTICE = "warning", "notice"
EVIDENCE_ROWS, SPACING_ROWS = 5000, 1000
MATERIAL_SHARE, LARGE_SHARE = 0.1, 1.0
SMALL_EFFECT = 0.05
FAR_APART = 2.0
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


class Diagnosis(list[Finding]):
    """The findings, warnings first, and in `segments` the coverage by parts of the rows (None: no intervals)."""

    def __init__(self, findings: Iterable[Finding], segments: Segments | None) -> None:
        super().__init__(findings)
        self.segments = segments


@dataclass(frozen=True)
class EvidenceBounds:
    """lower <= log N(y; 0, K + R) <= upper; `unexplained` is the mean of (k_ii - q_ii)/r_i."""

    lower: float
    upper: float
    unexplained: float
    n_rows: float


def evidence_bounds(prior: SparsePrior, block: Block) -> EvidenceBounds:
    """Bounds of the exact log evidence in one pass of O(N M^2) (docs/derivations/evidence-bounds.md)."""
    statistics = BlockStatistics.from_blocks(
        replace(prior, approx=approximations.get("vfe")), MemoryRows(block).chunks()
    )
    q, n = InducingPosterior.from_statistics(statistics), statistics.n_rows
    # E3: K + R <= Q + (1 + tau) R, and noise times 1 + tau divides the statistics by it
    wide = statistics * (1.0 / (1.0 + 2.0 * statistics.penalty))
    square = wide.target_sq - float(wide.shift @ InducingPosterior.from_statistics(wide).mean)
    logdet = statistics.noise_logdet + float(q.LB.logdet)
    upper = -0.5 * (n * math.log(2.0 * math.pi) + logdet + square)
    return EvidenceBounds(log_evidence(statistics, q), upper, 2.0 * statistics.penalty / n, n)


def checked_rows(model: Any, X: Any, y: Any) -> tuple[Any, Array, Array]:
    """The model of numbers, and rows and targets as arrays of the shape that it has. Rows need a target."""
    check_is_fitted(model)
    rows = checks.new_inputs(model, X)
    target = checks.target_vector(np.ravel(y))
    if len(target) != len(rows):
        raise InputError(f"y must have one target for each of the {len(rows)} rows; got {len(target)}.")
    known = ~np.isnan(target)
    if not known.any():
        raise InputError("No row has a target to judge the model by.")
    return model.of_numbers(), rows if known.all() else rows[known], target[known]


def origin_of(model: Any) -> Encoding | None:
    """How the user's columns became those of a model of numbers; None where they are the same."""
    origin: Encoding | None = model.fitted_.columns.origin
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
    """Within, rows without column names may be given to a model that was fitted with them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        yield


@dataclass(frozen=True)
class _Case:
    """A model and the rows to judge it by."""

    model: Any
    X: Array
    y: Array
    names: list[str]

    @cached_property
    def metric(self) -> Array | None:
        """1/lengthscale of each column; None for kernels that are not of one lengthscale a column."""
        kernel = self.model.kernel_
        return kernel_metric(kernel, self.X.shape[1]).numpy() if isinstance(kernel, Stationary) else None

    @cached_property
    def forecast(self) -> Predictive:
        """The distribution of y at each row."""
        forecast: Predictive = self.model.forecast(self.X)
        return forecast

    @cached_property
    def learned(self) -> Array:
        """The targets as the model learned them: on the transformed scale, if there is one."""
        transform = self.model.scaling_.transform
        return self.y if transform is None else transform.targets(self.y)

    @cached_property
    def honesty(self) -> Honesty:
        """Coverage of all rows together."""
        return Honesty.of(self.forecast, self.y)

    @cached_property
    def segments(self) -> Segments:
        """Coverage by parts of the rows."""
        return Segments.of(self.forecast, self.y, columns_of(self.model, self.X))


def _inducing(case: _Case) -> Iterator[Finding]:
    approx = approximation_of(case.model)
    if approx is None or approx.by_block or approx.family not in (Family.INDUCING, Family.NYSTROM):
        return
    bounds, m = model_evidence_bounds(case.model, case.X, case.y), len(case.model.inducing_)
    if bounds.unexplained > MATERIAL_SHARE:
        yield Finding(
            WARNING if bounds.unexplained > LARGE_SHARE else NOTICE,
            "There are too few inducing inputs",
            f"{m} of them leave a variance of {bounds.unexplained:.2g} times that of the noise unexplained; the log "
            f"evidence of {bounds.n_rows:,.0f} given rows is between {bounds.lower:,.1f} and {bounds.upper:,.1f}",
            f"Try n_inducing={2 * m}, or approximation='pic', which also uses the rows nearby.",
        )


def model_evidence_bounds(model: Any, X: Array, y: Array) -> EvidenceBounds:
    """Bounds at the fitted hyper-parameters for (at most 5,000 of) the given rows, in the units of the model."""
    index = spread_rows(len(y), EVIDENCE_ROWS)
    scaling, forecast = model.scaling_, model.forecast(X[index])
    # the evidence is that of the model, whatever its forecasts are calibrated to
    forecast = before_carried(forecast)
    noise_std = (forecast.base if isinstance(forecast, Calibrated) else forecast).noise_std
    block = Block(
        scaling.tensor(X[index], torch.float64, torch.device("cpu")),
        torch.from_numpy(scaling.targets(y[index])),
        torch.from_numpy((noise_std / scaling.y_scale) ** 2),
    )
    kernel, inducing = (
        scaling.standardized_kernel(model.kernel_).cpu(),
        torch.from_numpy(scaling.inputs(model.inducing_)),
    )
    with linalg.flushed_denormals():
        prior = SparsePrior.build(kernel, inducing, 1.0, approximations.get("vfe"), trend=model.model_.trend)
        return evidence_bounds(prior, block)


def spread_rows(n_rows: int, most: int) -> Any:
    """Numbers of at most `most` rows, evenly spread."""
    return np.unique(np.linspace(0, n_rows - 1, min(n_rows, most)).round().astype(np.int64))


def _noise(case: _Case) -> Iterator[Finding]:
    fraction = case.model.noise_var_ / (float(case.learned.var()) or 1.0)
    if fraction < 2.0 * case.model.fit_options.learning.start.noise_floor:
        yield Finding(
            WARNING,
            "The noise is at its floor",
            f"its variance is {fraction:.1e} of that of y",
            "This is right for data without noise (a simulator). Otherwise the model follows every row: look for "
            "repeated rows and columns that give y away, or try approximation='vfe'.",
        )
    elif fraction > COVERAGE:
        yield Finding(
            WARNING,
            "The model found hardly any signal",
            f"the noise has {min(fraction, 9.99):.0%} of the variance of y",
            "Try kernel='matern32', which looks for rougher functions, or other columns.",
        )


def _columns(case: _Case) -> Iterator[Finding]:
    constant = np.ptp(case.X, axis=0) == 0.0
    names, own = user_columns(case.model)
    one_value = np.array([bool((own == d).any() and constant[own == d].all()) for d in range(len(names))])
    if one_value.any() and len(case.X) > 1:
        yield Finding(
            NOTICE,
            f"Constant columns: {_list(names, np.flatnonzero(one_value))}",
            "they have one value in all given rows",
            "Drop them: the model can learn nothing about them.",
        )
    # indicators of one column say of each other what they are
    live = np.flatnonzero(~constant & np.array(case.model.fitted_.columns.layout.standardized))
    if len(live) > 1 and len(case.X) > 2:
        same = np.triu(np.abs(np.corrcoef(case.X[:, live].T)) > SAME_COLUMN, 1)
        for a, b in np.argwhere(same):
            yield Finding(
                NOTICE,
                f"Two columns say the same: {case.names[live[a]]} and {case.names[live[b]]}",
                "each is a multiple of the other, up to a constant",
                "Drop one of them.",
            )


def _relevance(case: _Case) -> Iterator[Finding]:
    if case.metric is None:
        return
    # prior std of f(end) - f(start) along each column, the others held
    low, high = (torch.from_numpy(np.diag(side(case.X, axis=0))) for side in (np.min, np.max))
    with torch.no_grad():
        same, ends = (case.model.kernel_.cpu()(low, side).diagonal().numpy() for side in (low, high))
    effect = np.sqrt(2.0 * np.clip(same - ends, 0.0, None))
    names, own = user_columns(case.model)
    varies = (case.metric > 0) & (np.ptp(case.X, axis=0) > 0.0)
    trend = case.model.model_.trend
    if trend is not None:  # what the kernel does not see of a column, a trend may
        effect[list(trend.columns)] = np.inf
    # a column has the effect of the strongest of its numbers
    largest = np.array([effect[(own == d) & varies].max(initial=-1.0) for d in range(len(names))])
    unused = (largest >= 0.0) & (largest < SMALL_EFFECT * case.learned.std())
    if unused.any():
        yield Finding(
            NOTICE,
            f"Columns without effect: {_list(names, np.flatnonzero(unused))}",
            f"their lengthscales are so long that f changes by {largest[unused].max():.4g} from end to end",
            "Drop them and fit again: fewer columns need fewer inducing inputs.",
        )


def _spacing(case: _Case) -> Iterator[Finding]:
    metric = np.zeros(case.X.shape[1]) if case.metric is None else case.metric
    scaled = np.unique(case.X[:, metric > 0] * metric[metric > 0], axis=0)
    if len(scaled) < 3:
        return
    nearest = cKDTree(scaled).query(scaled[spread_rows(len(scaled), SPACING_ROWS)], k=2)[0][:, 1]
    # the model may have seen more rows than are given here, which lie closer together
    distance = np.median(nearest) * min(1.0, len(case.X) / case.model.n_samples_seen_) ** (1.0 / scaled.shape[1])
    if distance > FAR_APART:
        yield Finding(
            WARNING,
            "The lengthscales are shorter than the distance between rows",
            f"neighbours are {distance:.1f} lengthscales apart, so that one says nothing about the next",
            "Give a kernel with longer lengthscales to start from, drop columns, or collect more rows.",
        )


def _calibration(case: _Case) -> Iterator[Finding]:
    found = case.honesty
    evidence = (
        f"the 95 % interval holds {found.covered:.1%} of {found.n_rows:,} given rows; mean error over all intervals "
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
        yield Finding(
            NOTICE,
            "The intervals are wider than needed",
            evidence,
            "They are safe but say less than they could. Try calibration='auto', HeteroscedasticGPRegressor (noise "
            "that varies) or more inducing inputs.",
        )


def _natural_zero(case: _Case) -> Iterator[Finding]:
    lower, _ = case.forecast.interval(COVERAGE)
    below = float(np.mean(lower < 0.0))
    if case.y.min() < 0.0 or below <= FEW_BELOW_ZERO:
        return
    transform = "log" if case.y.min() > 0.0 else "log1p"
    yield Finding(
        NOTICE,
        "Some intervals reach below zero, where no target is",
        f"{below:.1%} of the 95 % intervals do; the smallest target of the given rows is {case.y.min():.4g}",
        f"If the target cannot be negative, fit with target_transform={transform!r} (sparsegp fit --target-transform "
        f"{transform}): its intervals end at zero, and are as exact.",
    )


def _unfinished(case: _Case) -> Iterator[Finding]:
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


def _segments(case: _Case) -> Iterator[Finding]:
    segments = case.segments
    worst = segments.worst
    if worst is None or (case.honesty.is_wide and not worst.is_narrow):  # all are too wide, which is said already
        return
    evidence = (
        f"the {100 * worst.expected:g} % interval holds {worst.coverage:.1%} of these {worst.n_rows:,} rows, "
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


def _discrete(case: _Case) -> Iterator[Finding]:
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
    with torch.no_grad():
        prior_std = model.kernel_.cpu().diagonal(torch.tensor(X)).sqrt().numpy()
    return float(np.mean(before_carried(forecast).f_std > NEARLY_PRIOR * prior_std))


def _extrapolation(case: _Case) -> Iterator[Finding]:
    far = share_far(case.model, case.X, case.forecast)
    if far > 0.01:
        yield Finding(
            WARNING if far > 0.1 else NOTICE,
            "Some rows are far from all that the model has seen",
            f"at {far:.1%} of the given rows it knows hardly more than before the fit",
            "Do not rely on the mean there; collect rows like these, or use a kernel with a trend (+ kernels.Linear).",
        )


def _drift(case: _Case) -> Iterator[Finding]:
    innovations = case.model.info_.get("innovations", {})
    if innovations.get("drift", False):
        yield Finding(
            WARNING,
            "The data have drifted",
            f"recent squared errors are {innovations['mean_square']:.2g} times what the model expected",
            "Set window= or half_life=, or fit again on recent rows.",
        )


_Check = Callable[[_Case], Iterator[Finding]]
_OF_DATA: tuple[_Check, ...] = (_unfinished, _noise, _columns, _relevance, _spacing, _drift)
_OF_PREDICTIONS: tuple[_Check, ...] = (_calibration, _segments, _natural_zero, _discrete, _inducing, _extrapolation)


def diagnose(model: Any, X: Any, y: Any) -> Diagnosis:
    """What stands out when a fitted model is held against rows with known targets, best those it has not seen."""
    model, rows, target = checked_rows(model, X, y)
    case = _Case(model, rows, target, column_names(model))
    found, segments = [finding for check in _OF_DATA for finding in check(case)], None
    with without_names():
        try:
            segments = case.segments
            found += [finding for check in _OF_PREDICTIONS for finding in check(case)]
        except NegativeVarianceError as error:
            found.append(Finding(WARNING, "Some variances are negative", str(error), "Use another approximation."))
    return Diagnosis(sorted(found, key=lambda finding: finding.severity != WARNING), segments)


def _list(names: list[str], chosen: Any) -> str:
    return ", ".join(names[d] for d in chosen[:5]) + (f" and {len(chosen) - 5} more" if len(chosen) > 5 else "")
