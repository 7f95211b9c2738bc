"""The shape of forecasts: the distribution of standardised residuals, one for all rows, as a mixture of Gaussians.

Needs numpy alone, because models are served without the rest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ROOT_2PI = math.sqrt(2.0 * math.pi)
ROOT_STEPS = 200
ROOT_TOLERANCE = 1e-14
REACH = 38.0
"""Standard deviations beyond which a normal tail is no number."""
NODES = np.linspace(-8.0, 0.0, 257)
LEAST_SHRINKAGE = 0.5
"""No step makes a part of a shape narrower than this times what it was."""

_erfc: Callable[[Array], Array] = np.vectorize(math.erfc, otypes=[np.float64])


def normal_cdf(z: Array) -> Array:
    """P(Z <= z), with its digits in the lower tail."""
    probability: Array = 0.5 * _erfc(-z / math.sqrt(2.0))
    return probability


@dataclass(frozen=True, eq=False)
class Shape:
    """r ~ sum_j weight_j N(location_j, width_j^2), with mean 0: what is left of y - mean, divided by its scale."""

    weight: Array
    location: Array
    width: Array

    @classmethod
    def gaussian(cls, width: float = 1.0) -> "Shape":
        return cls(np.ones(1), np.zeros(1), np.array([width]))

    @property
    def is_gaussian(self) -> bool:
        return len(self.weight) == 1

    @property
    def var(self) -> float:
        return float(self.weight @ (self.width**2 + self.location**2))

    def widened(self, factor: float) -> "Shape":
        """Every part wider, and where it was: narrow parts, which hold much of the density, lose little of it."""
        return Shape(self.weight, self.location, factor * self.width)

    def stretched(self, factor: float) -> "Shape":
        """The distribution of factor * r: parts that make up a whole together stay close to each other."""
        return Shape(self.weight, factor * self.location, factor * self.width)

    def centred(self) -> "Shape":
        """With mean 0: a forecast stays at the mean of the model.

        Every part moves by the same number of its own widths. Narrow parts, which are where targets have the same
        value again and again, keep their places so, and the wide ones make up for it.
        """
        mean, mean_width = float(self.weight @ self.location), float(self.weight @ self.width)
        return Shape(self.weight, self.location - mean / mean_width * self.width, self.width)

    def log_density(self, r: Array) -> Array:
        return self.split(r)[0]

    def split(self, r: Array) -> tuple[Array, Array]:
        """The log density of each residual, and how likely it is of each part: an array [residuals, parts].

        Several shapes at once are arrays [shapes, 1, parts]; everything then has an axis of shapes before the others.
        """
        with np.errstate(divide="ignore"):
            log_scale = np.log(self.weight) - np.log(ROOT_2PI * self.width)
        parts: Array = log_scale - 0.5 * ((r[..., None] - self.location) / self.width) ** 2
        most = parts.max(axis=-1, keepdims=True)
        np.exp(np.subtract(parts, most, out=parts), out=parts)
        total = parts.sum(axis=-1, keepdims=True)
        parts /= total
        density: Array = (most + np.log(total))[..., 0]
        return density, parts

    def after(self, r: Array, half_life: float) -> "Shape":
        """The shape of a stream, with more residuals in it: a residual counts half after `half_life` more.

        One step of expectation and maximisation. What the parts have seen is what they say, of as many residuals as
        count for one whenever it is asked.
        """
        _, seen = self.split(r)
        memory, kept = half_life / math.log(2.0), 0.5 ** (len(r) / half_life)
        before = kept * memory * self.weight
        count = before + seen.sum(axis=0)
        total = before * self.location + seen.T @ r
        squares = before * (self.width**2 + self.location**2) + seen.T @ r**2
        location = total / count
        width = np.sqrt(np.maximum(squares / count - location**2, (LEAST_SHRINKAGE * self.width) ** 2))
        return Shape(count / count.sum(), location, width).centred()

    def cdf(self, r: Array) -> Array:
        below: Array = normal_cdf((r[..., None] - self.location) / self.width) @ self.weight
        return below

    def crps(self, r: Array) -> Array:
        """E|R - r| - E|R - R'|/2; R - R' has the parts N(m_i - m_j, s_i^2 + s_j^2)."""
        pairs = mean_size(self.location[:, None] - self.location, np.sqrt(self.width[:, None] ** 2 + self.width**2))
        distance: Array = mean_size(r[..., None] - self.location, self.width) @ self.weight
        return distance - 0.5 * float(self.weight @ pairs @ self.weight)

    def quantiles(self, levels: Array) -> Array:
        """One for each level, increasing with it."""
        levels = np.atleast_1d(np.asarray(levels, dtype=np.float64))
        upper = levels > 0.5
        tails = self._lower_quantiles(np.where(upper, 0.5, levels))
        mirrored = -self.mirrored()._lower_quantiles(np.where(upper, 1.0 - levels, 0.5))
        return np.where(upper, mirrored, tails)

    def from_normal(self, g: Array) -> Array:
        """Values of r that are reached as often as the values g of a standard normal: quantiles, interpolated."""
        if self.is_gaussian:
            return np.asarray(float(self.width[0]) * g, dtype=np.float64)
        tail = normal_cdf(NODES)
        below, above = self._lower_quantiles(tail), -self.mirrored()._lower_quantiles(tail)
        values: Array = np.interp(g, np.append(NODES, -NODES[-2::-1]), np.append(below, above[-2::-1]))
        return values

    def mirrored(self) -> "Shape":
        """The distribution of -r."""
        return Shape(self.weight, -self.location, self.width)

    def _lower_quantiles(self, tail: Array) -> Array:
        """t with P(R <= t) = tail <= 1/2, by bisection: in the lower tail probabilities keep their digits."""
        low = np.full(tail.shape, (self.location - REACH * self.width).min())
        high = np.full(tail.shape, (self.location + REACH * self.width).max())
        for _ in range(ROOT_STEPS):
            middle = 0.5 * (low + high)
            below = self.cdf(middle) < tail
            low, high = np.where(below, middle, low), np.where(below, high, middle)
            if (high - low <= ROOT_TOLERANCE * np.maximum(np.abs(low), np.abs(high))).all():
                break
        quantiles: Array = 0.5 * (low + high)
        return quantiles

    def sample(self, size: tuple[int, ...], rng: np.random.Generator) -> Array:
        part = rng.choice(len(self.weight), size=size, p=self.weight)
        draws: Array = self.location[part] + self.width[part] * rng.standard_normal(size)
        return draws


def mean_size(mean: Array, std: Array) -> Array:
    """E|N(mean, std^2)| = mean (2 Phi(z) - 1) + 2 std phi(z) with z = mean/std."""
    z = mean / std
    size: Array = mean * (2.0 * normal_cdf(z) - 1.0) + 2.0 * std * np.exp(-0.5 * z**2) / ROOT_2PI
    return size
