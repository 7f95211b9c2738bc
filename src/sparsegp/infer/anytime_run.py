"""A whole anytime run: draw blocks, step, publish models at growing intervals, stop for a stated reason."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from sparsegp.core import evidence
from sparsegp.core.block import BlockSource
from sparsegp.core.local import LocalPosterior, make_posterior
from sparsegp.core.posterior import InducingPosterior, SparsePosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.reasons import ACCURATE, ALL_STEPS, EXACT, TIME_IS_UP, TOO_SHORT
from sparsegp.core.statistics import BlockStatistics
from sparsegp.errors import InputError
from sparsegp.infer import stopping
from sparsegp.infer.anytime import (
    WITHOUT_REPLACEMENT,
    AnytimeState,
    Averaging,
    NaturalAscent,
    Reading,
    Sampling,
    StepSchedule,
    default_recent,
    read,
)
from sparsegp.infer.batch import StatisticsOfBlock

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
        # geometric times: publishing costs a bounded fraction of a long run
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


@dataclass(frozen=True)
class Options:
    """How a run draws, steps, publishes and ends. `seconds` and `max_steps` of None: no such limit.

    `tolerance` ends the run when the standard error of the predictive mean is below that fraction of the predictive
    standard deviation at every probe (None: never for that reason).
    """

    schedule: StepSchedule = field(default_factory=Averaging)
    sampling: Sampling = WITHOUT_REPLACEMENT
    blocks_per_step: int = 1
    reading: Reading = Reading.RATIO
    seconds: float | None = None
    max_steps: int | None = None
    tolerance: float | None = None
    publish_ratio: float = 1.3

    def __post_init__(self) -> None:
        if self.seconds is not None and not self.seconds > 0.0:
            raise InputError(f"seconds, the time budget, must be positive or None (no limit); got {self.seconds!r}.")
        if self.max_steps is not None and self.max_steps < 1:
            raise InputError(f"max_steps must be at least 1 or None (no limit); got {self.max_steps!r}.")
        if self.tolerance is not None and not self.tolerance > 0.0:
            raise InputError(f"tolerance must be positive or None (no such rule); got {self.tolerance!r}.")
        if not self.publish_ratio >= 1.0:
            raise InputError(f"publish_ratio, between times of publication, is at least 1; got {self.publish_ratio!r}.")
        if self.seconds is None and self.max_steps is None and not self.becomes_exact:
            raise InputError(
                "Only averaging without replacement ends by itself (exact after one epoch); "
                "give seconds or max_steps for other schedules and samplings."
            )

    @property
    def becomes_exact(self) -> bool:
        """Whether the iterate equals the batch posterior when every block was visited once."""
        return self.schedule.averages and self.sampling.exhaustive


@dataclass(frozen=True)
class Snapshot:
    """A published model and how good it is.

    `seconds` is the time worked, `fraction` that of all rows seen, `log_evidence` the estimate of J(q) from the
    blocks processed, `error` the largest (standard error of the mean)/(predictive std) over the probes (None without
    probes), `kl` the divergence of q from the last published one, `reason` why the run ended (None: it goes on).
    """

    step: int
    seconds: float
    rows_seen: float
    fraction: float
    log_evidence: float
    error: float | None
    kl: float
    state: AnytimeState
    statistics: BlockStatistics
    posterior: SparsePosterior | LocalPosterior
    reason: str | None = None

    @property
    def q(self) -> InducingPosterior:
        return self.posterior.q


def run(
    prior: SparsePrior,
    source: BlockSource,
    options: Options | None = None,
    *,
    rng: np.random.Generator,
    probes: stopping.ProbePoints | None = None,
    clock: Clock = time.perf_counter,
) -> Iterator[Snapshot]:
    """Publish after the first step and then at geometrically spaced times; the last Snapshot has a reason.

    The deadline counts the time of the reader too; a step and a publication are only begun if both fit.
    """
    options = options or Options()
    if options.tolerance is not None and probes is None:
        raise InputError("tolerance judges the error at probe points; give probes, for instance some training inputs.")
    pace = Pace(options.seconds, options.publish_ratio, clock)
    engine = NaturalAscent(prior, options.schedule, default_recent(prior) if probes is not None else 0)
    publisher = _Publisher(prior, source, options, probes)
    state, statistics = engine.init(), StatisticsOfBlock(prior)
    for draw in options.sampling.draws(source.sizes, options.blocks_per_step, rng):
        with pace.step():
            state, _ = engine.fold(state, draw, source.each(statistics, draw.index))
        reason = _ending(state, options, pace, publisher.n_blocks)
        if reason is None and not pace.due:
            continue
        with pace.publication():
            progress = publisher.publish(state, reason)
        yield (progress := replace(progress, seconds=pace.worked))
        if progress.reason is not None:
            return
        if pace.late:
            yield replace(progress, reason=TIME_IS_UP)
            return


def _ending(state: AnytimeState, options: Options, pace: Pace, n_blocks: int) -> str | None:
    if options.becomes_exact and state.blocks_seen == n_blocks:
        return EXACT
    if pace.late:
        return TOO_SHORT if state.steps == 1 else TIME_IS_UP
    return ALL_STEPS if state.steps == options.max_steps else None


class _Publisher:
    """Turns states into models; keeps what does not depend on q: probes and prepared blocks."""

    def __init__(
        self, prior: SparsePrior, source: BlockSource, options: Options, points: stopping.ProbePoints | None
    ) -> None:
        self.options = options
        self.n_rows, self.n_blocks = float(source.sizes.sum()), int((source.sizes > 0).sum())
        nothing = InducingPosterior.from_statistics(BlockStatistics.zero(prior))
        self.posterior = make_posterior(prior, nothing, source)
        self.probes = None if points is None else stopping.Probes.prepare(self.posterior, points)

    def publish(self, state: AnytimeState, reason: str | None) -> Snapshot:
        statistics = read(state, self.options.reading, self.n_rows)
        q, before = InducingPosterior.from_statistics(statistics), self.posterior.q
        self.posterior = _refreshed(self.posterior, q)
        all_rows = read(state, Reading.RATIO, self.n_rows)
        error = self._error(state, statistics, q)
        if reason is None and error is not None and error < (self.options.tolerance or -math.inf):
            reason = ACCURATE
        return Snapshot(
            step=state.steps,
            seconds=0.0,
            rows_seen=state.seen.n_rows,
            fraction=state.seen.n_rows / self.n_rows,
            log_evidence=evidence.uncollapsed_objective(all_rows, q),
            error=error,
            kl=evidence.kl_divergence(q, before),
            state=state,
            statistics=statistics,
            posterior=self.posterior,
            reason=reason,
        )

    def _error(self, state: AnytimeState, statistics: BlockStatistics, q: InducingPosterior) -> float | None:
        """Of the extrapolation, whatever the reading: how far the unseen blocks could still move the mean."""
        if self.probes is None:
            return None
        if self.options.reading is Reading.SEEN:
            statistics = read(state, Reading.RATIO, self.n_rows)
            q = InducingPosterior.from_statistics(statistics)
        fraction = stopping.unseen_fraction(state, self.n_blocks, self.options.becomes_exact)
        se = stopping.standard_error(state, statistics, q, self.probes.slopes, fraction=fraction)
        return stopping.relative_error(se, self.probes.std(q))


def _refreshed(posterior: SparsePosterior | LocalPosterior, q: InducingPosterior) -> SparsePosterior | LocalPosterior:
    if isinstance(posterior, LocalPosterior):
        return posterior.with_posterior(q)
    return SparsePosterior(posterior.prior, q, transient=True)
