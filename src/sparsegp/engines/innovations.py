"""Are the data still those the model expects? Innovations of recent rows, and an alarm."""

import math
from dataclasses import dataclass

from sparsegp.engines.filter_state import StepInfo

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
