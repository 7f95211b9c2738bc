"""From predicted quantiles to a proper density, so that quantile models can be scored by the log density too.

The quantile function is linear between neighbouring levels: the density between two quantiles is the
probability between them over their distance. Two constants make it a usable density, and both are chosen on
held-out rows so that the quantile model gets its best score:

- `min_width`: neighbouring quantiles are pushed at least this far apart per unit of probability (trees often
  give equal quantiles, and the density would be infinite there);
- `tail_scale`: below the lowest and above the highest quantile the density falls exponentially, with a scale
  of this constant times the distance of the two outermost quantiles.

Quantiles that cross are sorted first (the rearrangement of Chernozhukov, Fernandez-Val and Galichon 2010).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

MIN_WIDTHS = (0.03, 0.1, 0.3, 0.6, 1.0, 1.5, 2.5, 4.0)
TAIL_SCALES = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0)


@dataclass(frozen=True)
class QuantileDensity:
    levels: np.ndarray
    min_width: float
    tail_scale: float

    def log_density(self, y: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
        """log p(y) of each row, from that row's quantiles."""
        knots = self._separated(np.sort(quantiles, axis=1))
        mass = np.diff(self.levels)
        inside = np.log(mass) - np.log(np.diff(knots, axis=1))
        interval = np.clip((y[:, None] >= knots).sum(1) - 1, 0, len(mass) - 1)
        result = inside[np.arange(len(y)), interval]
        low, high = y < knots[:, 0], y > knots[:, -1]
        low_tail = self._tail(knots[:, 0] - y, knots[:, 1] - knots[:, 0], self.levels[0])
        high_tail = self._tail(y - knots[:, -1], knots[:, -1] - knots[:, -2], 1.0 - self.levels[-1])
        return np.where(low, low_tail, np.where(high, high_tail, result))

    def interval(self, quantiles: np.ndarray, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the central interval: the quantiles themselves where the levels have them."""
        knots = np.sort(quantiles, axis=1)
        low, high = (1.0 - coverage) / 2.0, (1.0 + coverage) / 2.0
        lower, upper = self._quantile(knots, low), -self._mirrored()._quantile(-knots[:, ::-1], 1.0 - high)
        return lower, np.maximum(lower, upper)  # equal quantiles may differ by rounding

    def _mirrored(self) -> QuantileDensity:
        return QuantileDensity(1.0 - self.levels[::-1], self.min_width, self.tail_scale)

    def _quantile(self, knots: np.ndarray, level: float) -> np.ndarray:
        """The quantile of a level below one half: linear between knots, the exponential tail below the lowest."""
        if level < self.levels[0] - 1e-12:
            narrowest = self.min_width * (self.levels[1] - self.levels[0])
            scale = self.tail_scale * np.maximum(knots[:, 1] - knots[:, 0], narrowest)
            return knots[:, 0] - scale * np.log(self.levels[0] / level)
        place = np.interp(level, self.levels, np.arange(len(self.levels)))
        below = min(int(place + 1e-9), len(self.levels) - 2)
        share = np.clip(place - below, 0.0, 1.0)
        return (1.0 - share) * knots[:, below] + share * knots[:, below + 1]

    def _separated(self, knots: np.ndarray) -> np.ndarray:
        """Widen narrow gaps to min_width x (probability of the gap), the row's middle staying in place."""
        gaps = np.maximum(np.diff(knots, axis=1), self.min_width * np.diff(self.levels))
        grown = np.concatenate([np.zeros((len(knots), 1)), np.cumsum(gaps, axis=1)], axis=1)
        middle = knots.shape[1] // 2
        return grown - grown[:, [middle]] + knots[:, [middle]]

    def _tail(self, distance: np.ndarray, outer_gap: np.ndarray, mass: float) -> np.ndarray:
        scale = self.tail_scale * outer_gap
        return np.log(mass) - np.log(scale) - np.maximum(distance, 0.0) / scale


def fit_quantile_density(levels: np.ndarray, y: np.ndarray, quantiles: np.ndarray) -> QuantileDensity:
    """The pair (min_width, tail_scale) with the highest mean log density of the given (held-out) rows."""
    candidates = [QuantileDensity(levels, width, tail) for width, tail in product(MIN_WIDTHS, TAIL_SCALES)]
    return max(candidates, key=lambda density: density.log_density(y, quantiles).mean())
