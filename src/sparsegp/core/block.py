"""Rows of data: a block of them as torch tensors, and the one interface of rows wherever they are."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsegp import parallel
from sparsegp.errors import InputError

CHUNK_ROWS = 1024

Sum = TypeVar("Sum", bound="Addable")
Answer = TypeVar("Answer")
Sizes = NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """A group of rows: inputs, targets, known noise variances (None: the model's own) and weights (None: 1).

    Weight w says the row stands for w equal rows.
    """

    X: Tensor
    y: Tensor
    noise_var: Tensor | None = None
    weight: Tensor | None = None

    @classmethod
    def empty(cls, n_features: int, dtype: torch.dtype = torch.float64) -> "Block":
        X = torch.zeros(0, n_features, dtype=dtype)
        return cls(X, X.new_zeros(0))

    @classmethod
    def concat(cls, blocks: Sequence["Block"], *, fill: bool = False) -> "Block":
        """The rows of all blocks, in their order; those without rows say nothing.

        Noise variances and weights are known in all blocks or in none, else it is an error. With `fill`, rows without
        a weight count once.
        """
        filled = [block for block in blocks if len(block)] or list(blocks[:1])
        if len(filled) == 1:
            return filled[0]
        noises = [block.noise_var for block in filled if block.noise_var is not None]
        weights = [block.weight for block in filled if block.weight is not None]
        if fill and weights:
            weights = [block.weights for block in filled]
        if len(noises) not in (0, len(filled)) or len(weights) not in (0, len(filled)):
            raise InputError("Some batches have noise variances or weights and others have not; give all or none.")
        return cls(
            torch.cat([block.X for block in filled]),
            torch.cat([block.y for block in filled]),
            torch.cat(noises) if noises else None,
            torch.cat(weights) if weights else None,
        )

    def __len__(self) -> int:
        return self.X.shape[0]

    def take(self, index: Tensor | slice) -> "Block":
        return Block(
            self.X[index],
            self.y[index],
            None if self.noise_var is None else self.noise_var[index],
            None if self.weight is None else self.weight[index],
        )

    def spaced(self, n_rows: int) -> "Block":
        """So many of the rows, evenly spaced, or all where there are not as many."""
        if len(self) <= n_rows:
            return self
        return self.take(torch.linspace(0, len(self) - 1, n_rows, dtype=torch.float64).long())

    def distinct(self) -> "Block":
        """Each row once: of rows with equal inputs and targets the first, with its own weight."""
        _, first = np.unique(equal_rows(torch.column_stack([self.X, self.y]).double().cpu().numpy()), return_index=True)
        return self if len(first) == len(self) else self.take(torch.from_numpy(np.sort(first)))

    @property
    def weights(self) -> Tensor:
        """The weight of each row."""
        return torch.ones_like(self.y) if self.weight is None else self.weight

    @property
    def n_rows(self) -> float:
        """Number of rows, each counted with its weight."""
        return float(len(self)) if self.weight is None else float(self.weight.sum())

    @property
    def target_variance(self) -> float:
        """Every row counts once; 1 for equal targets. Its last digits do not depend on the number of threads."""
        with parallel.single():
            return float(self.y.var(correction=0)) or 1.0


class Addable(Protocol):
    """What sums are made of."""

    def __add__(self, other: Any, /) -> Self: ...


def equal_rows(columns: Any) -> Any:
    """A number for each row of a numpy array, the same for equal rows."""
    key, rng = np.zeros(len(columns)), np.random.default_rng(0)
    for k in range(columns.shape[1]):
        key += rng.uniform(1.0, 2.0) * columns[:, k]
    return np.unique(key, return_inverse=True)[1]


class BlockStore(Protocol):
    """Rows that can be fetched by block."""

    @property
    def n_blocks(self) -> int:
        """Number of blocks, empty ones included."""

    def block(self, k: int) -> Block:
        """The rows of block k."""


class BlockSource(BlockStore, Protocol):
    """Blocks to draw from. A block may be empty."""

    @property
    def sizes(self) -> Sizes:
        """Rows of each block, counted with their weights."""

    @property
    def per_step(self) -> int:
        """How many blocks are best visited at a time."""

    def each(self, task: Callable[[Block], Answer], index: Sequence[int]) -> list[Answer]:
        """What the task gives of each of these blocks, computed where they are."""


class Rows(Protocol):
    """Rows in the scaling of the model, wherever they are: in memory, in a file, in blocks on disk, on workers.

    Whatever is computed from all rows is a sum, so `sum` is all that a pass over them is.
    """

    def __len__(self) -> int:
        """Number of rows."""

    @property
    def n_features(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def total_weight(self) -> float:
        """Number of rows, each counted with its weight."""

    @property
    def least_noise_var(self) -> float | None:
        """The smallest known noise variance; None where the noise is the model's own."""

    @property
    def mean_noise_var(self) -> float | None:
        """The mean of the known noise variances; None where the noise is the model's own."""

    @property
    def n_blocks(self) -> int:
        """Number of blocks the rows are sorted into; 0 where they are in no order."""

    @property
    def serials(self) -> Tensor | None:
        """Which row each of them was, in the order of a pass, before they were sorted (None: they were not)."""

    @property
    def sample(self) -> "MemoryRows":
        """Rows in the memory of this process to start and choose from: all of them, or a random sample."""

    def sum(self, task: "Callable[[MemoryRows], Sum]") -> Sum:
        """The sum of what the task gives of every part of the rows, always in the same order.

        Parts are disjoint, hold whole blocks, and each is in the memory of whoever computes it. The task is a
        callable object that can be pickled.
        """

    def parts(self, sizes: Sequence[int], rng: np.random.Generator, *, by_block: bool) -> "Iterator[Rows]":
        """Nested random parts of about these sizes, of whole blocks with `by_block`; all rows for `len(self)`."""

    @property
    def largest_part(self) -> int:
        """Rows of the largest part, short of all of them, that `parts` can give."""

    def subset_of_blocks(self, blocks: Tensor) -> "Rows":
        """Whole blocks, by their numbers, in this order."""

    def in_blocks(self, assign: Callable[[Tensor], Tensor], n_blocks: int) -> "Rows":
        """The same rows sorted into blocks: `assign` gives the number of the block of each input."""

    def draws(self, block_rows: int, rng: np.random.Generator, *, by_block: bool) -> BlockSource:
        """Blocks to draw from: the rows' own with `by_block`, else random ones of about `block_rows` rows."""

    def store(self) -> BlockStore:
        """The blocks for predictions of a local model, which outlives the fit."""

    def report(self) -> dict[str, Any]:
        """What `info_` says of the work with these rows."""


@dataclass(frozen=True)
class MemoryRows:
    """`Rows` in memory. With `offsets`, rows are sorted by block and block k is offsets[k]:offsets[k+1].

    `serials` say which row each of them was before they were sorted (None: they were not).
    """

    all: Block
    offsets: Tensor | None = None
    serials: Tensor | None = None

    def __len__(self) -> int:
        return len(self.all)

    @property
    def n_features(self) -> int:
        return self.all.X.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.all.X.dtype

    @property
    def total_weight(self) -> float:
        return self.all.n_rows

    @property
    def least_noise_var(self) -> float | None:
        return None if self.all.noise_var is None else float(self.all.noise_var.min())

    @property
    def mean_noise_var(self) -> float | None:
        return None if self.all.noise_var is None else float(self.all.noise_var.mean())

    @property
    def n_blocks(self) -> int:
        return 0 if self.offsets is None else len(self.offsets) - 1

    @property
    def sample(self) -> "MemoryRows":
        return self

    @property
    def largest_part(self) -> int:
        return len(self)

    def sum(self, task: "Callable[[MemoryRows], Sum]") -> Sum:
        return task(self)

    def parts(self, sizes: Sequence[int], rng: np.random.Generator, *, by_block: bool) -> "Iterator[MemoryRows]":
        n = self.n_blocks if by_block else len(self)
        order = torch.from_numpy(rng.permutation(n))
        for size in sizes:
            if size == len(self):
                yield self
            elif by_block:
                yield self.subset_of_blocks(order[: max(1, round(size / len(self) * n))])
            else:
                yield self.subset(order[:size].sort().values)

    def pieces(self, n_pieces: int, rng: np.random.Generator, *, by_block: bool) -> "Iterator[MemoryRows]":
        """Disjoint random pieces of about equal size, of whole blocks with `by_block`; one piece is the rows as are."""
        n = self.n_blocks if by_block else len(self)
        n_pieces = max(1, min(n_pieces, n))
        if n_pieces == 1:
            yield self
            return
        for index in np.array_split(rng.permutation(n), n_pieces):
            chosen = torch.from_numpy(np.sort(index))
            yield self.subset_of_blocks(chosen) if by_block else self.subset(chosen)

    def chunks(self, size: int = CHUNK_ROWS) -> Iterator[Block]:
        for start in range(0, len(self), size):
            yield self.all.take(slice(start, start + size))

    def block(self, k: int) -> Block:
        assert self.offsets is not None
        return self.all.take(slice(int(self.offsets[k]), int(self.offsets[k + 1])))

    def blocks(self) -> Iterator[Block]:
        """The blocks that have rows."""
        for k in range(self.n_blocks):
            if len(block := self.block(k)):
                yield block

    def groups(self, by_block: bool) -> Iterator[Block]:
        """The groups of rows that a model must see whole: its blocks, or chunks of any size."""
        if by_block and self.offsets is None:
            raise InputError("An approximation by blocks needs rows that are sorted into blocks, and these are not.")
        return self.blocks() if by_block else self.chunks()

    def subset(self, index: Tensor) -> "MemoryRows":
        """Some rows, without block structure."""
        return MemoryRows(self.all.take(index))

    def subset_of_blocks(self, blocks: Tensor) -> "MemoryRows":
        assert self.offsets is not None
        sizes = self.offsets.diff()[blocks]
        none = torch.zeros(0, dtype=torch.int64)
        index = torch.cat([none, *(torch.arange(int(self.offsets[k]), int(self.offsets[k + 1])) for k in blocks)])
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        return MemoryRows(self.all.take(index), offsets, None if self.serials is None else self.serials[index])

    def in_blocks(self, assign: Callable[[Tensor], Tensor], n_blocks: int) -> "MemoryRows":
        labels = assign(self.all.X)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), labels.bincount(minlength=n_blocks).cumsum(0)])
        order = labels.argsort(stable=True)
        return MemoryRows(self.all.take(order), offsets, order)

    def draws(self, block_rows: int, rng: np.random.Generator, *, by_block: bool) -> "GivenBlocks | RandomBlocks":
        return GivenBlocks(self) if by_block else RandomBlocks.build(self, block_rows, rng)

    def store(self) -> "MemoryRows":
        return self

    def report(self) -> dict[str, Any]:
        return {}

    @classmethod
    def concat(cls, parts: "Sequence[MemoryRows]") -> "MemoryRows":
        """The rows of all parts, block after block where they have blocks."""
        block = Block.concat([part.all for part in parts])
        if any(part.offsets is None for part in parts):
            return cls(block)
        sizes = torch.cat([part.offsets.diff() for part in parts if part.offsets is not None])
        serials = [part.serials for part in parts if part.serials is not None]
        is_known = len(serials) == len(parts)
        return cls(block, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]), torch.cat(serials) if is_known else None)


