"""How far recent rows are from those the standardisation was made with."""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from sparsegp.estimators.predictions import Array

HALF_LIFE = 100.0
FEWEST_ROWS = 20.0
FAR = 5.0
MOST = 4.0 * FAR
"""A row counts with at most this many standard deviations: one odd row is not a stream."""


@dataclass(frozen=True)
class RecentLevel:
    """Exponentially weighted totals of the standardised columns of X and of y, and their weight."""

    weight: float = 0.0
    total: Array = field(default_factory=lambda: np.zeros(1))
    target_total: float = 0.0
    reported: bool = False

    def after(self, X: Tensor, y: Tensor) -> "RecentLevel":
        """Including more rows."""
        n, kept = X.shape[0], 0.5 ** (X.shape[0] / HALF_LIFE)
        columns, target = (_clipped_total(values) for values in (X, y))
        total = kept * self.total + columns
        return RecentLevel(kept * self.weight + n, total, kept * self.target_total + float(target), self.reported)

    @property
    def is_far(self) -> bool:
        """A column is on average more than 5 standard deviations of the first fit from its mean then."""
        return self.weight >= FEWEST_ROWS and max(np.abs(self.total).max(), abs(self.target_total)) > FAR * self.weight

    @property
    def description(self) -> str:
        mean = np.abs(np.append(self.total, self.target_total)) / self.weight
        column = int(mean.argmax())
        name = "the target" if column == len(mean) - 1 else f"column {column}"
        return f"{name} is now on average {mean[column]:.1f} or more of its standard deviations away from its mean"


def _clipped_total(values: Tensor) -> Array:
    array: Array = values.cpu().numpy()
    total: Array = np.minimum(np.maximum(array, -MOST), MOST).sum(0, dtype=np.float64)
    return total
