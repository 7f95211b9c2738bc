"""The seconds of a fit: how many were asked for, how many are left, and what fits into them."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sparsegp.learn.trace import Deadline

Clock = Callable[[], float]


@dataclass(frozen=True)
class Fractions:
    """Of the remaining budget for a start, blocks and inducing inputs; and the work of `neighbourhoods.learn` and
    `kmeans_partition`, in scans of all rows and in assignments to all blocks.

    A row costs about the power `row_power` of the inducing inputs. Choosing those from fewer than `rows_per_inducing`
    rows for each is not worth it; a trial of `trial` of the inputs and rows tells what it costs.
    """

    fewest_inducing: int = 64
    row_power: float = 1.5
    rows_per_inducing: int = 4
    trial: float = 0.25
    start: float = 0.3
    blocks: float = 0.3
    inducing: float = 0.2
    start_scans: int = 2000
    partition_passes: int = 6
    scan_rows: int = 131_072
    assigned_rows: int = 4096
    fewest_start_seconds: float = 4.0


@dataclass(frozen=True)
class BudgetOptions:
    """How a budget is divided between learning and one pass of inference.

    An evaluation of the objective with its gradient costs several passes of inference. A pass that would take more
    than `most_for_pass` of what is left is not waited for: learning leaves `least_for_steps` of it to a part of the
    rows. A pass goes in pieces of `piece` of what is left, so that the clock is looked at in between. `fractions` are
    for what comes before learning.
    """

    passes_per_evaluation: float = 2.0
    pass_margin: float = 1.3
    most_for_pass: float = 0.5
    least_for_steps: float = 0.25
    piece: float = 0.1
    fractions: Fractions = field(default_factory=Fractions)


@dataclass
class Budget:
    """`asked` seconds from `started`; None: no limit.

    `row_seconds`: inference of one row, as last measured; `read_seconds`: reading one, where rows are not in memory.
    """

    asked: float | None = None
    started: float = field(default_factory=time.perf_counter)
    clock: Clock = time.perf_counter
    row_seconds: float = 0.0
    options: BudgetOptions = field(default_factory=BudgetOptions)
    read_seconds: float = 0.0

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
        return replace(self, asked=asked, started=self.clock())

    def allows(self, seconds: float) -> bool:
        """Whether that many seconds are left."""
        return seconds < self.remaining

    def deadline(self, fraction: float) -> Deadline | None:
        """When that fraction of all seconds is over."""
        if self.asked is None:
            return None
        return Deadline(self.started + fraction * self.asked, self.clock)

    def deadline_of_rest(self, fraction: float) -> Deadline | None:
        """When that fraction of what is left is over."""
        return None if self.asked is None else Deadline(self.clock() + fraction * self.remaining, self.clock)

    def pass_seconds(self, n_rows: int) -> float:
        """One pass of inference over that many rows, with a margin. Reading goes on beside it."""
        return self.options.pass_margin * n_rows * max(self.row_seconds, self.read_seconds)

    def piece_rows(self) -> float:
        """Rows of a pass between two looks at the clock."""
        if self.row_seconds == 0.0 or self.asked is None:
            return math.inf
        return self.options.piece * max(self.remaining, 0.0) / self.row_seconds

    def learning_deadline(self, n_rows: int, publication: float) -> Deadline | None:
        """Learning leaves time for one pass over all rows if that is not most of the time, else for a part of them.

        What the pass costs is read from the evaluations as they come: other processes may start at any time.
        """
        if not self.limited:
            return None
        options = self.options
        at, row = self.clock() + self.remaining - publication, options.passes_per_evaluation * self.row_seconds
        if self.pass_seconds(n_rows) + publication > options.most_for_pass * self.remaining:
            return Deadline(at - options.least_for_steps * self.remaining, self.clock, row)
        if self.read_seconds > self.row_seconds:
            return Deadline(at - self.pass_seconds(n_rows), self.clock, row)
        return Deadline(at, self.clock, row, options.pass_margin * n_rows / options.passes_per_evaluation)

    def learned(self, deadline: Deadline) -> None:
        """Evaluations are the latest word on what a row costs."""
        if deadline.seconds_per_row > 0.0:
            self.row_seconds = deadline.seconds_per_row / self.options.passes_per_evaluation
