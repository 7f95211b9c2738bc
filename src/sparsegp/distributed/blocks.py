"""Anytime inference from blocks on workers: those drawn in a step are summed where they are, each at the same time."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsegp.data import Block
from sparsegp.distributed import worker_tasks
from sparsegp.distributed.messages import PackedPrior
from sparsegp.distributed.rounds import gathered, submit
from sparsegp.distributed.rows import DistributedRows
from sparsegp.estimators.stepping.anytime_inference import FEWEST_BLOCK_ROWS, USUAL_STEPS
from sparsegp.parallel import packed
from sparsegp.prior import SparsePrior
from sparsegp.statistics import BlockStatistics

MOST_BLOCK_ROWS = 8192
"""More than in memory: a block must be worth the message of M(M+1)/2 numbers that it sends."""


@dataclass(frozen=True)
class DistributedBlocks:
    """A `BlockSource` of rows on workers; blocks are numbered through the shares."""

    rows: DistributedRows
    sizes: NDArray[np.float64]
    _priors: dict[str, tuple[Any, ...]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, rows: DistributedRows, seed: int) -> "DistributedBlocks":
        """The rows' own blocks, or random ones inside every share."""
        rows = rows if rows.first_blocks is not None else _shuffled(rows, seed)
        return cls(rows, np.concatenate(gathered(rows.client, rows.each(worker_tasks.block_weights))))

    @property
    def n_blocks(self) -> int:
        return self.rows.n_blocks

    def block(self, k: int) -> Block:
        """The rows of block k, which come to this process."""
        share, number = self._place(k)
        asked = submit(self.rows.client, worker_tasks.block_of, self.rows.shares[share], number)
        found: Block = gathered(self.rows.client, [asked])[0]
        return found

    def statistics(self, prior: SparsePrior, blocks: Sequence[int]) -> list[BlockStatistics]:
        """Of each block. Not summed on the way: the stopping rule judges how blocks differ."""
        places = [self._place(k) for k in blocks]
        numbers = [[number for share, number in places if share == mine] for mine in range(len(self.rows.shares))]
        answers = gathered(
            self.rows.client, self.rows.each(worker_tasks.statistics_of_blocks, self._placed_prior(prior), numbers)
        )
        self.rows.traffic.rounds += 1
        self.rows.traffic.received += sum(part.n_bytes for parts in answers for part in parts)
        waiting = [iter(parts) for parts in answers]
        return [next(waiting[share]).unpacked() for share, _ in places]

    def _place(self, k: int) -> tuple[int, int]:
        """The share of block k and its number there."""
        assert self.rows.first_blocks is not None
        share = int(np.searchsorted(self.rows.first_blocks, k, side="right")) - 1
        return share, int(k - self.rows.first_blocks[share])

    def _placed_prior(self, prior: SparsePrior) -> tuple[Any, ...]:
        """Built once on every worker: steps at the same hyper-parameters send block numbers only."""
        if prior.fingerprint not in self._priors:
            message = packed(PackedPrior.of(prior))
            self.rows.traffic.sent += len(message) * len(self.rows.shares)
            self._priors[prior.fingerprint] = tuple(
                submit(self.rows.client, worker_tasks.built_prior, message, home=home) for home in self.rows.homes
            )
        return self._priors[prior.fingerprint]


def _shuffled(rows: DistributedRows, seed: int) -> DistributedRows:
    block_rows = min(MOST_BLOCK_ROWS, max(FEWEST_BLOCK_ROWS, len(rows) // USUAL_STEPS))
    counts = [max(1, -(-count // block_rows)) for count in rows.counts]
    seeds = [(seed, 2, k) for k in range(len(counts))]
    shares = rows.each(worker_tasks.shuffled_share, counts, seeds)
    return replace(rows, shares=shares, first_blocks=np.concatenate([[0], np.cumsum(counts)]))
