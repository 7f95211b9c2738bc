"""Rows a model must keep: those of PIC, which predicts from them, and those of a sliding window."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp.core.block import Block, BlockStore, MemoryRows
from sparsegp.core.partition import Blocking
from sparsegp.data.disk_rows import DiskRows
from sparsegp.errors import InputError
from sparsegp.infer import recursive, revise
from sparsegp.infer.recursive import FilterState, StepInfo

MOST_BLOCK_ROWS = 10_000
"""The cost of an update is cubic in the rows of a block."""


@dataclass(frozen=True)
class Kept:
    """Rows that were added together, and their serial numbers in the order of arrival."""

    block: Block
    serials: Tensor

    def take(self, index: Tensor | slice) -> "Kept":
        return Kept(self.block.take(index), self.serials[index])

    def groups(self, state: FilterState) -> Iterable[Block]:
        """What the model sees at once: the whole group, or chunks of it."""
        return [self.block] if state.prior.approx.by_block else MemoryRows(self.block).chunks()

    def with_rows(self, block: Block, serials: Tensor) -> "Kept":
        return Kept(Block.concat([self.block, block], fill=True), torch.cat([self.serials, serials]))


@dataclass(frozen=True)
class KeptRows:
    """A `BlockStore` of kept rows: the blocks of the approximation, or batches in the order they came."""

    members: tuple[Kept, ...]

    @classmethod
    def last(cls, arrived: Block, window: int) -> "KeptRows":
        """Of rows in the order of their arrival those that a window can still need."""
        recent = slice(max(0, len(arrived) - window), None)
        return cls((Kept(arrived, torch.arange(len(arrived))).take(recent),))

    @classmethod
    def of(cls, rows: BlockStore) -> "KeptRows":
        """The rows of every block, numbered as they came, as far as that is known."""
        if isinstance(rows, KeptRows):
            return rows
        blocks = [rows.block(k) for k in range(rows.n_blocks)]
        sizes = [len(block) for block in blocks]
        serials = rows.serials if isinstance(rows, MemoryRows | DiskRows) else None
        numbers = torch.arange(sum(sizes)) if serials is None else serials
        return cls(tuple(Kept(block, part) for block, part in zip(blocks, numbers.split(sizes), strict=True)))

    @property
    def n_blocks(self) -> int:
        return len(self.members)

    def block(self, k: int) -> Block:
        return self.members[k].block

    def together(self, *, by_block: bool) -> MemoryRows:
        """All rows, in their groups, as rows of a pass."""
        blocks = [member.block for member in self.members]
        offsets = torch.tensor([0, *map(len, blocks)]).cumsum(0) if by_block else None
        serials = torch.cat([member.serials for member in self.members])
        return MemoryRows(Block.concat(blocks, fill=True), offsets, serials)

    @property
    def n_rows(self) -> int:
        return sum(len(member.block) for member in self.members)

    @property
    def mean_noise_var(self) -> float | None:
        """Mean of the known noise variances; None if they are not known."""
        known = [member.block.noise_var for member in self.members if member.block.noise_var is not None]
        return float(torch.cat(known).mean(dtype=torch.float64)) if known else None

    def without_rows(self) -> "KeptRows":
        return KeptRows(tuple(member.take(slice(0, 0)) for member in self.members))

    def replaced(self, k: int, member: Kept) -> "KeptRows":
        return KeptRows((*self.members[:k], member, *self.members[k + 1 :]))

    def appended(self, block: Block, first_serial: int) -> "KeptRows":
        """One more batch or block at the end."""
        return KeptRows((*self.members, Kept(block, first_serial + torch.arange(len(block)))))

    def require_room(self, labels: Tensor) -> None:
        """Blocks that new rows join must not become too large."""
        held = torch.tensor([len(member.block) for member in self.members])
        joining = labels.bincount(minlength=len(held))
        largest = int((held + joining)[joining > 0].max())
        if largest > MOST_BLOCK_ROWS:
            raise InputError(
                f"A block of the model would have {largest:,} rows; updates are for blocks of up to "
                f"{MOST_BLOCK_ROWS:,}. Fit again with all rows, or use approximation='vfe' for streams without end."
            )


Held = tuple[FilterState, KeptRows]


def rebased(state: FilterState, kept: KeptRows) -> FilterState:
    """The state of the kept rows alone."""
    state = state.holding(recursive.init(state.prior).statistics)
    for member in kept.members:
        for group in member.groups(state):
            state, _ = recursive.step(state, group)
    return state


def expire(state: FilterState, kept: KeptRows, oldest: int) -> Held:
    """Forget rows with serial numbers below `oldest`.

    Rows without blocks leave one by one; blocks leave whole, once none of their rows is recent. Rows of a local model
    leave their blocks.
    """
    if state.prior.approx.is_local:
        return _shrink_blocks(state, kept, oldest)
    leaving, staying = _split(kept.members, oldest, whole=state.prior.approx.by_block)
    for member in leaving:
        for group in member.groups(state):
            state = revise.forget(state, group, surely_held=True)
    return state, KeptRows(staying)


def _split(members: Sequence[Kept], oldest: int, *, whole: bool) -> tuple[list[Kept], tuple[Kept, ...]]:
    """(rows that leave, groups that stay)."""
    if whole:
        gone = [len(member.serials) == 0 or int(member.serials[-1]) < oldest for member in members]
        leaving = [member for member, out in zip(members, gone, strict=True) if out]
        return leaving, tuple(member for member, out in zip(members, gone, strict=True) if not out)
    leaving, n_out = [], 0
    for member in members:
        if int(member.serials[0]) >= oldest:
            break
        leaving.append(member)
        n_out += 1
    staying = tuple(members[n_out:])
    if leaving and int(leaving[-1].serials[-1]) >= oldest:
        last = leaving.pop()
        cut = oldest - int(last.serials[0])
        leaving.append(last.take(slice(0, cut)))
        staying = (last.take(slice(cut, None)), *staying)
    return leaving, staying


def _shrink_blocks(state: FilterState, kept: KeptRows, oldest: int) -> Held:
    for k, member in enumerate(kept.members):
        recent = member.serials >= oldest
        if not bool(recent.all()):
            state, _ = revise.exchange(state, member.block, member.take(recent).block)
            kept = kept.replaced(k, member.take(recent))
    return state, kept


def add_to_blocks(
    state: FilterState, kept: KeptRows, block: Block, labels: Tensor, first_serial: int
) -> tuple[FilterState, KeptRows, list[StepInfo]]:
    """Rows join the blocks they belong to, as if these had had them from the start."""
    infos, serials = [], first_serial + torch.arange(len(block))
    for k in labels.unique().tolist():
        mine = labels == k
        grown = kept.members[k].with_rows(block.take(mine), serials[mine])
        state, info = revise.exchange(state, kept.block(k), grown.block)
        kept = kept.replaced(k, grown)
        infos.append(info)
    return state, kept, infos


def remove_from_blocks(state: FilterState, kept: KeptRows, block: Block, labels: Tensor) -> Held:
    """Rows leave the blocks they are in; an error says which one is not there."""
    for k in labels.unique().tolist():
        mine = labels == k
        held = kept.members[k] if k >= 0 else kept.members[0].take(slice(0, 0))
        rest = held.take(remaining(held.block, block.take(mine)))
        state, _ = revise.exchange(state, held.block, rest.block)
        kept = kept.replaced(k, rest)
    return state, kept


def remaining(held: Block, leaving: Block) -> Tensor:
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


def merge_blocks(state: FilterState, kept: KeptRows, others: KeptRows) -> Held:
    """From the sum of two models, whose blocks stand side by side, to the model in which equal blocks are one."""
    members = []
    for mine, theirs in zip(kept.members, others.members, strict=True):
        together = mine.with_rows(theirs.block, kept.n_rows + theirs.serials)
        if len(mine.block) and len(theirs.block):
            state, _ = revise.exchange(state, mine.block, mine.block.take(slice(0, 0)))
            state, _ = revise.exchange(state, theirs.block, together.block)
        members.append(together)
    return state, KeptRows(tuple(members))


def with_new_labels(
    blocking: Blocking, kept: KeptRows, block: Block, labels: ArrayLike | None
) -> tuple[Blocking, KeptRows]:
    """Where blocks are labels of the user, a label not seen before is a new block, without rows as yet."""
    unseen = blocking.unseen(labels)
    if labels is None or not len(unseen):
        return blocking, kept
    blocking, order = blocking.with_labels(unseen, block.X, labels)
    empty = Kept(block, torch.arange(len(block))).take(slice(0, 0))
    members = (*kept.members, *(empty for _ in unseen))
    return blocking, KeptRows(tuple(members[k] for k in order))


def with_moved_means(blocking: Blocking, kept: KeptRows, changed: Tensor) -> Blocking:
    return blocking.with_moved_means({k: kept.block(k).X for k in changed.unique().tolist()})
