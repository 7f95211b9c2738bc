"""What a fitted model shows of itself: its evidence, noise, lengthscales and inducing inputs; judged with torch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from sparsegp import linalg
from sparsegp.calibration.calibration import Calibrated
from sparsegp.calibration.transform import TargetTransform, before_carried
from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation, Family
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.partition import kernel_metric
from sparsegp.core.posterior import InducingPosterior, log_evidence
from sparsegp.core.predictive import Array
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.data import Encoding, FeatureLayout
from sparsegp.estimators import checks
from sparsegp.estimators.judging import NOTICE, WARNING, Case, Finding, listed, spread_rows, user_columns
from sparsegp.estimators.segments import COVERAGE
from sparsegp.fit.scaling import Scaling
from sparsegp.kernels import Stationary

EVIDENCE_ROWS, SPACING_ROWS = 5000, 1000
MATERIAL_SHARE, LARGE_SHARE = 0.1, 1.0
SMALL_EFFECT = 0.05
FAR_APART = 2.0


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


def _metric(case: Case) -> Array | None:
    """1/lengthscale of each column; None for kernels that are not of one lengthscale a column."""
    kernel = case.model.kernel_
    return kernel_metric(kernel, case.X.shape[1]).numpy() if isinstance(kernel, Stationary) else None


def _learned(case: Case) -> Array:
    """The targets as the model learned them: on the transformed scale, if there is one."""
    transform = scaling_of(case.model).transform
    return case.y if transform is None else transform.targets(case.y)


def _inducing(case: Case) -> Iterator[Finding]:
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


def _noise(case: Case) -> Iterator[Finding]:
    fraction = case.model.noise_var_ / (float(_learned(case).var()) or 1.0)
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


def _relevance(case: Case) -> Iterator[Finding]:
    metric = _metric(case)
    if metric is None:
        return
    # prior std of f(end) - f(start) along each column, the others held
    low, high = (torch.from_numpy(np.diag(side(case.X, axis=0))) for side in (np.min, np.max))
    with torch.no_grad():
        same, ends = (case.model.kernel_.cpu()(low, side).diagonal().numpy() for side in (low, high))
    effect = np.sqrt(2.0 * np.clip(same - ends, 0.0, None))
    names, own = user_columns(case.model)
    varies = (metric > 0) & (np.ptp(case.X, axis=0) > 0.0)
    trend = case.model.model_.trend
    if trend is not None:  # what the kernel does not see of a column, a trend may
        effect[list(trend.columns)] = np.inf
    # a column has the effect of the strongest of its numbers
    largest = np.array([effect[(own == d) & varies].max(initial=-1.0) for d in range(len(names))])
    unused = (largest >= 0.0) & (largest < SMALL_EFFECT * _learned(case).std())
    if unused.any():
        yield Finding(
            NOTICE,
            f"Columns without effect: {listed(names, np.flatnonzero(unused))}",
            f"their lengthscales are so long that f changes by {largest[unused].max():.4g} from end to end",
            "Drop them and fit again: fewer columns need fewer inducing inputs.",
        )


def _spacing(case: Case) -> Iterator[Finding]:
    found = _metric(case)
    metric = np.zeros(case.X.shape[1]) if found is None else found
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


@dataclass(frozen=True)
class JudgedEstimator:
    """What an estimator says of itself to those who judge it."""

    model: Any
    is_light: bool = False

    @property
    def kind(self) -> str:
        return type(self.model).__name__

    @property
    def origin(self) -> Encoding | None:
        origin: Encoding | None = self.model.fitted_.columns.origin
        return origin

    @property
    def layout(self) -> FeatureLayout:
        layout: FeatureLayout = self.model.fitted_.columns.layout
        return layout

    @property
    def transform(self) -> TargetTransform | None:
        return scaling_of(self.model).transform

    @property
    def standardization(self) -> tuple[Array, Array] | None:
        scaling = scaling_of(self.model)
        return (scaling.x_mean, scaling.x_scale) if self.model.normalize else None

    @property
    def inducing(self) -> Array | None:
        return inducing_of(self.model)

    @property
    def has_blocks(self) -> bool:
        return has_blocks(self.model)

    def matrix(self, X: Any) -> Array:
        return checks.new_inputs(self.model, X)

    def prior_std(self, X: Array) -> Array:
        with torch.no_grad():
            std: Array = self.model.kernel_.cpu().diagonal(torch.tensor(X)).sqrt().numpy()
        return std

    def blocks_at(self, X: Array) -> NDArray[np.int64] | None:
        return blocks_at(self.model, X)

    def findings(self, case: Case) -> Iterator[Finding]:
        for check in (_noise, _relevance, _spacing):
            yield from check(case)

    def findings_of_forecasts(self, case: Case) -> Iterator[Finding]:
        yield from _inducing(case)
