"""Step sizes rho_t of stochastic ascent; 0 < rho <= 1 keeps every natural-gradient iterate positive definite."""

from dataclasses import dataclass
from typing import Protocol


class StepSchedule(Protocol):
    """The weight of the new estimate in the next iterate."""

    @property
    def averages(self) -> bool:
        """Whether the iterate is the plain average of all estimates so far."""

    def rate(self, step: int, drawn: int, processed: int) -> float:
        """rho of step 0, 1, ...: `drawn` blocks in this step, `processed` in all steps up to and including it."""


@dataclass(frozen=True)
class Averaging:
    """rho_t = |S_t| / sum_{i<=t} |S_i|, which is 1/(t+1) for steps of equal size: nothing to tune."""

    averages: bool = True

    def rate(self, step: int, drawn: int, processed: int) -> float:
        return drawn / processed
