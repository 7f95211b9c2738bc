"""Scorers of whole forecasts, for `scoring=` of scikit-learn: GridSearchCV, cross_validate and their relatives.

A scorer is called with (estimator, X, y) and gives one number, the greater the better. The estimator may be a Pipeline
whose last step is an estimator of this package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sparsegp.checked import as_numbers, checked_targets
from sparsegp.errors import InputError

Vector = NDArray[np.float64]


def forecast_of(estimator: Any, X: Any) -> Any:
    """The distribution of y at each row of X, also where the estimator is the last step of a Pipeline.

    Parameters
    ----------
    estimator : a fitted estimator of this package, or a fitted Pipeline that ends with one
    X : rows as the estimator or the Pipeline takes them

    Returns
    -------
    Predictive
        With `mean`, `std`, `interval`, `quantiles`, `log_density`, `cdf`, `crps` and `sample`.

    Raises
    ------
    InputError
        If the estimator has no forecasts.
    """
    steps = getattr(estimator, "steps", None)
    if steps is not None:
        before, last = estimator[:-1], estimator[-1]
        return forecast_of(last, before.transform(X) if len(before) else X)
    forecast = getattr(estimator, "forecast", None)
    if forecast is None:
        raise InputError(
            "A score of forecasts needs an estimator of sparsegp, or a Pipeline that ends with one; got "
            f"{type(estimator).__name__}, which predicts numbers without their distribution. Put the SparseGPRegressor "
            "itself, or a Pipeline around it, into the search."
        )
    return forecast(X)


def _mean(values: Vector, sample_weight: ArrayLike | None) -> float:
    weights = None if sample_weight is None else as_numbers(sample_weight, "sample_weight")
    return float(np.average(values, weights=weights))


@dataclass(frozen=True)
class DensityScorer:
    """Mean log density of the targets: minus the NLPD."""

    def __call__(self, estimator: Any, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        return _mean(forecast_of(estimator, X).log_density(y), sample_weight)


@dataclass(frozen=True)
class CRPSScorer:
    """Minus the mean of the continuous ranked probability score, in units of y."""

    def __call__(self, estimator: Any, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        return -_mean(forecast_of(estimator, X).crps(y), sample_weight)


@dataclass(frozen=True)
class CoverageScorer:
    """Minus the distance of the share of targets inside the central interval from what it promises; 0 is best.

    It tells honest intervals from dishonest ones, not sharp ones from wide ones: search by `nlpd_scorer` or
    `crps_scorer`, and look at this one beside them.

    Parameters
    ----------
    coverage : float, default 0.95
        What the interval promises.
    """

    coverage: float = 0.95

    def __post_init__(self) -> None:
        if not 0.0 < self.coverage < 1.0:
            raise InputError(
                f"coverage is a probability strictly between 0 and 1, as 0.95 for 95%; got {self.coverage!r}."
            )

    def __call__(self, estimator: Any, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        lower, upper = forecast_of(estimator, X).interval(self.coverage)
        target = checked_targets(y, lower)
        inside = ((lower <= target) & (target <= upper)).astype(np.float64)
        return -abs(_mean(inside, sample_weight) - self.coverage)


nlpd_scorer = DensityScorer()
crps_scorer = CRPSScorer()
coverage_scorer = CoverageScorer()
