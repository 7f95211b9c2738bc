"""Mean and standard deviation of columns, gathered batch by batch."""

from dataclasses import dataclass

import numpy as np

from sparsegp.sources.batch import Array

CONSTANT = 1e-12


@dataclass(frozen=True)
class Moments:
    """Of all rows so far: their total weight, and the mean and standard deviation of each column.

    Means are kept as distances from `origin`, the mean of the first batch: a large mean does not cancel. Spreads
    are kept as standard deviations and joined by hypot, which neither overflows nor underflows.
    """

    total: float
    origin: Array
    offset: Array
    std: Array

    @classmethod
    def of(cls, X: Array, weight: Array | None) -> "Moments":
        """The first rows; at least one has a positive weight."""
        return cls._about(np.average(X, axis=0, weights=weight), X, weight)

    @classmethod
    def _about(cls, origin: Array, X: Array, weight: Array | None) -> "Moments":
        centred = X - origin
        offset = np.average(centred, axis=0, weights=weight)
        centred -= offset
        largest = np.abs(centred).max(axis=0)
        unit = np.where(largest > 0, largest, 1.0)
        std = np.sqrt(np.average(np.square(centred / unit), axis=0, weights=weight)) * unit
        return cls(float(len(X) if weight is None else weight.sum()), origin, offset, std)

    def including(self, X: Array, weight: Array | None) -> "Moments":
        """These and more rows: var = p var_1 + q var_2 + p q (mean_2 - mean_1)^2 with p, q the shares of the weight."""
        more = self._about(self.origin, X, weight)
        total = self.total + more.total
        p, q = self.total / total, more.total / total
        gap = more.offset - self.offset
        within = np.hypot(np.sqrt(p) * self.std, np.sqrt(q) * more.std)
        std = np.hypot(within, np.sqrt(p * q) * np.abs(gap))
        return Moments(total, self.origin, self.offset + q * gap, std)

    @property
    def mean(self) -> Array:
        mean: Array = self.origin + self.offset
        return mean

    @property
    def scale(self) -> Array:
        """The standard deviation; 1 for a column that is constant up to the rounding of its mean."""
        constant = (self.std <= CONSTANT * np.abs(self.mean)) | (self.std == 0)
        return np.where(constant, 1.0, self.std)
