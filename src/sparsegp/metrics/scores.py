"""How good predictions are: errors of the mean, proper scores of the density, calibration of the intervals.

Every score is a mean over rows. `mean` and `std` describe the predictive distribution of y, noise included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sparsegp.checked import as_numbers
from sparsegp.errors import InputError

Vector = NDArray[np.float64]

CALIBRATION_LEVELS = tuple(level / 20 for level in range(1, 20))


def rmse(y_true: ArrayLike, mean: ArrayLike) -> float:
    """Root of the mean squared error.

    Parameters
    ----------
    y_true : array of shape (n_rows,)
        The targets.
    mean : array of shape (n_rows,)
        The predicted means.

    Returns
    -------
    float
        The error, in units of y. Lower is better.

    Raises
    ------
    InputError
        If the arrays are not finite numbers of fitting shapes.

    Examples
    --------
    >>> from sparsegp import metrics
    >>> metrics.rmse([1.0, 2.0], [1.0, 4.0]) == 2**0.5
    True
    """
    y, mu = _vectors(y_true=y_true, mean=mean)
    return math.sqrt(np.mean((y - mu) ** 2))


def smse(y_true: ArrayLike, mean: ArrayLike, *, y_train: ArrayLike | None = None) -> float:
    """Mean squared error over the variance of the training targets.

    Parameters
    ----------
    y_true : array of shape (n_rows,)
        The targets.
    mean : array of shape (n_rows,)
        The predicted means.
    y_train : array, default=None
        The training targets. None takes `y_true`.

    Returns
    -------
    float
        The standardised error. 1 is as good as predicting the mean. Lower is better.

    Raises
    ------
    InputError
        If the arrays are not finite numbers of fitting shapes.

    Examples
    --------
    >>> from sparsegp import metrics
    >>> metrics.smse([0.0, 2.0], [1.0, 1.0])
    1.0
    """
    y, mu = _vectors(y_true=y_true, mean=mean)
    _, train_var = _target_moments(y, y_train)
    return float(np.mean((y - mu) ** 2) / train_var)


def nlpd(y_true: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Negative log predictive density of Gaussian forecasts, -log N(y; mean, std^2).

    Parameters
    ----------
    y_true : array of shape (n_rows,)
        The targets.
    mean : array of shape (n_rows,)
        The predicted means.
    std : array of shape (n_rows,)
        The predicted standard deviations of y, noise included.

    Returns
    -------
    float
        The mean over rows. Lower is better.

    Raises
    ------
    InputError
        If the arrays are not finite numbers of fitting shapes.

    Examples
    --------
    >>> from sparsegp import metrics
    >>> round(metrics.nlpd([0.0], [0.0], [1.0]), 4)
    0.9189
    """
    y, mu, sigma = _gaussian(y_true, mean, std)
    with np.errstate(over="ignore"):  # a residual of 1e200 std is an infinite loss
        square = _standardised(y, mu, sigma) ** 2
    return float(np.mean(0.5 * (math.log(2 * math.pi) + square) + np.log(sigma)))


def msll(y_true: ArrayLike, mean: ArrayLike, std: ArrayLike, *, y_train: ArrayLike | None = None) -> float:
    """Mean standardised log loss: NLPD minus that of a Gaussian with mean and variance of the training targets.

    Parameters
    ----------
    y_true : array of shape (n_rows,)
        The targets.
    mean : array of shape (n_rows,)
        The predicted means.
    std : array of shape (n_rows,)
        The predicted standard deviations of y, noise included.
    y_train : array, default=None
        The training targets. None takes `y_true`.

    Returns
    -------
    float
        The loss. 0 is as good as that Gaussian. Lower is better.

    Raises
    ------
    InputError
        If the arrays are not finite numbers of fitting shapes.

    Examples
    --------
    >>> from sparsegp import metrics
    >>> metrics.msll([0.0, 2.0], [1.0, 1.0], [1.0, 1.0])
    0.0
    """
    y, mu, sigma = _gaussian(y_true, mean, std)
    train_mean, train_var = _target_moments(y, y_train)
    trivial = nlpd(y, np.full_like(y, train_mean), np.full_like(y, math.sqrt(train_var)))
    return nlpd(y, mu, sigma) - trivial


