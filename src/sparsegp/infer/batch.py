"""Batch inference: the sum over all rows in one pass, wherever they are."""

import time
from dataclasses import dataclass
from functools import partial

from sparsegp import parallel
from sparsegp.core.block import Block, MemoryRows, Rows
from sparsegp.core.local import LocalPosterior, make_posterior
from sparsegp.core.posterior import InducingPosterior, SparsePosterior, log_evidence
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics


@dataclass(frozen=True)
class BatchState:
    """Everything a later update needs: the prior and the statistics of the rows seen."""

    prior: SparsePrior
    statistics: BlockStatistics


@dataclass(frozen=True)
class BatchInfo:
    """What a report needs of a batch pass."""

    log_evidence: float
    jitter: float
    seconds: float


@dataclass(frozen=True)
class StatisticsOfRows:
    """Task of a pass: the statistics of the rows. Their groups are shared out among threads in a fixed way."""

    prior: SparsePrior

    def __call__(self, rows: MemoryRows) -> BlockStatistics:
        groups = list(rows.groups(self.prior.approx.by_block))
        found: BlockStatistics = parallel.summed(partial(BlockStatistics.from_blocks, self.prior), groups)
        return found


@dataclass(frozen=True)
class StatisticsOfBlock:
    """Task of a step: the statistics of a single block."""

    prior: SparsePrior

    def __call__(self, block: Block) -> BlockStatistics:
        return BlockStatistics.from_block(self.prior, block)


def statistics_of(prior: SparsePrior, rows: Rows) -> BlockStatistics:
    """The sum over all rows."""
    return rows.sum(StatisticsOfRows(prior))


def infer(prior: SparsePrior, rows: Rows) -> tuple[BatchState, SparsePosterior | LocalPosterior, BatchInfo]:
    """One pass: the state for later updates, the posterior, and what a report needs."""
    started = time.perf_counter()
    statistics = statistics_of(prior, rows)
    q = InducingPosterior.from_statistics(statistics)
    posterior = make_posterior(prior, q, rows.store()) if prior.approx.is_local else SparsePosterior(prior, q)
    info = BatchInfo(log_evidence(statistics, q), prior.Luu.jitter, time.perf_counter() - started)
    return BatchState(prior, statistics), posterior, info
