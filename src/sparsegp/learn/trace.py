"""What every optimiser shares: evaluations that survive failures, the best point found, and the record of it all."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsegp.errors import FactorizationError
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.objective import Objective


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


@dataclass(frozen=True)
class LearningStep:
    """One accepted step of learning, for progress bars and callbacks."""

    objective: float
    n_rows: int
    evaluations: int
    seconds: float


@dataclass(frozen=True)
class LearningResult:
    """What an optimisation reached and what it cost; `reason` is the optimiser's own word for
    ending, `stopped` says that the caller asked for it."""

    objective: float
    n_rows: int
    iterations: int
    evaluations: int
    seconds: float
    reason: str
    stopped: bool = False


StepCallback = Callable[[LearningStep], bool]
"""Called after every accepted step; True asks the optimiser to stop."""


@dataclass(frozen=True)
class Terms:
    """On which terms hyper-parameters are learned, whatever from: the box they stay in, chance, who climbs, who is
    asked after every step whether to stop, and until when."""

    limits: Limits
    rng: np.random.Generator
    optimizer: str = "lbfgs"
    on_step: StepCallback | None = None
    deadline: Deadline | None = None


class Recorder:
    """The negative objective per row as scipy sees it, remembering the best point found."""

    def __init__(
        self,
        objective: Objective,
        hyper: Hyperparameters,
        on_step: StepCallback | None,
        deadline: Deadline | None = None,
    ) -> None:
        self.objective, self.hyper, self.on_step, self.deadline = objective, hyper, on_step, deadline
        self.out_of_time = False
        self.best_value, self.best_vector = -np.inf, hyper.vector()
        self.evaluations, self.failures, self.started = 0, 0, time.perf_counter()

    def __call__(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        self.hyper.load_vector(vector)
        self.evaluations += 1
        try:
            with nullcontext() if self.deadline is None else self.deadline.evaluation(self.objective.n_rows):
                value = self.objective.value_and_gradient(self.hyper)
        except FactorizationError:
            if self.best_value == -np.inf:
                raise
            return self._worse_than_best(vector)
        gradient = self.hyper.gradient()
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return self._worse_than_best(vector)
        if value > self.best_value:
            self.best_value, self.best_vector = value, vector.copy()
        return -value / self.objective.n_rows, -gradient / self.objective.n_rows

    def _worse_than_best(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """A wall: higher than anything seen, sloping back to the best point, so that the line search retreats."""
        self.failures += 1
        away = vector - self.best_vector
        return -self.best_value / self.objective.n_rows + 1e3 + float(away @ away), 2.0 * away

    @contextmanager
    def keeping_best(self) -> Iterator[None]:
        """Around a climb: whatever ends it early, the hyper-parameters are left at the best point found.

        The deadline ends it quietly and sets `out_of_time`.
        """
        try:
            yield
        except OutOfTime:
            self.out_of_time = True
        except BaseException:
            self.hyper.load_vector(self.best_vector)
            raise

    def wants_stop(self) -> bool:
        """Report an accepted step; True when the listener asks to stop."""
        if self.on_step is None:
            return False
        return self.on_step(LearningStep(self.best_value, self.objective.n_rows, self.evaluations, self.seconds))

    def finish(self, iterations: int, reason: str, *, stopped: bool = False) -> LearningResult:
        """Leave the hyper-parameters at the best point found."""
        self.hyper.load_vector(self.best_vector)
        return LearningResult(
            self.best_value,
            self.objective.n_rows,
            iterations,
            self.evaluations,
            self.seconds,
            reason,
            stopped,
        )

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started
