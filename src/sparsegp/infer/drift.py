"""Are the data still those the model expects? Innovations of recent rows, and how far the rows themselves have gone."""

import math
import warnings
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparsegp.infer.recursive import StepInfo

HALF_LIFE = 100.0
"""Rows after which an innovation counts half."""
ALARM_Z = 5.0
ALARM_MEAN_SQUARE = 1.5


@dataclass(frozen=True)
class Innovations:
    """Exponentially weighted mean square of innovations, each step divided by what the model expected of it.

    square_sum = sum_k c_k n_k nis_k/expected_k, weight = sum_k c_k n_k, weight_sq = sum_k c_k^2 n_k with
    c_k = 2^(-age/100).
    """

    rows: int = 0
    square_sum: float = 0.0
    weight: float = 0.0
    weight_sq: float = 0.0

    def after(self, step: StepInfo) -> "Innovations":
        """Including one more step."""
        return self if step.n_rows == 0 else self.after_rows(step.n_rows, step.clipped_nis / step.expected_nis)

    def after_rows(self, n_rows: int, mean_square: float) -> "Innovations":
        """Including more rows, given the mean square of their standardised errors."""
        kept = 0.5 ** (n_rows / HALF_LIFE)
        return Innovations(
            self.rows + n_rows,
            kept * self.square_sum + n_rows * mean_square,
            kept * self.weight + n_rows,
            kept * kept * self.weight_sq + n_rows,
        )

    @property
    def mean_square(self) -> float:
        """1 when the model is right; above 1 it is too sure of itself. 1 before the first row."""
        return self.square_sum / self.weight if self.weight else 1.0

    @property
    def z(self) -> float:
        """`mean_square` as a standard normal: chi^2/nu with nu = weight^2/weight_sq, by Wilson and Hilferty's root."""
        if not self.weight:
            return 0.0
        spread = 2.0 * self.weight_sq / (9.0 * self.weight**2)
        return (math.pow(max(self.mean_square, 0.0), 1.0 / 3.0) - 1.0 + spread) / math.sqrt(spread)

    @property
    def drift(self) -> bool:
        """Recent errors are larger than chance allows (z > 5) and large enough to matter (mean square > 1.5)."""
        return self.mean_square > ALARM_MEAN_SQUARE and self.z > ALARM_Z

    def summary(self) -> dict[str, float | bool]:
        return {"rows": self.rows, "mean_square": self.mean_square, "z": self.z, "drift": self.drift}


Array = NDArray[np.float64]

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
