"""The block of each row that comes or goes, where an approximation has blocks."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp.approximations import Approximation
from sparsegp.data import Block
from sparsegp.errors import InputError
from sparsegp.estimators.incoming.blocking import Blocking, require_blocks
from sparsegp.estimators.updating import local_rows
from sparsegp.estimators.updating.kept_rows import KeptRows
from sparsegp.estimators.updating.stream_state import Streamed

MOST_BLOCK_ROWS = 10_000

Placed = tuple[Streamed, Blocking | None, Tensor | None]


def placed(
    row: Approximation, blocking: Blocking | None, streamed: Streamed, block: Block, labels: ArrayLike | None
) -> Placed:
    """The block number of each new row; for local models with labels of the user, unknown ones are new blocks."""
    if not row.is_local or blocking is None or streamed.kept is None:
        return streamed, blocking, numbers_of(row, blocking, block, labels)
    blocking, kept = local_rows.with_new_labels(blocking, streamed.kept, block, labels)
    numbers = blocking.labels(block.X, labels)
    if bool((numbers < 0).any()):
        raise InputError(
            "blocks has labels that are no blocks of this model. Its blocks were found from the rows: leave "
            f"blocks= out, or use the numbers 0 to {blocking.partition.n_blocks - 1}."
        )
    _require_size(kept, numbers)
    return replace(streamed, kept=kept), blocking, numbers


def batch_is_block(row: Approximation) -> bool:
    """Where blocks are not places every batch of a stream is one, and so is the first."""
    return row.by_block and not row.is_local


def _require_size(kept: KeptRows, numbers: Tensor) -> None:
    """The cost of an update is cubic in the rows of a block."""
    held = torch.tensor([len(group.block) for group in kept.groups])
    joined = numbers.bincount(minlength=len(held))
    largest = int((held + joined)[joined > 0].max())
    if largest > MOST_BLOCK_ROWS:
        raise InputError(
            f"A block of the model would have {largest:,} rows; updates are for blocks of up to {MOST_BLOCK_ROWS:,}. "
            "Fit again with all rows, or use approximation='vfe' for streams without end."
        )


def numbers_of(row: Approximation, blocking: Blocking | None, block: Block, labels: ArrayLike | None) -> Tensor | None:
    if row.is_local and blocking is not None:
        return blocking.labels(block.X, labels)
    return None if labels is None else torch.from_numpy(np.asarray(labels).astype(np.int64))


def moved(row: Approximation, blocking: Blocking | None, streamed: Streamed, changed: Tensor | None) -> Blocking | None:
    """Where the blocks of a local model are after rows of the `changed` ones have come or gone."""
    if not row.is_local or blocking is None or streamed.kept is None or changed is None:
        return blocking
    return local_rows.with_moved_means(blocking, streamed.kept, changed)


def require_labels(row: Approximation, blocks: ArrayLike | None, n_rows: int) -> None:
    """One integer a row, and only for approximations with blocks."""
    require_blocks(row, blocks)
    if blocks is None:
        return
    given = np.asarray(blocks)
    if given.shape != (n_rows,) or not np.issubdtype(given.dtype, np.integer):
        raise InputError(
            f"blocks must have one integer label for each of the {n_rows} rows; got {given.dtype} {given.shape}."
        )
