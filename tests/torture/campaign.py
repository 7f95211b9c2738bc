"""A campaign of faults: seeded cases, each of which says what came of it or fails, and the counts of all of them."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

Case = Callable[[int], str]
"""Runs the case of a seed in one word; a promise that is broken is an exception."""


@dataclass(frozen=True)
class Campaign:
    """`prepare` makes the cases, in a folder of their own.

    `share` is the part of the time of a bounded run, `goal` the number of cases of a long one, each of which counts
    `steps` times.
    """

    name: str
    prepare: Callable[[Path], Case]
    share: float
    goal: int
    steps: int = 1


@dataclass
class Tally:
    """What came of the cases: counts by word, and the seeds that failed with their errors."""

    name: str
    steps: int = 1
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def cases(self) -> int:
        return (sum(self.outcomes.values()) + len(self.failures)) * self.steps

    def line(self) -> str:
        found = ", ".join(f"{self.steps * count:,} {word}" for word, count in sorted(self.outcomes.items()))
        return (
            f"{self.name:<12} {self.cases:>9,} cases {self.seconds:>7.1f} s  {len(self.failures):>3} failed  ({found})"
        )


def run(campaign: Campaign, seeds: Iterable[int], seconds: float = float("inf")) -> Tally:
    """Cases until the seeds or the time are used up, or Ctrl-C; one at least. Failures are printed as they come."""
    tally, started = Tally(campaign.name, campaign.steps), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        case = campaign.prepare(Path(folder))
        for seed in seeds:
            try:
                tally.outcomes[case(seed)] += 1
            except KeyboardInterrupt:
                break
            except Exception as error:
                tally.failures.append((seed, repr(error)))
                print(f"FAILED: {campaign.name}, seed {seed}\n{traceback.format_exc()}", flush=True)
            tally.seconds = time.monotonic() - started
            if tally.seconds > seconds:
                break
    return tally


@contextmanager
def expected(*kinds: type[BaseException]) -> Iterator[list[BaseException]]:
    """The errors of these kinds that came up within: one or none."""
    found: list[BaseException] = []
    try:
        yield found
    except kinds as error:
        found.append(error)
