"""Rows sorted into blocks for the approximations that have them, and the block of each new row."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sparsegp.checked import as_array
from sparsegp.core import partition
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block, MemoryRows, Rows
from sparsegp.errors import InputError
from sparsegp.kernels import Kernel

NO_BLOCK = -1


@dataclass(frozen=True)
class Blocking:
    """Where new rows belong: the partition, the metric it was made in, and the user's labels when blocks were given."""

    partition: partition.Partition
    metric: Tensor
    originals: Tensor | None = None

    @property
    def n_blocks(self) -> int:
        return self.partition.n_blocks

    def nearest(self, X: Tensor) -> Tensor:
        """The block of each row, found from the row itself."""
        return self.partition.assign(X.to(torch.float64) * self.metric)

    def labels(self, X: Tensor, blocks: ArrayLike | None) -> Tensor:
        """Block of each row: as given by the user's label, else found from the row itself.

        A label that had no training rows gives NO_BLOCK: such a row is predicted from the inducing values alone.
        """
        if blocks is None:
            return self.nearest(X)
        given = torch.from_numpy(require_integers(blocks, X.shape[0]))
        known = torch.arange(self.n_blocks) if self.originals is None else self.originals
        place = torch.searchsorted(known, given).clamp_max(len(known) - 1)
        return torch.where(known[place] == given, place, NO_BLOCK)

    def same_as(self, other: "Blocking") -> bool:
        """Whether every new row would have the same block in both."""
        if self.originals is not None or other.originals is not None:
            mine, theirs = self.originals, other.originals
            return mine is not None and theirs is not None and torch.equal(mine, theirs)
        return torch.equal(self.partition.centroids, other.partition.centroids)

    def moved_to(self, centroids: Tensor) -> "Blocking":
        return replace(self, partition=partition.Partition(centroids))


def require_blocks(approx: Approximation, blocks: ArrayLike | None) -> None:
    """Labels only for the approximations that have blocks."""
    if blocks is not None and not approx.by_block:
        raise InputError(f"blocks= is for approximations with blocks (pitc, pic, block-pep); this is {approx.name!r}.")


def require_labels(approx: Approximation, blocks: ArrayLike | None, n_rows: int) -> None:
    """One integer a row, and only for approximations with blocks."""
    require_blocks(approx, blocks)
    if blocks is not None:
        require_integers(blocks, n_rows)


def require_integers(blocks: ArrayLike, n_rows: int) -> NDArray[np.int64]:
    """One integer a row."""
    given = as_array(blocks, "blocks")
    if given.shape != (n_rows,) or not np.issubdtype(given.dtype, np.integer):
        raise InputError(
            f"blocks must have one integer label for each of the {n_rows} rows; got {given.dtype} {given.shape}."
        )
    return given.astype(np.int64)


def drop_weightless(block: Block, blocks: ArrayLike | None) -> tuple[Block, ArrayLike | None]:
    """Rows of weight zero say nothing and are left out, with their labels."""
    if block.weight is None or bool((block.weight > 0).all()):
        return block, blocks
    kept = block.weight > 0
    return block.take(kept), None if blocks is None else require_integers(blocks, len(kept))[kept.cpu().numpy()]


def arranged(
    approx: Approximation,
    rows: Rows,
    kernel: Kernel,
    n_blocks: int,
    labels: ArrayLike | None,
    rng: np.random.Generator,
    is_late: Callable[[], bool] = lambda: False,
) -> tuple[Rows, Blocking | None]:
    """The rows, sorted by block where the approximation has blocks; less evenly once it is late.

    Blocks are the user's labels, or k-means of the sample in the metric of the kernel with a cap on their size.
    """
    require_blocks(approx, labels)
    if not approx.by_block:
        return rows, None
    metric = partition.kernel_metric(kernel, rows.n_features)
    if labels is None:
        X = rows.sample.all.X.to(torch.float64) * metric
        blocking = Blocking(partition.kmeans_partition(X, n_blocks, rng, is_late=is_late), metric)
        return rows.in_blocks(blocking.nearest, blocking.n_blocks), blocking
    if not isinstance(rows, MemoryRows):
        raise InputError(
            "blocks= has a label for each row, so the rows must be in memory: leave blocks= out, and the blocks are "
            "found from the rows, or give arrays."
        )
    found, numbers, originals = partition.from_labels(rows.all.X.to(torch.float64) * metric, labels)
    order, offsets = partition.block_slices(numbers, found.n_blocks)
    return MemoryRows(rows.all.take(order), offsets, order), Blocking(found, metric, originals)
