"""Rows that join and leave the blocks of a local model (PIC), and blocks that appear with them."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp.data import Block
from sparsegp.engines import revision
from sparsegp.engines.filter_state import FilterState, StepInfo
from sparsegp.errors import InputError
from sparsegp.estimators.incoming.blocking import Blocking
from sparsegp.estimators.updating.kept_rows import Kept, KeptRows
from sparsegp.partition import Partition

Added = tuple[FilterState, KeptRows, list[StepInfo]]


def add_to_blocks(state: FilterState, kept: KeptRows, block: Block, labels: Tensor, first_serial: int) -> Added:
    """Rows join the blocks they belong to, as if these had had them from the start."""
    infos, serials = [], first_serial + torch.arange(len(block))
    for k in labels.unique().tolist():
        mine = labels == k
        grown = kept.groups[k].with_rows(block.take(mine), serials[mine])
        state, info = revision.exchange(state, kept.block(k), grown.block)
        kept = kept.replaced(k, grown)
        infos.append(info)
    return state, kept, infos


def remove_from_blocks(
    state: FilterState, kept: KeptRows, block: Block, labels: Tensor
) -> tuple[FilterState, KeptRows]:
    """Rows leave the blocks they are in; an error says which one is not there."""
    for k in labels.unique().tolist():
        mine = labels == k
        held = kept.groups[k] if k >= 0 else kept.groups[0].take(slice(0, 0))
        rest = held.take(_without(held.block, block.take(mine)))
        state, _ = revision.exchange(state, held.block, rest.block)
        kept = kept.replaced(k, rest)
    return state, kept


def _without(held: Block, leaving: Block) -> Tensor:
    """Mask of the rows of `held` that remain when each row of `leaving` takes one equal row with it."""
    remains = torch.ones(len(held), dtype=torch.bool)
    for i in range(len(leaving)):
        equal = remains & (leaving.X[i] == held.X).all(1) & (leaving.y[i] == held.y)
        if not bool(equal.any()):
            raise InputError(
                "Rows to forget must have been added before: no row of that block has exactly these inputs and this "
                f"target (the {i + 1}th of {len(leaving)}). The model is unchanged. Rows that were added with blocks= "
                "must be forgotten with the same labels."
            )
        remains[int(equal.int().argmax())] = False
    return remains


def shrink_blocks(state: FilterState, kept: KeptRows, oldest: int) -> tuple[FilterState, KeptRows]:
    """Rows with serial numbers below `oldest` leave their blocks."""
    for k, group in enumerate(kept.groups):
        recent = group.serials >= oldest
        if not bool(recent.all()):
            state, _ = revision.exchange(state, group.block, group.take(recent).block)
            kept = kept.replaced(k, group.take(recent))
    return state, kept


def merge_blocks(state: FilterState, kept: KeptRows, others: KeptRows) -> tuple[FilterState, KeptRows]:
    """From the sum of two models, whose blocks stand side by side, to the model in which equal blocks are one."""
    groups = []
    for mine, theirs in zip(kept.groups, others.groups, strict=True):
        together = mine.with_rows(theirs.block, kept.n_rows + theirs.serials)
        if len(mine.block) and len(theirs.block):
            state, _ = revision.exchange(state, mine.block, mine.block.take(slice(0, 0)))
            state, _ = revision.exchange(state, theirs.block, together.block)
        groups.append(together)
    return state, KeptRows(tuple(groups))


def with_new_labels(
    blocking: Blocking, kept: KeptRows, block: Block, labels: ArrayLike | None
) -> tuple[Blocking, KeptRows]:
    """Where blocks are labels of the user, a label not seen before is a new block, without rows as yet."""
    if labels is None or blocking.originals is None:
        return blocking, kept
    given = torch.from_numpy(np.asarray(labels).astype(np.int64, casting="same_kind"))
    unseen = given[torch.isin(given, blocking.originals, invert=True)].unique()
    if not len(unseen):
        return blocking, kept
    X = block.X.to(torch.float64) * blocking.metric
    means = torch.stack([X[given == label].mean(0) for label in unseen])
    originals, order = torch.cat([blocking.originals, unseen]).sort()
    centroids = torch.cat([blocking.partition.centroids, means])[order]
    groups = (*kept.groups, *(Kept(block, torch.arange(len(block))).take(slice(0, 0)) for _ in unseen))
    return Blocking(Partition(centroids), blocking.metric, originals), KeptRows(tuple(groups[k] for k in order))


def with_moved_means(blocking: Blocking, kept: KeptRows, changed: Tensor) -> Blocking:
    """Where blocks are labels of the user, they are located at the mean of their rows."""
    if blocking.originals is None:
        return blocking
    centroids = blocking.partition.centroids.clone()
    for k in changed.unique().tolist():
        if len(kept.block(k)):
            centroids[k] = (kept.block(k).X.to(torch.float64) * blocking.metric).mean(0)
    return replace(blocking, partition=Partition(centroids))


def same_blocks(first: Blocking, second: Blocking) -> bool:
    """Whether every new row would have the same block in both."""
    if first.originals is not None or second.originals is not None:
        return (
            first.originals is not None
            and second.originals is not None
            and torch.equal(first.originals, second.originals)
        )
    return torch.equal(first.partition.centroids, second.partition.centroids)
