"""Forecasts of models without torch: y = mean + unit r at each row, or the average of those of what a row may be."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sparsegp.calibration.mixture import Shape
from sparsegp.checked import checked_coverage, checked_levels, checked_targets
from sparsegp.serving.covariance import Array

_HALVINGS = 100
"""Of a bracket of a quantile: by then its ends are neighbours in double precision."""


class Parts(NamedTuple):
    """sum_j weight_j N(location_j, var_j) at each of some rows: weight is [parts], the others are [rows, parts]."""

    location: Array
    var: Array
    weight: Array


@dataclass(frozen=True, eq=False)
class Forecast:
    """y = mean + unit r at each row, r ~ shape; `f_std` is what is epistemic of its std."""

    mean: Array
    f_std: Array
    unit: Array
    shape: Shape = field(repr=False)

    @property
    def std(self) -> Array:
        std: Array = math.sqrt(self.shape.var) * self.unit
        return std

    @property
    def noise_std(self) -> Array:
        """Standard deviation of the noise: what f leaves of that of y."""
        noise_std: Array = np.sqrt(np.maximum(self.std**2 - self.f_std**2, 0.0))
        return noise_std

    def parts(self, rows: slice) -> Parts:
        """The distribution at some of the rows as a mixture of Gaussians."""
        unit, shape = self.unit[rows, None], self.shape
        return Parts(self.mean[rows, None] + unit * shape.location, (unit * shape.width) ** 2, shape.weight)

    def interval(self, coverage: float) -> tuple[Array, Array]:
        """Lower and upper end of the central interval that holds y with probability `coverage`."""
        ends = self.quantiles(checked_coverage(coverage))
        return ends[:, 0], ends[:, 1]

    def quantiles(self, q: Any) -> Array:
        """Values that y stays below with the probabilities in q: one column for each."""
        quantiles: Array = self.mean[:, None] + self.unit[:, None] * self.shape.quantiles(checked_levels(q))
        return quantiles

    def log_density(self, y: Any) -> Array:
        return self.shape.log_density(self._residuals(y)) - np.log(self.unit)

    def cdf(self, y: Any) -> Array:
        return self.shape.cdf(self._residuals(y))

    def crps(self, y: Any) -> Array:
        return self.unit * self.shape.crps(self._residuals(y))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        sample: Array = self.mean[:, None] + self.unit[:, None] * self.shape.sample((len(self.mean), n), rng)
        return sample

    def _residuals(self, y: Any) -> Array:
        """(y - mean)/unit."""
        residuals: Array = (checked_targets(y, self.mean) - self.mean) / self.unit
        return residuals


@dataclass(frozen=True, eq=False)
class DrawnForecast:
    """The average of forecasts of what a row may be: `base` has `n_draws` of each row, one after another."""

    base: Forecast
    n_draws: int

    @property
    def mean(self) -> Array:
        mean: Array = self._lines(self.base.mean).mean(axis=1)
        return mean

    @property
    def std(self) -> Array:
        return self._with_spread(self.base.std)

    @property
    def f_std(self) -> Array:
        return self._with_spread(self.base.f_std)

    def interval(self, coverage: float) -> tuple[Array, Array]:
        ends = self.quantiles(checked_coverage(coverage))
        return ends[:, 0], ends[:, 1]

    def quantiles(self, q: Any) -> Array:
        """By bisection between the least and the largest quantile of what the row may be."""
        levels = checked_levels(q)
        ends = self.base.quantiles(levels).reshape(-1, self.n_draws, len(levels))
        found = [self._quantile(level, *ends[:, :, k].T) for k, level in enumerate(levels)]
        return np.column_stack(found)

    def parts(self, rows: slice) -> Parts:
        """Those of all draws of a row, side by side."""
        start, stop, _ = rows.indices(len(self.base.mean) // self.n_draws)
        location, var, weight = self.base.parts(slice(start * self.n_draws, stop * self.n_draws))
        shape = stop - start, -1
        return Parts(location.reshape(shape), var.reshape(shape), np.tile(weight, self.n_draws) / self.n_draws)

    def _quantile(self, level: float, *of_draws: Array) -> Array:
        low, high = np.min(of_draws, axis=0), np.max(of_draws, axis=0)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            below = self.cdf(middle) < level
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        quantile: Array = 0.5 * (low + high)
        return quantile

    def log_density(self, y: Any) -> Array:
        each = self._lines(self.base.log_density(self._repeated(y)))
        most = each.max(axis=1)
        density: Array = most + np.log(np.exp(each - most[:, None]).mean(axis=1))
        return density

    def cdf(self, y: Any) -> Array:
        below: Array = self._lines(self.base.cdf(self._repeated(y))).mean(axis=1)
        return below

    def crps(self, y: Any) -> Array:
        """E|Y - y| - E|Y - Y'|/2, where Y and Y' may come from different draws."""
        target = checked_targets(y, self.mean)
        shape, base = self.base.shape, self.base
        centres = base.mean[:, None] + base.unit[:, None] * shape.location
        widths = base.unit[:, None] * shape.width
        weight = np.tile(shape.weight, self.n_draws) / self.n_draws
        out = np.empty(len(target))
        for k, (centre, width) in enumerate(zip(self._lines(centres), self._lines(widths), strict=True)):
            row = Shape(weight, centre.ravel(), width.ravel())
            out[k] = row.crps(target[k : k + 1])[0]
        return out

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        draws = self._lines(self.base.sample(n, rng))
        chosen = rng.integers(self.n_draws, size=(len(draws), 1, n))
        sample: Array = np.take_along_axis(draws, chosen, axis=1)[:, 0]
        return sample

    def _lines(self, values: Array) -> Array:
        return values.reshape(-1, self.n_draws, *values.shape[1:])

    def _repeated(self, y: Any) -> Array:
        return np.repeat(checked_targets(y, self.mean), self.n_draws)

    def _with_spread(self, std: Array) -> Array:
        spread: Array = np.sqrt(self._lines(std**2).mean(axis=1) + self._lines(self.base.mean).var(axis=1))
        return spread
