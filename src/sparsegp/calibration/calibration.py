"""A forecast is location, scale and shape. The model gives location and scale; residuals of rows that it had not seen
correct the scale, place by place, and give the shape."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp.calibration.mixture import Shape
from sparsegp.calibration.scale import LocalScale
from sparsegp.calibration.transform import Transformed
from sparsegp.checked import checked_coverage, checked_levels, checked_targets
from sparsegp.core.predictive import (
    Array,
    Generator,
    Joint,
    Parts,
    Predictive,
)
from sparsegp.errors import InputError


@dataclass(frozen=True)
class Calibration:
    """y = mean(x) + std(x) c(x) r with r ~ shape; without `scale`, c = 1.

    `n_rows` residuals were learned from. `gain` is what the log density of a row gained, on rows left out.
    """

    shape: Shape
    scale: LocalScale | None = None
    n_rows: int = 0
    gain: float = 0.0

    def after(self, r: Array, half_life: float, farthest: float) -> "Calibration":
        """With the residuals of new rows, which were forecast before they were known; older ones fade."""
        shape = self.shape.after(np.clip(r, -farthest, farthest), half_life)
        return replace(self, shape=shape, n_rows=self.n_rows + len(r))

    def surprise(self, r: Array, most: float) -> float:
        """Mean square of residuals of new rows by what the shape expects of it; each counts with `most` of that."""
        return float(np.minimum(r**2 / self.shape.var, most).mean())

    def applied(self, forecast: Predictive, X: Tensor, target_mean: float, target_scale: float) -> "Calibrated":
        """The calibrated forecast at rows X, which are in the scaling of the model."""
        if self.scale is None:
            return Calibrated(forecast, np.ones_like(forecast.mean), self.shape)
        mean, std = (forecast.mean - target_mean) / target_scale, forecast.std / target_scale
        return Calibrated(forecast, self.scale.at(X.double().cpu().numpy(), mean, std), self.shape)


@dataclass(frozen=True, eq=False)
class Calibrated:
    """y = mean + std c r at each row, with r ~ shape: a Gaussian mixture a row, all of one shape.

    What is epistemic stays what the model says of f, as long as that is not more than all there is.
    """

    base: Predictive
    scale: Array
    shape: Shape

    @property
    def mean(self) -> Array:
        return self.base.mean

    @property
    def unit(self) -> Array:
        """What r is multiplied by."""
        unit: Array = self.base.std * self.scale
        return unit

    @property
    def var(self) -> Array:
        var: Array = self.unit**2 * self.shape.var
        return var

    @property
    def std(self) -> Array:
        return np.sqrt(self.var)

    @property
    def f_std(self) -> Array:
        return np.minimum(self.base.f_std, self.std)

    @property
    def noise_var(self) -> Array:
        # where f is all there is, the difference of equal numbers may be a little below zero
        return np.maximum(self.var - self.f_std**2, 0.0)

    @property
    def noise_std(self) -> Array:
        return np.sqrt(self.noise_var)

    @property
    def latent(self) -> Predictive:
        return self.base.latent

    def interval(self, coverage: float) -> tuple[Array, Array]:
        ends = self.quantiles(checked_coverage(coverage))
        return ends[:, 0], ends[:, 1]

    def quantiles(self, q: ArrayLike) -> Array:
        quantiles: Array = self.mean[:, None] + self.unit[:, None] * self.shape.quantiles(checked_levels(q))
        return quantiles

    def log_density(self, y: ArrayLike) -> Array:
        return self.shape.log_density(self.residuals(y)) - np.log(self.unit)

    def cdf(self, y: ArrayLike) -> Array:
        return self.shape.cdf(self.residuals(y))

    def crps(self, y: ArrayLike) -> Array:
        return self.unit * self.shape.crps(self.residuals(y))

    def sample(self, n: int, rng: Generator) -> Array:
        draws: Array = self.mean[:, None] + self.unit[:, None] * self.shape.sample((len(self.mean), n), rng)
        return draws

    def noise_sample(self, shape: tuple[int, int], rng: Generator) -> Array:
        noise: Array = self.noise_std[:, None] * rng.standard_normal(shape)
        return noise

    def parts(self, rows: slice) -> Parts:
        unit, shape = self.unit[rows, None], self.shape
        with np.errstate(divide="ignore"):
            log_weight = np.log(shape.weight)
        return Parts(self.mean[rows], (unit * shape.width) ** 2, log_weight, unit * shape.location)

    def residuals(self, y: ArrayLike) -> Array:
        """r of each target."""
        residuals: Array = (checked_targets(y, self.mean) - self.mean) / self.unit
        return residuals


@dataclass(frozen=True, eq=False)
class CalibratedJoint(Joint):
    """All rows together: each has its calibrated forecast, and they go together as the model says."""

    rows: Calibrated

    @property
    def latent(self) -> Joint:
        return Joint(self.rows.latent, self.f_cov)

    @property
    def cov(self) -> Array:
        """Covariance of y at all rows; its diagonal is that of the calibrated forecasts."""
        f_std = self.rows.base.f_std
        shrunk = np.divide(self.rows.f_std, f_std, out=np.ones_like(f_std), where=f_std > 0.0)
        cov: Array = np.outer(shrunk, shrunk) * self.f_cov
        cov[np.diag_indices_from(cov)] = self.rows.var
        return cov

    def sample(self, n: int, rng: Generator) -> Array:
        """Draws of y at all rows together [rows, n]: a Gaussian copula."""
        base = self.rows.base
        draws = (Joint(base, self.f_cov).sample(n, rng) - self.mean[:, None]) / base.std[:, None]
        sample: Array = self.mean[:, None] + self.rows.unit[:, None] * self.rows.shape.from_normal(draws)
        return sample


@dataclass(frozen=True, eq=False)
class TransformedJoint(Joint):
    """All rows together, from the forecast of their transformed targets, which `base` is."""

    rows: Transformed
    base: Joint

    @property
    def latent(self) -> Joint:
        """f at all rows, on the scale of the transformed targets."""
        return self.base.latent

    @property
    def cov(self) -> Array:
        raise InputError(
            f"With target_transform={self.rows.transform.name!r} the covariance of y at several rows is not computed. "
            "Take it from draws, np.cov(sample_y(X, 10000)); latent=True gives that of f on the transformed scale, and "
            "return_std the standard deviation of each row."
        )

    def sample(self, n: int, rng: Generator) -> Array:
        """Draws of y at all rows together [rows, n]."""
        return self.rows.transform.inverse(self.base.sample(n, rng))
