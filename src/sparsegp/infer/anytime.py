"""Anytime inference: stochastic natural-gradient ascent on q(u) (000 eqs. 24-26; derivations/anytime.md).

In natural parameters a step is an average,

    theta_{t+1} = (1 - rho) theta_t + rho (prior + sum_s w_s stat_s),

and the prior is the same in both terms, so the state is a BlockStatistics and nothing is factorised before somebody
asks for a prediction. rho in (0, 1] and w_s >= 0 keep the precision >= I at every step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sparsegp.core.block import Block, Sizes
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.errors import InputError


@dataclass(frozen=True)
class Draw:
    """Blocks of one step: E[sum_s w_s stat_s] = sum of all. `fresh` says that a block was not drawn before."""

    index: tuple[int, ...]
    weights: tuple[float, ...]
    fresh: tuple[bool, ...]

    def __post_init__(self) -> None:
        if not (self.index and len(self.index) == len(self.weights) == len(self.fresh)) or min(self.weights) < 0.0:
            raise InputError(
                "A step needs at least one block, and a weight >= 0 and a freshness for each: a negative weight can "
                f"make the posterior precision indefinite; got {self!r}."
            )


Draws = Callable[[Sizes, int, np.random.Generator], Iterator[Draw]]


@dataclass(frozen=True)
class Sampling:
    """An endless stream of draws. `exhaustive`: every block comes once before any comes again."""

    draws: Draws
    exhaustive: bool


def _without_replacement(sizes: Sizes, per_step: int, rng: np.random.Generator) -> Iterator[Draw]:
    """Random order, epoch by epoch; w = K/|S|."""
    filled = filled_blocks(sizes, per_step)
    first = True
    while True:
        order = rng.permutation(filled)
        for start in range(0, len(order), per_step):
            index = order[start : start + per_step]
            yield make_draw(index, np.full(len(index), len(filled) / len(index)), np.full(len(index), first))
        first = False


def make_draw(index: NDArray[np.int64], weights: Sizes, fresh: NDArray[np.bool_]) -> Draw:
    return Draw(tuple(index.tolist()), tuple(weights.tolist()), tuple(fresh.tolist()))


def filled_blocks(sizes: Sizes, per_step: int) -> NDArray[np.int64]:
    """The blocks that have rows."""
    filled = np.flatnonzero(sizes > 0)
    if len(filled) == 0:
        raise InputError(f"None of the {len(sizes)} blocks has a row; give at least one row of positive weight.")
    if per_step < 1:
        raise InputError(f"blocks_per_step must be at least 1; got {per_step!r}.")
    return filled


WITHOUT_REPLACEMENT = Sampling(_without_replacement, exhaustive=True)


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


MOST_RECENT = 30
FEWEST_RECENT = 8
RECENT_BYTES = 256 * 2**20


class Reading(Enum):
    """What an unfinished run stands for.

    RATIO: the iterate, as if all rows had been seen, scaled to their number: n/(rows processed). The iterate itself is
        unbiased too, with more variance if block sizes differ much.
    SEEN: the exact posterior of the rows seen, honestly wide.
    """

    RATIO = "ratio"
    SEEN = "seen"


@dataclass(frozen=True)
class Visit:
    """A block drawn: its statistics, 1/p_s with p_s its chance in one draw, and its weight in the present iterate."""

    statistics: BlockStatistics
    inverse_chance: float
    weight: float


@dataclass(frozen=True)
class AnytimeState:
    """The iterate without the prior, the sum over the distinct blocks seen, and what the stopping rule needs.

    `spread` is sum_i omega_i^2/|S_i| with omega_i the share of step i in the iterate: the variance of the iterate in
    units of that of one block's estimate; 1/(blocks drawn) when averaging.
    """

    iterate: BlockStatistics
    seen: BlockStatistics
    steps: int = 0
    blocks_drawn: int = 0
    blocks_seen: int = 0
    spread: float = 0.0
    recent: tuple[Visit, ...] = ()


@dataclass(frozen=True)
class StepInfo:
    """What a report needs of a step."""

    rate: float
    n_rows: float


@dataclass(frozen=True)
class NaturalAscent:
    """SNGA from the prior. `n_recent` blocks are remembered for the stopping rule (see `default_recent`)."""

    prior: SparsePrior
    schedule: StepSchedule = field(default_factory=Averaging)
    n_recent: int = 0

    def init(self) -> AnytimeState:
        nothing = BlockStatistics.zero(self.prior)
        return AnytimeState(nothing, nothing)

    def step(self, state: AnytimeState, draw: Draw, blocks: Sequence[Block]) -> tuple[AnytimeState, StepInfo]:
        """The statistics of the drawn blocks, folded in: one M x M sum, no factorisation of that size."""
        return self.fold(state, draw, [BlockStatistics.from_block(self.prior, block) for block in blocks])

    def fold(self, state: AnytimeState, draw: Draw, parts: Sequence[BlockStatistics]) -> tuple[AnytimeState, StepInfo]:
        """The step for blocks whose statistics are known."""
        drawn = state.blocks_drawn + len(parts)
        rate = self.schedule.rate(state.steps, len(parts), drawn)
        after = AnytimeState(
            iterate=blend(state.iterate, parts, draw.weights, rate),
            seen=sum((part for part, fresh in zip(parts, draw.fresh, strict=True) if fresh), start=state.seen),
            steps=state.steps + 1,
            blocks_drawn=drawn,
            blocks_seen=state.blocks_seen + sum(draw.fresh),
            spread=(1.0 - rate) ** 2 * state.spread + rate**2 / len(parts),
            recent=self._remember(state.recent, parts, draw.weights, rate),
        )
        return after, StepInfo(rate, sum(part.n_rows for part in parts))

    def _remember(
        self, recent: tuple[Visit, ...], parts: Sequence[BlockStatistics], weights: Sequence[float], rate: float
    ) -> tuple[Visit, ...]:
        if self.n_recent == 0:
            return ()
        older = tuple(replace(visit, weight=(1.0 - rate) * visit.weight) for visit in recent)
        newer = tuple(Visit(part, w * len(parts), rate * w) for part, w in zip(parts, weights, strict=True))
        return (*older, *newer)[-self.n_recent :]


def blend(
    iterate: BlockStatistics, parts: Sequence[BlockStatistics], weights: Sequence[float], rate: float
) -> BlockStatistics:
    """(1 - rho) theta + rho sum_s w_s stat_s (000 eq. 26)."""
    return sum((rate * w * part for part, w in zip(parts, weights, strict=True)), start=(1.0 - rate) * iterate)


def read(state: AnytimeState, reading: Reading, n_rows: float) -> BlockStatistics:
    """The statistics a reading stands for; `n_rows` counts all rows, with their weights."""
    if reading is Reading.SEEN or state.iterate.n_rows == 0.0:
        return state.seen
    return n_rows / state.iterate.n_rows * state.iterate


def default_recent(prior: SparsePrior) -> int:
    """About thirty blocks, fewer where their M x M statistics would fill the memory."""
    return int(min(MOST_RECENT, max(FEWEST_RECENT, RECENT_BYTES // (8 * prior.n_features**2))))
