"""Rows a streaming model must keep: those of PIC, which predicts from them, and those of a sliding window."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from sparsegp.approximations import Approximation
from sparsegp.data import Block, Rows
from sparsegp.engines import recursive, revision
from sparsegp.engines.filter_state import FilterState


@dataclass(frozen=True)
class Kept:
    """Rows that were added together, and their serial numbers in the order of arrival."""

    block: Block
    serials: Tensor

    def take(self, index: Tensor | slice) -> "Kept":
        return Kept(self.block.take(index), self.serials[index])

    def units(self, state: FilterState) -> Iterable[Block]:
        """What the model sees at once: the whole group, or chunks of it."""
        return [self.block] if state.prior.row.by_block else Rows(self.block).chunks()

    def with_rows(self, block: Block, serials: Tensor) -> "Kept":
        return Kept(joined(self.block, block), torch.cat([self.serials, serials]))


@dataclass(frozen=True)
class KeptRows:
    """Groups of kept rows: the blocks of the approximation, or batches in the order they came."""

    groups: tuple[Kept, ...]

    @classmethod
    def of_fit(
        cls, row: Approximation, arrived: Block, labels: Tensor | None, n_blocks: int, window: int | None
    ) -> Self:
        """The rows of a fit, in order of arrival; of rows without blocks those the window can still need."""
        serials = torch.arange(len(arrived))
        if not row.by_block or labels is None:
            recent = slice(max(0, len(arrived) - (window or 0)), None)
            return cls((Kept(arrived, serials).take(recent),))
        return cls(tuple(Kept(arrived, serials).take(labels == k) for k in range(n_blocks)))

    @property
    def n_blocks(self) -> int:
        return len(self.groups)

    def block(self, k: int) -> Block:
        return self.groups[k].block

    @property
    def n_rows(self) -> int:
        return sum(len(group.block) for group in self.groups)

    @property
    def mean_noise_var(self) -> float | None:
        """Mean of the known noise variances; None if they are not known."""
        known = [group.block.noise_var for group in self.groups if group.block.noise_var is not None]
        return float(torch.cat(known).mean(dtype=torch.float64)) if known else None

    def replaced(self, k: int, group: Kept) -> "KeptRows":
        return KeptRows((*self.groups[:k], group, *self.groups[k + 1 :]))


def joined(first: Block, second: Block) -> Block:
    """The rows of both; where only one has weights the others count once. Noise is known for both or neither."""
    if len(first) == 0:
        return second
    weight = None
    if first.weight is not None or second.weight is not None:
        weight = torch.cat([torch.ones_like(b.y) if b.weight is None else b.weight for b in (first, second)])
    noise = None
    if first.noise_var is not None and second.noise_var is not None:
        noise = torch.cat([first.noise_var, second.noise_var])
    return Block(torch.cat([first.X, second.X]), torch.cat([first.y, second.y]), noise, weight)


def expire(state: FilterState, kept: KeptRows, oldest: int) -> tuple[FilterState, KeptRows]:
    """Forget rows with serial numbers below `oldest`.

    Rows without blocks leave one by one; blocks leave whole, once none of their rows is recent.
    """
    leaving, staying = _split(kept.groups, oldest, whole=state.prior.row.by_block)
    for group in leaving:
        for unit in group.units(state):
            state = revision.forget(state, unit, surely_held=True)
    return state, KeptRows(staying)


def _split(groups: Sequence[Kept], oldest: int, *, whole: bool) -> tuple[list[Kept], tuple[Kept, ...]]:
    """(rows that leave, groups that stay)."""
    if whole:
        gone = [len(group.serials) == 0 or int(group.serials[-1]) < oldest for group in groups]
        leaving = [group for group, out in zip(groups, gone, strict=True) if out]
        return leaving, tuple(group for group, out in zip(groups, gone, strict=True) if not out)
    leaving, n_out = [], 0
    for group in groups:
        if int(group.serials[0]) >= oldest:
            break
        leaving.append(group)
        n_out += 1
    staying = tuple(groups[n_out:])
    if leaving and int(leaving[-1].serials[-1]) >= oldest:
        last = leaving.pop()
        cut = oldest - int(last.serials[0])
        leaving.append(last.take(slice(0, cut)))
        staying = (last.take(slice(cut, None)), *staying)
    return leaving, staying


def append_group(kept: KeptRows, block: Block, first_serial: int) -> KeptRows:
    """One more batch or block at the end."""
    return KeptRows((*kept.groups, Kept(block, first_serial + torch.arange(len(block)))))


def rebase(state: FilterState, kept: KeptRows) -> FilterState:
    """The state of the kept rows alone."""
    state = state.holding(recursive.init(state.prior).statistics)
    for group in kept.groups:
        for unit in group.units(state):
            state, _ = recursive.step(state, unit)
    return state
