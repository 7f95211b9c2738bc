"""Rows sorted into blocks for the approximations that have them, and the block of each new row."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import ArrayLike

from sparsegp.core import partition
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block, MemoryRows, Rows
from sparsegp.errors import InputError
from sparsegp.kernels import Kernel


def require_blocks(approx: Approximation, blocks: ArrayLike | None) -> None:
    """Labels only for the approximations that have blocks."""
    if blocks is not None and not approx.by_block:
        raise InputError(f"blocks= is for approximations with blocks (pitc, pic, block-pep); this is {approx.name!r}.")


def require_labels(approx: Approximation, blocks: ArrayLike | None, n_rows: int) -> None:
    """One integer a row, and only for approximations with blocks."""
    require_blocks(approx, blocks)
    if blocks is not None:
        partition.require_integers(blocks, n_rows)


def drop_weightless(block: Block, blocks: ArrayLike | None) -> tuple[Block, ArrayLike | None]:
    """Rows of weight zero say nothing and are left out, with their labels."""
    if block.weight is None or bool((block.weight > 0).all()):
        return block, blocks
    kept = block.weight > 0
    return block.take(kept), None if blocks is None else partition.require_integers(blocks, len(kept))[
        kept.cpu().numpy()
    ]


def arranged(
    approx: Approximation,
    rows: Rows,
    kernel: Kernel,
    n_blocks: int,
    labels: ArrayLike | None,
    rng: np.random.Generator,
    is_late: Callable[[], bool] = lambda: False,
) -> tuple[Rows, partition.Blocking | None]:
    """The rows, sorted by block where the approximation has blocks; less evenly once it is late.

    Blocks are the user's labels, or k-means of the sample in the metric of the kernel with a cap on their size.
    """
    require_blocks(approx, labels)
    if not approx.by_block:
        return rows, None
    metric = partition.kernel_metric(kernel, rows.n_features)
    if labels is None:
        X = rows.sample.all.X.to(torch.float64) * metric
        blocking = partition.Blocking(partition.kmeans_partition(X, n_blocks, rng, is_late=is_late), metric)
        return rows.in_blocks(blocking.nearest, blocking.n_blocks), blocking
    if not isinstance(rows, MemoryRows):
        raise InputError(
            "blocks= has a label for each row, so the rows must be in memory: leave blocks= out, and the blocks are "
            "found from the rows, or give arrays."
        )
    found, numbers, originals = partition.from_labels(rows.all.X.to(torch.float64) * metric, labels)
    order, offsets = partition.block_slices(numbers, found.n_blocks)
    return MemoryRows(rows.all.take(order), offsets, order), partition.Blocking(found, metric, originals)
