"""How far recent rows are from those the standardisation was made with."""

import warnings
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

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
        columns, target = (clipped_total(values) for values in (X, y))
        return self.after_totals(X.shape[0], columns, float(target))

    def after_totals(self, n: int, columns: Array, target: float) -> "RecentLevel":
        """Including n more rows, given as their `clipped_total`s."""
        kept = 0.5 ** (n / HALF_LIFE)
        return RecentLevel(
            kept * self.weight + n, kept * self.total + columns, kept * self.target_total + target, self.reported
        )

    @property
    def is_far(self) -> bool:
        """A column is on average more than 5 standard deviations of the first fit from its mean then."""
        if self.weight < FEWEST_ROWS:
            return False
        far, target_far = FAR * self.weight, abs(self.target_total) > FAR * self.weight
        # no column is far unless all together are: a product is cheaper than a maximum, and this is asked row by row
        return target_far or (self.total.dot(self.total) > far * far and bool(np.abs(self.total).max() > far))

    def reported_once(self) -> "RecentLevel":
        """This level; the first time that it is far, with a warning to the caller of the update."""
        if self.reported or not self.is_far:
            return self
        warnings.warn(
            f"Recent rows have left the data of the first fit far behind: {self.description}. "
            "Standardisation, inducing inputs and hyper-parameters stay those of that fit; fit again on recent rows.",
            stacklevel=4,
        )
        return replace(self, reported=True)

    @property
    def description(self) -> str:
        mean = np.abs(np.append(self.total, self.target_total)) / self.weight
        column = int(mean.argmax())
        name = "the target" if column == len(mean) - 1 else f"column {column}"
        return f"{name} is now on average {mean[column]:.1f} or more of its standard deviations away from its mean"


def clipped_total(values: Tensor) -> Array:
    """Sum over rows, each counted with at most `MOST` standard deviations."""
    array: Array = values.cpu().numpy()
    clipped = np.minimum(np.maximum(array, -MOST), MOST)
    total: Array = clipped[0] if len(clipped) == 1 else clipped.sum(0, dtype=np.float64)
    return total
