"""A time by which learning must end, and whether another evaluation of the objective still fits before it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

OUT_OF_TIME = "time is up"


class OutOfTime(Exception):
    """The next evaluation would end after the deadline."""


@dataclass
class Deadline:
    """Evaluations must end before `at`. `seconds_per_row` is the cost of one, as last measured (0: not known yet).

    `reserve` is work that follows and must end before `at` too, as the rows of an evaluation that costs as much.
    """

    at: float
    clock: Callable[[], float] = time.perf_counter
    seconds_per_row: float = 0.0
    reserve: float = 0.0

    @property
    def left(self) -> float:
        """Seconds until the work that follows must begin."""
        return self.at - self.clock() - self.reserve * self.seconds_per_row

    def allows(self, n_rows: int, evaluations: int = 1) -> bool:
        """Whether that many evaluations on `n_rows` rows would end in time."""
        return evaluations * n_rows * self.seconds_per_row < self.left

    @contextmanager
    def evaluation(self, n_rows: int) -> Iterator[None]:
        """Around one evaluation: refuses it when it does not fit, measures it when it does."""
        if not self.allows(n_rows):
            raise OutOfTime
        started = self.clock()
        yield
        self.seconds_per_row = (self.clock() - started) / n_rows


def is_over(deadline: Deadline | None) -> bool:
    """Whether there is a deadline and it has passed."""
    return deadline is not None and deadline.left <= 0.0
