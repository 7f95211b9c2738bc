"""Batch inference: the sum over all blocks in one pass."""

import time
from dataclasses import dataclass

from sparsegp.data import Rows
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


def infer(prior: SparsePrior, rows: Rows) -> tuple[BatchState, SparsePosterior | LocalPosterior, BatchInfo]:
    started = time.perf_counter()
    statistics = BlockStatistics.from_blocks(prior, rows.units(prior.row.by_block))
    q = InducingPosterior.from_statistics(statistics)
    info = BatchInfo(log_evidence(statistics, q), prior.Luu.jitter, time.perf_counter() - started)
    return BatchState(prior, statistics), make_posterior(prior, q, rows), info
