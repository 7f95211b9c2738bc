"""The seconds of a fit: how many were asked for, how many are left, and what fits into them."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sparsegp.learn.trace import Deadline

Clock = Callable[[], float]


@dataclass(frozen=True)
class BudgetOptions:
    """How a budget is divided between learning and one pass of inference.

    An evaluation of the objective with its gradient costs several passes of inference. A pass that would take more
    than `most_for_pass` of what is left is not waited for: learning leaves `least_for_steps` of it to anytime steps.
    """

    passes_per_evaluation: float = 4.0
    least_passes_per_evaluation: float = 2.0
    pass_margin: float = 1.3
    most_for_pass: float = 0.5
    least_for_steps: float = 0.25


@dataclass
class Budget:
    """`asked` seconds from `started`; None: no limit. `row_seconds`: inference of one row, as last measured."""

    asked: float | None = None
    started: float = field(default_factory=time.perf_counter)
    clock: Clock = time.perf_counter
    row_seconds: float = 0.0
    options: BudgetOptions = field(default_factory=BudgetOptions)

    @property
    def limited(self) -> bool:
        return self.asked is not None

    @property
    def used(self) -> float:
        return self.clock() - self.started

    @property
    def remaining(self) -> float:
        return math.inf if self.asked is None else self.asked - self.used

    def sub(self, fraction: float) -> "Budget":
        """A part of the seconds that are left, from now on."""
        asked = None if self.asked is None else max(fraction * self.remaining, 0.0)
        return Budget(asked, self.clock(), self.clock, self.row_seconds, self.options)

    def allows(self, seconds: float) -> bool:
        """Whether that many seconds are left."""
        return seconds < self.remaining

    def deadline(self, fraction: float) -> Deadline | None:
        """When that fraction of all seconds is over."""
        return None if self.asked is None else Deadline(self.started + fraction * self.asked, self.clock)

    def pass_seconds(self, n_rows: int) -> float:
        """One pass of inference over that many rows, with a margin."""
        return self.options.pass_margin * n_rows * self.row_seconds

    def learning_deadline(self, n_rows: int, publication: float) -> Deadline | None:
        """Learning leaves time for one pass over all rows if that is not most of the time, else for anytime steps."""
        if not self.limited:
            return None
        reserve = self.pass_seconds(n_rows) + publication
        if reserve > self.options.most_for_pass * self.remaining:
            reserve = self.options.least_for_steps * self.remaining
        at = self.clock() + self.remaining - reserve
        return Deadline(at, self.clock, self.options.passes_per_evaluation * self.row_seconds)

    def learned(self, deadline: Deadline) -> None:
        """Evaluations measure inference from above."""
        if deadline.seconds_per_row > 0.0:
            least = self.options.least_passes_per_evaluation
            self.row_seconds = min(self.row_seconds, deadline.seconds_per_row / least)