def crps(y_true: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Continuous ranked probability score of Gaussian forecasts, in closed form.

    Parameters
    ----------
    y_true : array of shape (n_rows,)
        The targets.
    mean : array of shape (n_rows,)
        The predicted means.
    std : array of shape (n_rows,)
        The predicted standard deviations of y, noise included.

    Returns
    -------
    float
        The mean over rows, in units of y. Lower is better.

    Raises
    ------
    InputError
        If the arrays are not finite numbers of fitting shapes.

    Examples
    --------
    >>> from sparsegp import metrics
    >>> round(metrics.crps([0.0], [0.0], [1.0]), 4)
    0.2337
    """
    y, mu, sigma = _gaussian(y_true, mean, std)
    z = _standardised(y, mu, sigma)
    with np.errstate(over="ignore", under="ignore"):
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    # sigma z is written as y - mu: it stays finite when z overflows
    row = (y - mu) * (2 * _normal_cdf(z) - 1) + sigma * (2 * density - 1 / math.sqrt(math.pi))
    return float(np.mean(row))


def pinball_loss(y_true: ArrayLike, quantile: ArrayLike, level: float) -> float:
    """Pinball loss of a forecast of one quantile.

    Parameters
    ----------
    y_true : array of shape (n_rows,)
        The targets.
    quantile : array of shape (n_rows,)
        The forecasts.
    level : float
        Level of the quantile, strictly between 0 and 1.

    Returns
    -------
    float
        Mean of max(level (y - q), (level - 1) (y - q)). Lower is better.

    Raises
    ------
    InputError
        If the arrays are not finite numbers of fitting shapes.

    Examples
    --------
    >>> from sparsegp import metrics
    >>> metrics.pinball_loss([1.0], [0.0], 0.9)
    0.9
    """
    y, q = _vectors(y_true=y_true, quantile=quantile)
    (tau,) = _levels([level])
    return float(np.mean(np.maximum(tau * (y - q), (tau - 1) * (y - q))))


def crps_from_quantiles(y_true: ArrayLike, quantiles: ArrayLike, levels: ArrayLike) -> float:
    """CRPS of forecasts that are given by quantiles: twice the integral of the pinball loss over levels.

    Parameters
    ----------
    y_true : array of shape (n_rows,)
        The targets.
    quantiles : array of shape (n_rows, n_levels)
        The forecasts, one column for each level.
    levels : array of shape (n_levels,)
        Increasing levels, strictly between 0 and 1.

    Returns
    -------
    float
        The mean over rows, in units of y. Lower is better.

    Raises
    ------
    InputError
        If the arrays are not finite numbers of fitting shapes.

    Examples
    --------
    >>> from sparsegp import metrics
    >>> metrics.crps_from_quantiles([1.0], [[1.0, 1.0]], [0.25, 0.75])
    0.0
    """
    tau = _levels(levels)
    (y,) = _vectors(y_true=y_true)
    q = _numbers("quantiles", quantiles)
    if q.shape != (y.size, tau.size):
        raise InputError(
            f"quantiles must have shape (rows of y_true, levels) = {(y.size, tau.size)}, got {q.shape}; "
            "give one column per level"
        )
    _require_finite("quantiles", q)
    edges = np.concatenate([[0.0], (tau[1:] + tau[:-1]) / 2, [1.0]])
    gap = y[:, None] - q
    return float(2 * np.mean(np.maximum(tau * gap, (tau - 1) * gap) @ np.diff(edges)))


def interval_coverage(y_true: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> float:
    """Share of rows whose target lies inside the interval.

    Parameters
    ----------
    y_true : array of shape (n_rows,)
        The targets.
    lower : array of shape (n_rows,)
        Lower ends.
    upper : array of shape (n_rows,)
        Upper ends.

    Returns
    -------
    float
        From 0 to 1. Best is the coverage that was asked for.

    Raises
    ------
    InputError
        If the arrays are not finite numbers of fitting shapes.

    Examples
    --------
    >>> from sparsegp import metrics
    >>> metrics.interval_coverage([1.0, 5.0], [0.0, 0.0], [2.0, 2.0])
    0.5
    """
    y, low, high = _vectors(y_true=y_true, lower=lower, upper=upper)
    _require_ordered(low, high)
    return float(np.mean((low <= y) & (y <= high)))


def interval_width(lower: ArrayLike, upper: ArrayLike) -> float:
    """Mean width of intervals.

    Parameters
    ----------
    lower : array of shape (n_rows,)
        Lower ends.
    upper : array of shape (n_rows,)
        Upper ends.

    Returns
    -------
    float
        The width, in units of y.

    Raises
    ------
    InputError
        If the arrays are not finite numbers of fitting shapes.

    Examples
    --------
    >>> from sparsegp import metrics
    >>> metrics.interval_width([0.0, 0.0], [1.0, 3.0])
    2.0
    """
    low, high = _vectors(lower=lower, upper=upper)
    _require_ordered(low, high)
    return float(np.mean(high - low))


def pit_values(y_true: ArrayLike, mean: ArrayLike, std: ArrayLike) -> Vector:
    """Probability integral transform: the predictive distribution function at each target.

    Parameters
    ----------
    y_true : array of shape (n_rows,)
        The targets.
    mean : array of shape (n_rows,)
        The predicted means.
    std : array of shape (n_rows,)
        The predicted standard deviations of y, noise included.

    Returns
    -------
    ndarray of shape (n_rows,)
        Phi((y - mean) / std), uniform on (0, 1) if the forecasts are right.

    Raises
    ------
    InputError
        If the arrays are not finite numbers of fitting shapes.

    Examples
    --------
    >>> from sparsegp import metrics
    >>> metrics.pit_values([0.0], [0.0], [1.0])
    array([0.5])
    """
    return _normal_cdf(_standardised(*_gaussian(y_true, mean, std)))


def calibration_error(pit: ArrayLike, *, levels: ArrayLike = CALIBRATION_LEVELS) -> float:
    """How far central intervals are from holding what they promise.

    Parameters
    ----------
    pit : array of shape (n_rows,)
        PIT values of any predictive distribution.
    levels : array, default=CALIBRATION_LEVELS
        Coverages p to compare at.

    Returns
    -------
    float
        Mean over levels p of |p - share of rows inside the central interval of coverage p|.

    Raises
    ------
    InputError
        If the arrays are not finite numbers of fitting shapes.

    Examples
    --------
    >>> from sparsegp import metrics
    >>> metrics.calibration_error([0.5], levels=[0.9]) < 0.1001
    True
    """
    (values,) = _vectors(pit=pit)
    if values.min() < 0 or values.max() > 1:
        raise InputError(
            f"pit must lie in [0, 1], got values from {values.min():g} to {values.max():g}; "
            "compute them with pit_values(y_true, mean, std)"
        )
    nominal = _levels(levels)
    distance = np.sort(np.abs(2 * values - 1))
    empirical = np.searchsorted(distance, nominal, side="right") / values.size
    return float(np.mean(np.abs(empirical - nominal)))


@dataclass(frozen=True)
class TargetValues:
    """How often targets repeat. A density can be as high as it likes at a value that many rows share."""

    n_rows: int
    n_distinct: int
    commonest: float
    n_commonest: int

    few: int = 50
    """Distinct values that are few, if there are ten rows for each of them."""
    often: float = 0.05
    """Share of the rows with one and the same value that is large, if there are ten such rows."""

    @classmethod
    def of(cls, y: ArrayLike) -> TargetValues:
        """Count the values of y."""
        (target,) = _vectors(y=y)
        values, counts = np.unique(target, return_counts=True)
        most = int(counts.argmax())
        return cls(target.size, values.size, float(values[most]), int(counts[most]))

    @property
    def has_few(self) -> bool:
        """Whether there are few distinct values."""
        return self.n_distinct <= min(self.few, self.n_rows // 10)

    @property
    def has_frequent(self) -> bool:
        """Whether one value has many of the rows."""
        return self.n_commonest >= max(10.0, self.often * self.n_rows)

    @property
    def is_discrete(self) -> bool:
        """Whether the NLPD means little: compare forecasts by their CRPS."""
        return self.has_few or self.has_frequent


def time_efficiency(full_seconds: float, anytime_seconds: float) -> float:
    """Seconds of a full model over those of its anytime variant (000 sec. 5).

    Parameters
    ----------
    full_seconds : float
        Seconds of the full model.
    anytime_seconds : float
        Seconds of the anytime variant.

    Returns
    -------
    float
        20 means 20 times faster.

    Raises
    ------
    InputError
        If the arrays are not finite numbers of fitting shapes.

    Examples
    --------
    >>> from sparsegp import metrics
    >>> metrics.time_efficiency(20.0, 1.0)
    20.0
    """
    return _efficiency("seconds", full_seconds, anytime_seconds)


def predictive_efficiency(full_rmse: float, anytime_rmse: float) -> float:
    """RMSE of a full model over that of its anytime variant (000 sec. 5).

    Parameters
    ----------
    full_rmse : float
        RMSE of the full model.
    anytime_rmse : float
        RMSE of the anytime variant.

    Returns
    -------
    float
        1 means that nothing was lost.

    Raises
    ------
    InputError
        If the arrays are not finite numbers of fitting shapes.

    Examples
    --------
    >>> from sparsegp import metrics
    >>> metrics.predictive_efficiency(0.5, 0.5)
    1.0
    """
    return _efficiency("rmse", full_rmse, anytime_rmse)


def _efficiency(unit: str, full: float, anytime: float) -> float:
    if not (math.isfinite(full) and math.isfinite(anytime) and full >= 0.0 and anytime > 0.0):
        raise InputError(f"{unit} must be finite, of the anytime model above 0; got {full!r} (full) and {anytime!r}.")
    return full / anytime


def summary(
    y_true: ArrayLike, mean: ArrayLike, std: ArrayLike, *, y_train: ArrayLike | None = None
) -> dict[str, float]:
    """All scores of Gaussian forecasts, by name.

    Parameters
    ----------
    y_true : array of shape (n_rows,)
        The targets.
    mean : array of shape (n_rows,)
        The predicted means.
    std : array of shape (n_rows,)
        The predicted standard deviations of y, noise included.
    y_train : array, default=None
        The training targets. None takes `y_true`.

    Returns
    -------
    dict of str to float
        The scores, from "rmse" to the coverage and width of 95% intervals.

    Raises
    ------
    InputError
        If the arrays are not finite numbers of fitting shapes.

    Examples
    --------
    >>> from sparsegp import metrics
    >>> sorted(metrics.summary([0.0, 2.0], [0.0, 1.0], [1.0, 1.0]))[:2]
    ['calibration_error', 'coverage_95']
    """
    y, mu, sigma = _gaussian(y_true, mean, std)
    half_width = NormalDist().inv_cdf(0.975) * sigma
    return {
        "rmse": rmse(y, mu),
        "smse": smse(y, mu, y_train=y_train),
        "msll": msll(y, mu, sigma, y_train=y_train),
        "nlpd": nlpd(y, mu, sigma),
        "crps": crps(y, mu, sigma),
        "coverage_95": interval_coverage(y, mu - half_width, mu + half_width),
        "width_95": interval_width(mu - half_width, mu + half_width),
        "calibration_error": calibration_error(pit_values(y, mu, sigma)),
    }


def _standardised(y: Vector, mu: Vector, sigma: Vector) -> Vector:
    with np.errstate(over="ignore"):
        return (y - mu) / sigma


def _normal_cdf(z: Vector) -> Vector:
    # erfc keeps relative accuracy in the lower tail, where 1 + erf cancels
    tail = map(math.erfc, (z * -math.sqrt(0.5)).tolist())
    return 0.5 * np.fromiter(tail, dtype=np.float64, count=z.size)


def _gaussian(y_true: ArrayLike, mean: ArrayLike, std: ArrayLike) -> tuple[Vector, Vector, Vector]:
    y, mu, sigma = _vectors(y_true=y_true, mean=mean, std=std)
    if sigma.min() <= 0:
        row = int(np.argmin(sigma))
        raise InputError(
            f"std must be positive, got {sigma[row]:g} in row {row}; give the standard deviation of y, noise included"
        )
    return y, mu, sigma


def _target_moments(y: Vector, y_train: ArrayLike | None) -> tuple[float, float]:
    name, targets = ("y_true", y) if y_train is None else ("y_train", _vectors(y_train=y_train)[0])
    if targets.min() == targets.max():
        raise InputError(
            f"{name} has the one value {targets[0]:g}, so its variance cannot be a unit of error; "
            "pass y_train with at least two different targets"
        )
    return float(targets.mean()), float(targets.var())


def _vectors(**arrays: ArrayLike) -> list[Vector]:
    checked = {name: _numbers(name, values) for name, values in arrays.items()}
    for name, values in checked.items():
        if values.ndim != 1 or values.size == 0:
            raise InputError(
                f"{name} must be one-dimensional with at least one row, got shape {values.shape}; "
                "give one number per row (.ravel() a column)"
            )
        _require_finite(name, values)
    if len({values.size for values in checked.values()}) > 1:
        lengths = ", ".join(f"{name} has {values.size}" for name, values in checked.items())
        raise InputError(f"arrays must have equal lengths, but {lengths}; give the same rows to each")
    return list(checked.values())


def _numbers(name: str, values: ArrayLike) -> Vector:
    return as_numbers(values, name, "Convert it to a float array first.")


def _require_finite(name: str, values: Vector) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        at = tuple(int(index) for index in np.argwhere(bad)[0])
        raise InputError(
            f"{name} must be finite, but {int(bad.sum())} of {values.size} values are not, "
            f"the first is {values[at]} in row {at[0]}; drop or repair those rows"
        )


def _require_ordered(lower: Vector, upper: Vector) -> None:
    if (lower > upper).any():
        row = int(np.argmax(lower > upper))
        raise InputError(f"lower must not exceed upper, got {lower[row]:g} > {upper[row]:g} in row {row}; swap them")


def _levels(levels: ArrayLike) -> Vector:
    (tau,) = _vectors(levels=levels)
    if tau.min() <= 0 or tau.max() >= 1 or (np.diff(tau) <= 0).any():
        raise InputError(f"levels must increase strictly inside (0, 1), got {tau.tolist()}; sort them, as 0.05 not 5%")
    return tau
