"""Which blocks a step sees, and the weights that make the sum over them unbiased for the sum over all blocks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsegp.data import Block, Rows
from sparsegp.errors import InputError

Sizes = NDArray[np.float64]


class BlockSource(Protocol):
    """Blocks that can be fetched one at a time, from memory or from disk. A block may be empty."""

    @property
    def n_blocks(self) -> int:
        """Number of blocks, empty ones included."""

    @property
    def sizes(self) -> Sizes:
        """Rows of each block, counted with their weights."""

    def block(self, k: int) -> Block:
        """The rows of block k."""


@dataclass(frozen=True)
class GivenBlocks:
    """The blocks of rows in memory that are sorted by block."""

    rows: Rows

    def __post_init__(self) -> None:
        if self.rows.n_blocks == 0:
            raise InputError("GivenBlocks needs rows sorted by block; these have none. Use RandomBlocks for them.")

    @property
    def n_blocks(self) -> int:
        return self.rows.n_blocks

    @cached_property
    def sizes(self) -> Sizes:
        return np.array([self.rows.block(k).n_rows for k in range(self.n_blocks)])

    def block(self, k: int) -> Block:
        return self.rows.block(k)


@dataclass(frozen=True)
class RandomBlocks:
    """Random disjoint blocks of equal size (up to one row): mini-batches, for rows of the table without blocks."""

    rows: Rows
    order: Tensor
    offsets: NDArray[np.int64]

    @classmethod
    def build(cls, rows: Rows, block_rows: int, rng: np.random.Generator) -> "RandomBlocks":
        if block_rows < 1 or len(rows) < 1:
            raise InputError(f"Blocks need at least one row each; got {len(rows)} rows and block_rows={block_rows!r}.")
        n_blocks = -(-len(rows) // block_rows)
        offsets = np.arange(n_blocks + 1, dtype=np.int64) * len(rows) // n_blocks
        return cls(rows, torch.from_numpy(rng.permutation(len(rows))), offsets)

    @property
    def n_blocks(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> Sizes:
        weight = self.rows.all.weight
        if weight is None:
            return np.diff(self.offsets).astype(np.float64)
        return np.add.reduceat(weight[self.order].to(torch.float64).numpy(), self.offsets[:-1])

    def block(self, k: int) -> Block:
        return self.rows.all.take(self.order[int(self.offsets[k]) : int(self.offsets[k + 1])])


def make_source(rows: Rows, by_block: bool, block_rows: int, rng: np.random.Generator) -> GivenBlocks | RandomBlocks:
    """The rows' own blocks where the model is defined by them, else random ones of about `block_rows` rows."""
    return GivenBlocks(rows) if by_block else RandomBlocks.build(rows, block_rows, rng)


@dataclass(frozen=True)
class Draw:
    """Blocks of one step: E[sum_s w_s stat_s] = sum of all. `fresh` says that a block was not drawn before."""

    index: tuple[int, ...]
    weights: tuple[float, ...]
    fresh: tuple[bool, ...]

    def __post_init__(self) -> None:
        if not (self.index and len(self.index) == len(self.weights) == len(self.fresh)) or min(self.weights) < 0.0:
            raise InputError(
                "A step needs at least one block, and a weight >= 0 and a freshness for each: a negative weight can "
                f"make the posterior precision indefinite; got {self!r}."
            )


Draws = Callable[[Sizes, int, np.random.Generator], Iterator[Draw]]


@dataclass(frozen=True)
class Sampling:
    """An endless stream of draws. `exhaustive`: every block comes once before any comes again."""

    draws: Draws
    exhaustive: bool


def _without_replacement(sizes: Sizes, per_step: int, rng: np.random.Generator) -> Iterator[Draw]:
    """Random order, epoch by epoch; w = K/|S|."""
    filled = filled_blocks(sizes, per_step)
    first = True
    while True:
        order = rng.permutation(filled)
        for start in range(0, len(order), per_step):
            index = order[start : start + per_step]
            yield make_draw(index, np.full(len(index), len(filled) / len(index)), np.full(len(index), first))
        first = False


def make_draw(index: NDArray[np.int64], weights: Sizes, fresh: NDArray[np.bool_]) -> Draw:
    return Draw(tuple(index.tolist()), tuple(weights.tolist()), tuple(fresh.tolist()))


def filled_blocks(sizes: Sizes, per_step: int) -> NDArray[np.int64]:
    """The blocks that have rows."""
    filled = np.flatnonzero(sizes > 0)
    if len(filled) == 0:
        raise InputError(f"None of the {len(sizes)} blocks has a row; give at least one row of positive weight.")
    if per_step < 1:
        raise InputError(f"blocks_per_step must be at least 1; got {per_step!r}.")
    return filled


WITHOUT_REPLACEMENT = Sampling(_without_replacement, exhaustive=True)
