"""Batch inference: the sum over all blocks in one pass."""

import time
from dataclasses import dataclass
from functools import partial

from sparsegp import parallel
from sparsegp.data import Block, Rows
from sparsegp.local_posterior import LocalPosterior, make_posterior
from sparsegp.posterior import InducingPosterior, SparsePosterior, log_evidence
from sparsegp.prior import SparsePrior
from sparsegp.statistics import BlockStatistics


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


def statistics_of(prior: SparsePrior, rows: Rows) -> BlockStatistics:
    """The sum over all units of the rows. They are shared out among threads, in a fixed way and order."""
    parts = shared_out(list(rows.units(prior.row.by_block)))
    first, *others = parallel.run([partial(BlockStatistics.from_blocks, prior, part) for part in parts])
    return sum(others, start=first)


def shared_out(units: list[Block]) -> list[list[Block]]:
    """The units of each thread."""
    n = max(1, min(parallel.available(), len(units)))
    return [units[k::n] for k in range(n)]


def infer(prior: SparsePrior, rows: Rows) -> tuple[BatchState, SparsePosterior | LocalPosterior, BatchInfo]:
    started = time.perf_counter()
    statistics = statistics_of(prior, rows)
    q = InducingPosterior.from_statistics(statistics)
    info = BatchInfo(log_evidence(statistics, q), prior.Luu.jitter, time.perf_counter() - started)
    return BatchState(prior, statistics), make_posterior(prior, q, rows), info