@dataclass(frozen=True)
class GivenBlocks:
    """The blocks of rows in memory that are sorted by block."""

    rows: MemoryRows

    def __post_init__(self) -> None:
        if self.rows.n_blocks == 0:
            raise InputError("GivenBlocks needs rows sorted by block; these have none. Use RandomBlocks for them.")

    per_step = 1

    @property
    def n_blocks(self) -> int:
        return self.rows.n_blocks

    @cached_property
    def sizes(self) -> Sizes:
        return np.array([self.rows.block(k).n_rows for k in range(self.n_blocks)])

    def block(self, k: int) -> Block:
        return self.rows.block(k)

    def each(self, task: Callable[[Block], Answer], index: Sequence[int]) -> list[Answer]:
        return [task(self.block(k)) for k in index]


@dataclass(frozen=True)
class RandomBlocks:
    """Random disjoint blocks of equal size (up to one row): mini-batches, for approximations without blocks."""

    rows: MemoryRows
    order: Tensor
    offsets: NDArray[np.int64]

    @classmethod
    def build(cls, rows: MemoryRows, block_rows: int, rng: np.random.Generator) -> "RandomBlocks":
        if block_rows < 1 or len(rows) < 1:
            raise InputError(f"Blocks need at least one row each; got {len(rows)} rows and block_rows={block_rows!r}.")
        n_blocks = -(-len(rows) // block_rows)
        offsets = np.arange(n_blocks + 1, dtype=np.int64) * len(rows) // n_blocks
        return cls(rows, torch.from_numpy(rng.permutation(len(rows))), offsets)

    per_step = 1

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

    def each(self, task: Callable[[Block], Answer], index: Sequence[int]) -> list[Answer]:
        return [task(self.block(k)) for k in index]
