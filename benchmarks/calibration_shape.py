"""Shape of standardised residuals: a mixture of Gaussians by EM, with density, cdf, quantiles and CRPS."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]

LOG_ROOT_2PI = 0.9189385332046727
STARTS = {
    1: [(0.0, 1.0)],
    2: [(0.0, 0.6), (0.0, 1.8)],
    3: [(0.0, 0.4), (0.0, 1.0), (0.0, 2.5)],
    5: [(0.0, 0.3), (0.0, 0.8), (0.0, 2.5), (-0.8, 0.8), (0.8, 0.8)],
    7: [(0.0, 0.2), (0.0, 0.5), (0.0, 1.2), (0.0, 3.0), (0.0, 6.0), (-0.8, 0.7), (0.8, 0.7)],
    9: [(0.0, 0.2), (0.0, 0.47), (0.0, 1.1), (0.0, 2.56), (0.0, 6.0), (0.7, 0.5), (-0.7, 0.5), (2.0, 2.0), (-2.0, 2.0)],
}


@dataclass(frozen=True)
class Prior:
    """Pseudo-counts of EM: `weight` rows for each part, `centre` rows at zero, `width` rows of the starting width.

    `tail` rows belong to a part of `tail_width` times the largest residual or std, so no residual is impossible.
    """

    weight: float = 0.5
    centre: float = 5.0
    width: float = 1.0
    floor: float = 0.03
    tail: float = 1.0
    tail_width: float = 2.0


@dataclass(frozen=True)
class Shape:
    """sum_k weights_k N(r; means_k, stds_k^2)."""

    weights: Array
    means: Array
    stds: Array

    def log_density(self, r: Array) -> Array:
        parts = self._log_parts(r)
        top = parts.max(1)
        out: Array = top + np.log(np.exp(parts - top[:, None]).sum(1))
        return out

    def _log_parts(self, r: Array) -> Array:
        u = (r[:, None] - self.means) / self.stds
        out: Array = np.log(self.weights) - 0.5 * u**2 - np.log(self.stds) - LOG_ROOT_2PI
        return out

    def cdf(self, r: Array) -> Array:
        out: Array = ndtr((r[:, None] - self.means) / self.stds) @ self.weights
        return out

    def quantile(self, level: float) -> float:
        low = float((self.means - 12 * self.stds).min())
        high = float((self.means + 12 * self.stds).max())
        for _ in range(80):
            middle = 0.5 * (low + high)
            if self.cdf(np.array([middle]))[0] < level:
                low = middle
            else:
                high = middle
        return 0.5 * (low + high)

    @property
    def std(self) -> float:
        mean = self.weights @ self.means
        return float(np.sqrt(self.weights @ (self.stds**2 + self.means**2) - mean**2))

    def crps(self, r: Array) -> Array:
        spread = 0.0
        for w, m, s in zip(self.weights, self.means, self.stds, strict=True):
            spread += w * (self.weights @ _absolute(m - self.means, np.hypot(s, self.stds)))
        out: Array = _absolute(r[:, None] - self.means, self.stds) @ self.weights - 0.5 * spread
        return out


GAUSSIAN = Shape(np.ones(1), np.zeros(1), np.ones(1))


def _absolute(mean: Array, std: Array) -> Array:
    """E|N(mean, std^2)|."""
    u = mean / std
    out: Array = 2 * std * np.exp(-0.5 * u**2 - LOG_ROOT_2PI) + mean * (2 * ndtr(u) - 1)
    return out


def compressed(r: Array, n_groups: int = 1000) -> tuple[Array, Array, Array]:
    """Means, variances and sizes of groups of neighbouring residuals; the outermost are groups of their own."""
    r = np.sort(r)
    if len(r) <= 2 * n_groups:
        return r, np.zeros(len(r)), np.ones(len(r))
    tail = n_groups // 10
    edges = np.concatenate(
        [np.arange(tail), np.linspace(tail, len(r) - tail, n_groups).astype(int), np.arange(len(r) - tail + 1, len(r))]
    )
    sizes = np.diff(np.append(edges, len(r))).astype(float)
    means = np.add.reduceat(r, edges) / sizes
    variances = np.maximum(np.add.reduceat(r**2, edges) / sizes - means**2, 0.0)
    return means, variances, sizes


def fitted_shape(r: Array, n_parts: int, prior: Prior, n_steps: int = 150, *, centred: bool = False) -> Shape:
    """EM from scale parts and, from five parts on, shifted ones. The prior keeps widths and centres sober."""
    scale = max(float(np.sqrt(np.median(r**2) / 0.455)), 1e-3)
    x, within, counts = compressed(r / scale)
    n = counts.sum()
    start = np.array(STARTS[n_parts])
    means, stds = start[:, 0].copy(), start[:, 1].copy()
    first = stds.copy()
    weights = np.full(n_parts, 1 / n_parts)
    for _ in range(n_steps):
        parts = Shape(weights, means, stds)._log_parts(x)
        share = np.exp(parts - parts.max(1, keepdims=True))
        share *= (counts / share.sum(1))[:, None]
        size = share.sum(0)
        weights = (size + prior.weight) / (n + n_parts * prior.weight)
        if not centred:
            means = (share * x[:, None]).sum(0) / (size + prior.centre)
        square = (share * ((x[:, None] - means) ** 2 + within[:, None])).sum(0)
        stds = np.sqrt((square + prior.width * first**2) / (size + prior.width) + prior.floor**2)
    if prior.tail > 0:
        widest = prior.tail_width * max(float(np.abs(x).max()), 3.0)
        weights = np.append(weights * n / (n + prior.tail), prior.tail / (n + prior.tail))
        means, stds = np.append(means, 0.0), np.append(stds, widest)
    return Shape(weights, means * scale, stds * scale)
