"""Batch inference over groups of rows that are read as they are needed: the same sums as in memory."""

import time
from collections.abc import Iterable

from sparsegp.data import Rows
from sparsegp.engines import batch
from sparsegp.engines.batch import BatchInfo, BatchState
from sparsegp.errors import InputError
from sparsegp.local_posterior import BlockStore, LocalPosterior, make_posterior
from sparsegp.posterior import InducingPosterior, SparsePosterior, log_evidence
from sparsegp.prior import SparsePrior
from sparsegp.statistics import BlockStatistics


def require_blocks(prior: SparsePrior, rows: Rows) -> None:
    """Rows of an approximation by blocks come as whole blocks."""
    if prior.row.by_block and rows.offsets is None:
        raise InputError(
            f"{prior.row.name!r} is defined by blocks, and these rows have none. Sort them into blocks first, on disk "
            "with sparsegp.sources.write_blocks, and give those."
        )


def statistics_of(prior: SparsePrior, groups: Iterable[Rows]) -> BlockStatistics:
    """The sum over all groups, one after another; each group is shared out among threads."""
    total = BlockStatistics.zero(prior)
    for rows in groups:
        require_blocks(prior, rows)
        total = total + batch.statistics_of(prior, rows)
    return total


def infer(
    prior: SparsePrior, groups: Iterable[Rows], store: BlockStore | None = None
) -> tuple[BatchState, SparsePosterior | LocalPosterior, BatchInfo]:
    """One pass: state, posterior and report as of `batch.infer`. Local models fetch their rows from `store`."""
    if prior.row.is_local and store is None:
        raise InputError(f"{prior.row.name!r} predicts from the rows of a block; give the blocks as `store` too.")
    started = time.perf_counter()
    statistics = statistics_of(prior, groups)
    q = InducingPosterior.from_statistics(statistics)
    posterior = SparsePosterior(prior, q) if store is None else make_posterior(prior, q, store)
    info = BatchInfo(log_evidence(statistics, q), prior.Luu.jitter, time.perf_counter() - started)
    return BatchState(prior, statistics), posterior, info
