"""Rows sorted into blocks for the approximations that have them, and the block of each new row."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp import partition
from sparsegp.approximations import Approximation
from sparsegp.data import Block, Rows
from sparsegp.errors import InputError
from sparsegp.kernels import Kernel

NO_BLOCK = -1


@dataclass(frozen=True)
class Blocking:
    """Where new rows belong: the partition, the metric it was made in, and the user's labels when blocks were given."""

    partition: partition.Partition
    metric: Tensor
    originals: Tensor | None = None

    def labels(self, X: Tensor, blocks: ArrayLike | None) -> Tensor:
        """Block of each row: as given by the user's label, else found from the row itself.

        A label that had no training rows gives NO_BLOCK: such a row is predicted from the inducing values alone.
        """
        if blocks is None:
            return self.partition.assign(X.to(torch.float64) * self.metric)
        given = torch.from_numpy(np.asarray(blocks).astype(np.int64, casting="same_kind"))
        if given.shape != (X.shape[0],):
            raise InputError(
                f"blocks must have one integer label for each of the {X.shape[0]} rows; got shape {tuple(given.shape)}."
            )
        known = torch.arange(self.partition.n_blocks) if self.originals is None else self.originals
        place = torch.searchsorted(known, given).clamp_max(len(known) - 1)
        return torch.where(known[place] == given, place, NO_BLOCK)


def labels_of_new(row: Approximation, blocking: Blocking | None, X: Tensor, blocks: ArrayLike | None) -> Tensor | None:
    """The block of each row to predict at, where predictions depend on it."""
    if blocking is None:
        require_blocks(row, blocks)
        return None
    return blocking.labels(X, blocks) if row.is_local else None


def require_blocks(row: Approximation, blocks: ArrayLike | None) -> None:
    """Labels only for the approximations that have blocks."""
    if blocks is not None and not row.by_block:
        raise InputError(f"blocks= is for approximations with blocks (pitc, pic, block-pep); this is {row.name!r}.")


def drop_weightless(block: Block, blocks: ArrayLike | None) -> tuple[Block, ArrayLike | None]:
    """Rows of weight zero say nothing and are left out, with their labels."""
    if block.weight is None or bool((block.weight > 0).all()):
        return block, blocks
    kept = block.weight > 0
    return block.take(kept), None if blocks is None else np.asarray(blocks)[kept.cpu().numpy()]


def make_rows(
    row: Approximation,
    block: Block,
    kernel: Kernel,
    n_blocks: int,
    blocks: ArrayLike | None,
    rng: np.random.Generator,
) -> tuple[Rows, Blocking | None]:
    """The rows, sorted by block where the approximation has blocks.

    Blocks are the user's labels, or k-means in the metric of the kernel with a cap on their size.
    """
    if not row.by_block:
        require_blocks(row, blocks)
        return Rows(block), None
    metric = partition.kernel_metric(kernel, block.X.shape[1])
    X = block.X.to(torch.float64) * metric
    if blocks is None:
        found = partition.kmeans_partition(X, n_blocks, rng)
        blocking, labels = Blocking(found, metric), found.assign(X)
    else:
        found, labels, originals = partition.from_labels(X, blocks)
        blocking = Blocking(found, metric, originals)
    order, offsets = partition.block_slices(labels, blocking.partition.n_blocks)
    return Rows(block.take(order), offsets), blocking
