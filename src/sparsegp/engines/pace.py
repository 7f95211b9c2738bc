"""The clock of an anytime run: when to publish, and whether another step still fits before the deadline."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Clock = Callable[[], float]

MEMORY = 0.7


class Pace:
    """Measures steps and publications. `worked` leaves out what the reader of the run does between publications."""

    def __init__(self, seconds: float | None, publish_ratio: float, clock: Clock) -> None:
        self.clock, self.publish_ratio = clock, publish_ratio
        self.deadline = None if seconds is None else clock() + seconds
        self.worked = self.step_seconds = self.publish_seconds = self.next_publication = 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        started = self.clock()
        yield
        taken = self.clock() - started
        self.worked += taken
        self.step_seconds = MEMORY * (self.step_seconds or taken) + (1.0 - MEMORY) * taken

    @contextmanager
    def publication(self) -> Iterator[None]:
        started = self.clock()
        yield
        taken = self.clock() - started
        self.worked += taken
        self.publish_seconds = max(taken, MEMORY * self.publish_seconds)
        # geometric times: publishing costs a bounded share of a long run
        self.next_publication = self.publish_ratio * self.worked

    @property
    def due(self) -> bool:
        return self.worked >= self.next_publication

    @property
    def late(self) -> bool:
        """Whether another step and its publication would end after the deadline."""
        if self.deadline is None:
            return False
        return self.clock() + self.step_seconds + self.publish_seconds >= self.deadline
