"""Targets on another scale: the model learns z = t(y), and its forecasts of z are carried back to y, exactly.

The targets have a natural zero. Where a forecast of z reaches below t(0), y is zero: no forecast goes below it.

Needs numpy alone, because models are served without the rest.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from sparsegp.calibration.mixture import Array, normal_cdf
from sparsegp.checked import as_numbers
from sparsegp.errors import InputError

REACH = 9.0
"""Standard deviations beyond which a normal distribution has nothing to say: its density is 1e-18 there."""
NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(48)
FAR = 1e-4
"""Mean and std of an exponential of no Gaussian take what lies beyond the quantile of this level for the quantile."""
PANEL_NODES, PANEL_WEIGHTS = np.polynomial.legendre.leggauss(8)
PANEL_LEVELS = normal_cdf(np.arange(-8.0, 9.0))
"""CRPS is integrated between the quantiles of these levels, panel by panel."""
CHUNK_NUMBERS = 2**21


class Mixture(Protocol):
    """A mixture of Gaussians at each of some rows."""

    @property
    def location(self) -> Array:
        """Means of the parts [rows, parts]."""

    @property
    def var(self) -> Array:
        """Variances of the parts [rows, parts]."""

    @property
    def weight(self) -> Array:
        """Weights of the parts [parts]."""


Moments = tuple[Array, Array]


@dataclass(frozen=True)
class TargetTransform:
    """z = forward(y) for y >= 0, and y = inverse(z), which is 0 below `zero` = forward(0).

    `log_slope` is log dy/dz at z. `free_moments` are mean and variance of the smooth inverse of a Gaussian z, from its
    mean and variance, as if it went on below `zero`. `is_exponential`: y grows like exp(z).
    """

    name: str
    zero: float
    forward: Callable[[Array], Array]
    inverse: Callable[[Array], Array]
    log_slope: Callable[[Array], Array]
    free_moments: Callable[[Array, Array], Moments]
    is_exponential: bool

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """A copy is the row of the table itself."""
        return named, (self.name,)

    def targets(self, y: Array) -> Array:
        """z of targets that all have one."""
        below = ~(y > 0.0) if self.zero == -math.inf else ~(y >= 0.0)
        if not below.any():
            return self.forward(y)
        first, lowest = int(np.flatnonzero(below)[0]), float(y.min())
        raise InputError(
            f"target_transform={self.name!r} takes targets {'above' if self.zero == -math.inf else 'from'} zero"
            f"{'' if self.zero == -math.inf else ' on'}; {int(below.sum()):,} of these {len(y):,} are not. The lowest "
            f"is {lowest:g}; the first is number {first} (counted from 0), {float(y[first]):g}. "
            f"{'' if lowest < 0.0 else _FOR_ZEROS}Drop these rows if they are wrong; otherwise fit with "
            "target_transform=None."
        )

    def moments(self, mean: Array, var: Array, ends: tuple[Array, Array] | None = None) -> Moments:
        """Mean and variance of y where z ~ N(mean, var); with `ends` of z, y stays between those of them.

        In closed form where z goes beyond no end.
        """
        if ends is not None:
            return self._bounded_moments(mean, var, *ends)
        with np.errstate(over="ignore", invalid="ignore"):
            y_mean, y_var = self.free_moments(mean, var)
            cut = mean < self.zero + REACH * np.sqrt(var)
            if cut.any():
                zero, beyond = np.full(int(cut.sum()), self.zero), np.full(int(cut.sum()), math.inf)
                y_mean[cut], y_var[cut] = self._bounded_moments(mean[cut], var[cut], zero, beyond)
        return y_mean, y_var

    def _bounded_moments(self, mean: Array, var: Array, low: Array, high: Array) -> Moments:
        """By a Gauss-Legendre rule between the ends; what lies beyond an end counts as the end."""
        std = np.sqrt(var)
        first = np.maximum(low, mean - REACH * std)
        # exp(2z) moves a Gaussian by twice its variance
        heaviest = mean + 2.0 * var if self.is_exponential else mean
        last = np.minimum(high, np.maximum(heaviest, first) + REACH * std)
        half = 0.5 * np.maximum(last - first, 0.0)[..., None]
        z = first[..., None] + half * (1.0 + NODES)
        share = np.exp(-0.5 * ((z - mean[..., None]) / std[..., None]) ** 2) * half * NODE_WEIGHTS
        share /= math.sqrt(2.0 * math.pi) * std[..., None]
        y, y_low = self.inverse(z), self.inverse(low)
        y_high = self.inverse(np.where(high < math.inf, high, low))
        at_low, at_high = normal_cdf((low - mean) / std), normal_cdf((mean - high) / std)
        y_mean = (share * y).sum(axis=-1) + at_low * y_low + at_high * y_high
        y_var = (share * (y - y_mean[..., None]) ** 2).sum(axis=-1)
        return y_mean, y_var + at_low * (y_low - y_mean) ** 2 + at_high * (y_high - y_mean) ** 2


_FOR_ZEROS = "'log1p' and 'sqrt' take targets of zero. "


def _expm1(z: Array) -> Array:
    return np.expm1(np.maximum(z, 0.0))


def _square(z: Array) -> Array:
    squared: Array = np.maximum(z, 0.0) ** 2
    return squared


def _identity(z: Array) -> Array:
    return z


def _log_twice(z: Array) -> Array:
    return np.log(2.0 * z)


def _log_moments(mean: Array, var: Array) -> Moments:
    """Of exp(z)."""
    y_mean = np.exp(mean + 0.5 * var)
    return y_mean, y_mean**2 * np.expm1(var)


def _log1p_moments(mean: Array, var: Array) -> Moments:
    """Of exp(z) - 1."""
    return np.expm1(mean + 0.5 * var), _log_moments(mean, var)[1]


def _square_moments(mean: Array, var: Array) -> Moments:
    """Of z^2."""
    return mean**2 + var, 2.0 * var * (var + 2.0 * mean**2)


_ROWS = (
    TargetTransform("log", -math.inf, np.log, np.exp, _identity, _log_moments, True),
    TargetTransform("log1p", 0.0, np.log1p, _expm1, _identity, _log1p_moments, True),
    TargetTransform("sqrt", 0.0, np.sqrt, _square, _log_twice, _square_moments, False),
)
TRANSFORMS: Mapping[str, TargetTransform] = {row.name: row for row in _ROWS}


def named(name: str | None) -> TargetTransform | None:
    """The transform of this name; None for None."""
    if name is None:
        return None
    if not isinstance(name, str) or name not in TRANSFORMS:
        raise InputError(f"target_transform must be None or one of {', '.join(map(repr, TRANSFORMS))}; got {name!r}.")
    return TRANSFORMS[name]


@dataclass(frozen=True, eq=False)
class Transformed:
    """A forecast of y, from one of z: the same probabilities at the places that y has.

    Quantiles, intervals and draws are those of z, mapped. The density has the slope of the map. y = 0 has the
    probability of all z below the zero of the transform, and `log_density` of a target of zero is the log of that.
    `base` is the forecast of z, of any kind that has means, quantiles and parts.
    """

    base: Any
    transform: TargetTransform

    @property
    def mean(self) -> Array:
        """Mean of y itself, which lies above the median.

        Of a Gaussian z that is exact. Where log(y) or log1p(y) has another shape, the farthest ten-thousandth at
        either end counts as the quantile there: of exp(z) the tail would be most of the variance, and nobody has seen
        it.
        """
        return self._moments[0]

    @property
    def var(self) -> Array:
        return self._moments[1]

    @property
    def std(self) -> Array:
        return np.sqrt(self.var)

    @property
    def f_std(self) -> Array:
        """The epistemic part: it has the share of the variance of y that it has of the variance of z."""
        part: Array = self.std * self.base.f_std / self.base.std
        return part

    @property
    def noise_std(self) -> Array:
        """The aleatoric part: it has the share of the variance of y that it has of the variance of z."""
        return np.sqrt(self.noise_var)

    @property
    def noise_var(self) -> Array:
        return np.maximum(self.var - self.f_std**2, 0.0)

    @property
    def latent(self) -> Any:
        """The forecast of the noise-free function f, which is one of z."""
        return self.base.latent

    @cached_property
    def _moments(self) -> Moments:
        n_rows, n_parts = len(self.base.mean), self.base.parts(slice(0, 1)).weight.size
        # the tails of exp(z) are those of a Gaussian z, or they are a guess: of learned noise exp(z) has no mean
        ends = self.base.quantiles([FAR, 1.0 - FAR]) if self.transform.is_exponential and n_parts > 1 else None
        mean, var = np.empty(n_rows), np.empty(n_rows)
        size = max(1, CHUNK_NUMBERS // (len(NODES) * n_parts))
        for start in range(0, n_rows, size):
            rows = slice(start, start + size)
            mean[rows], var[rows] = self._moments_of(self.base.parts(rows), None if ends is None else ends[rows])
        return mean, var

    def _moments_of(self, parts: Mixture, ends: Array | None) -> Moments:
        shape, zero = parts.var.shape, self.transform.zero
        bounds = None
        if ends is not None:
            low, high = (np.broadcast_to(np.maximum(end, zero)[:, None], shape) for end in ends.T)
            bounds = low, high
        means, variances = self.transform.moments(np.broadcast_to(parts.location, shape), parts.var, bounds)
        mean: Array = means @ parts.weight
        var: Array = (variances + (means - mean[:, None]) ** 2) @ parts.weight
        return mean, var

    def interval(self, coverage: float) -> tuple[Array, Array]:
        lower, upper = self.base.interval(coverage)
        return self.transform.inverse(lower), self.transform.inverse(upper)

    def quantiles(self, q: ArrayLike) -> Array:
        return self.transform.inverse(self.base.quantiles(q))

    def log_density(self, y: ArrayLike) -> Array:
        target, z = self._located(y)
        with np.errstate(divide="ignore", invalid="ignore"):
            density = self.base.log_density(z) - self.transform.log_slope(z)
            zero = np.log(self.base.cdf(z))
        return np.where(target < 0.0, -np.inf, np.where(target == 0.0, zero, density))

    def cdf(self, y: ArrayLike) -> Array:
        target, z = self._located(y)
        return np.where(target < 0.0, 0.0, self.base.cdf(z))

    def crps(self, y: ArrayLike) -> Array:
        """The integral of (F - step at y)^2, to about eight digits: the step is an end of a panel.

        Probabilities of 1e-15 at both ends are left out.
        """
        target, z = self._located(y)
        inverse = self.transform.inverse
        ends = np.maximum(self.base.quantiles(PANEL_LEVELS), self.transform.zero)
        inside = np.clip(z, ends[:, 0], ends[:, -1])
        crps = np.abs(np.maximum(target, 0.0) - inverse(inside)) + np.maximum(-target, 0.0)
        for low, high in pairwise(np.sort(np.column_stack([ends, inside]), axis=1).T):
            crps += self._panel(low, high, inside)
        return crps

    def _panel(self, low: Array, high: Array, step: Array) -> Array:
        half, total = 0.5 * (high - low), np.zeros_like(low)
        for node, weight in zip(PANEL_NODES, PANEL_WEIGHTS, strict=True):
            z = low + half * (1.0 + node)
            below = self.base.cdf(z)
            gap = np.where(low >= step, 1.0 - below, below)
            with np.errstate(divide="ignore"):
                total += weight * half * gap**2 * np.exp(self.transform.log_slope(z))
        return total

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return self.transform.inverse(self.base.sample(n, rng))

    def noise_sample(self, shape: tuple[int, int], rng: np.random.Generator) -> Array:
        raise InputError(f"Noise adds to {self._scale}, and not to y: ask for draws of y with sample().")

    def parts(self, rows: slice) -> Any:
        raise InputError(
            f"A forecast with target_transform={self.transform.name!r} is no mixture of Gaussians. That of "
            f"{self._scale} is one: its `base`."
        )

    @property
    def _scale(self) -> str:
        return f"{self.transform.name}(y)"

    def _located(self, y: ArrayLike) -> tuple[Array, Array]:
        """Each target, and its z; that of zero for those below."""
        target = as_numbers(y, "y").ravel()
        with np.errstate(divide="ignore"):
            return target, self.transform.forward(np.maximum(target, 0.0))


def before_carried(forecast: Any) -> Any:
    """The forecast of the target that the model learned, which may be the transformed one."""
    return forecast.base if isinstance(forecast, Transformed) else forecast


def carried(forecast: Any, transform: TargetTransform | None) -> Any:
    """The forecast of y from that of z."""
    return forecast if transform is None else Transformed(forecast, transform)
