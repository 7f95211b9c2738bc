"""The seconds of a fit: how many were asked for, how many are left, and what fits into them."""

import math
import time
from collections.abc import Callable

from sparsegp.learning.deadline import Deadline

Clock = Callable[[], float]


def now() -> float:
    """The clock of every budget."""
    return time.perf_counter()


# An evaluation of the objective with its gradient, in passes of inference.
PASSES_PER_EVALUATION = 4.0
LEAST_PASSES_PER_EVALUATION = 2.0
PASS_MARGIN = 1.3
MOST_FOR_PASS = 0.5
LEAST_FOR_STEPS = 0.25


class Budget:
    """`asked` seconds from `started`; None: no limit. `row_seconds`: inference of one row, as last measured."""

    def __init__(self, asked: float | None, started: float) -> None:
        self.asked, self.started = asked, started
        self.clock: Clock = now
        self.row_seconds = 0.0

    @property
    def limited(self) -> bool:
        return self.asked is not None

    @property
    def used(self) -> float:
        return self.clock() - self.started

    @property
    def remaining(self) -> float:
        return math.inf if self.asked is None else self.asked - self.used

    def deadline(self, share: float) -> Deadline | None:
        """When that share of the seconds is over."""
        return None if self.asked is None else Deadline(self.started + share * self.asked, self.clock)

    def pass_seconds(self, n_rows: int) -> float:
        """One pass of inference over that many rows, with a margin."""
        return PASS_MARGIN * n_rows * self.row_seconds

    def learning_deadline(self, n_rows: int, publication: float) -> Deadline | None:
        """Learning leaves time for one pass over all rows if that is not most of the time, else for anytime steps."""
        if not self.limited:
            return None
        reserve = self.pass_seconds(n_rows) + publication
        if reserve > MOST_FOR_PASS * self.remaining:
            reserve = LEAST_FOR_STEPS * self.remaining
        at = self.clock() + self.remaining - reserve
        return Deadline(at, self.clock, PASSES_PER_EVALUATION * self.row_seconds)

    def learned(self, deadline: Deadline) -> None:
        """Evaluations measure inference from above."""
        if deadline.seconds_per_row > 0.0:
            self.row_seconds = min(self.row_seconds, deadline.seconds_per_row / LEAST_PASSES_PER_EVALUATION)
