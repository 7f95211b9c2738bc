"""Rows sorted into blocks across workers: every block whole on one worker, neighbours together."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sparsegp.distributed import worker_tasks
from sparsegp.distributed.rounds import gathered, submit
from sparsegp.distributed.rows import DistributedRows
from sparsegp.estimators.incoming.blocking import Blocking


def in_blocks(rows: DistributedRows, blocking: Blocking) -> DistributedRows:
    """The same rows by block. Rows go from worker to worker; the driver sees block sizes only.

    Within a block, rows keep the order of the source.
    """
    n_shares = len(rows.shares)
    sorted_shares = replace(rows, shares=rows.each(worker_tasks.sorted_share, [blocking] * n_shares))
    sizes = np.sum(gathered(rows.client, sorted_shares.each(worker_tasks.block_sizes)), axis=0)
    first_blocks = block_ranges(sizes, n_shares)
    shares, counts = [], []
    for first, stop, home in zip(first_blocks[:-1], first_blocks[1:], rows.homes, strict=True):
        parts = sorted_shares.each(worker_tasks.some_blocks, [np.arange(first, stop)] * n_shares)
        shares.append(submit(rows.client, worker_tasks.merged_blocks, list(parts), home=home))
        counts.append(int(sizes[first:stop].sum()))
    return replace(rows, shares=tuple(shares), counts=tuple(counts), first_blocks=first_blocks)


def block_ranges(sizes: NDArray[np.int64], n_shares: int) -> NDArray[np.int64]:
    """First block of each share and the number of blocks; shares are consecutive and about equally large."""
    middle = np.cumsum(sizes) - sizes / 2.0
    inner = np.searchsorted(middle, np.arange(1, n_shares) * float(sizes.sum()) / n_shares)
    ranges: NDArray[np.int64] = np.concatenate([[0], inner, [len(sizes)]]).astype(np.int64)
    return ranges
