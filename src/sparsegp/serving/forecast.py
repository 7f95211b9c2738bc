"""What a predictor says of some rows: y = mean + unit r, with the distribution of r."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegp.calibration.mixture import Shape
from sparsegp.errors import InputError
from sparsegp.serving.covariance import Array


@dataclass(frozen=True, eq=False)
class Forecast:
    """The distribution of y at each of some rows. Ask it as you ask the forecast of an estimator."""

    mean: Array
    unit: Array
    shape: Shape

    @property
    def std(self) -> Array:
        """Standard deviation of y."""
        return math.sqrt(self.shape.var) * self.unit

    def interval(self, coverage: float) -> tuple[Array, Array]:
        """Lower and upper end of the central interval that holds y with probability `coverage`."""
        if not 0.0 < coverage < 1.0:
            raise InputError(f"coverage is a probability strictly between 0 and 1; got {coverage!r}.")
        ends = self.quantiles([0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage])
        return ends[:, 0], ends[:, 1]

    def quantiles(self, q: Any) -> Array:
        """One column for each level in q."""
        levels = np.atleast_1d(np.asarray(q, dtype=np.float64))
        if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all():
            raise InputError(f"Quantile levels must lie strictly between 0 and 1; got {q!r}.")
        quantiles: Array = self.mean[:, None] + self.unit[:, None] * self.shape.quantiles(levels)
        return quantiles

    def log_density(self, y: Any) -> Array:
        """log p(y) of each row."""
        return self.shape.log_density(self._residuals(y)) - np.log(self.unit)

    def cdf(self, y: Any) -> Array:
        """P(Y <= y) of each row."""
        return self.shape.cdf(self._residuals(y))

    def crps(self, y: Any) -> Array:
        """Continuous ranked probability score of each row, in units of y."""
        return self.unit * self.shape.crps(self._residuals(y))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draws of y [rows, n], independent from row to row."""
        sample: Array = self.mean[:, None] + self.unit[:, None] * self.shape.sample((len(self.mean), n), rng)
        return sample

    def _residuals(self, y: Any) -> Array:
        """(y - mean)/unit of each row."""
        target = np.asarray(y, dtype=np.float64).ravel()
        if target.shape != self.mean.shape:
            raise InputError(f"y must have one target for each of the {len(self.mean)} rows; got {len(target)}.")
        return (target - self.mean) / self.unit
