"""Rows of data as torch tensors, cut into the groups that must be processed together."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegp import parallel

CHUNK_ROWS = 1024


@dataclass(frozen=True)
class Block:
    """A group of rows: inputs, targets, known noise variances (None: the model's own) and weights (None: 1).

    Weight w says the row stands for w equal rows.
    """

    X: Tensor
    y: Tensor
    noise_var: Tensor | None = None
    weight: Tensor | None = None

    def __len__(self) -> int:
        return self.X.shape[0]

    def take(self, index: Tensor | slice) -> "Block":
        return Block(
            self.X[index],
            self.y[index],
            None if self.noise_var is None else self.noise_var[index],
            None if self.weight is None else self.weight[index],
        )

    @property
    def n_rows(self) -> float:
        """Number of rows, each counted with its weight."""
        return float(len(self)) if self.weight is None else float(self.weight.sum())

    @property
    def target_variance(self) -> float:
        """Every row counts once; 1 for equal targets. Its last digits do not depend on the number of threads."""
        with parallel.single():
            return float(self.y.var(correction=0)) or 1.0


@dataclass(frozen=True)
class Rows:
    """A data set in memory. With `offsets`, rows are sorted by block and block k is offsets[k]:offsets[k+1]."""

    all: Block
    offsets: Tensor | None = None

    def __len__(self) -> int:
        return len(self.all)

    @property
    def n_blocks(self) -> int:
        return 0 if self.offsets is None else len(self.offsets) - 1

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

    def units(self, by_block: bool) -> Iterator[Block]:
        """The groups of rows that a model must see whole: its blocks, or chunks of any size."""
        return self.blocks() if by_block else self.chunks()

    def subset(self, index: Tensor) -> "Rows":
        """Some rows, without block structure."""
        return Rows(self.all.take(index))

    def subset_of_blocks(self, blocks: Tensor) -> "Rows":
        assert self.offsets is not None
        sizes = self.offsets.diff()[blocks]
        index = torch.cat([torch.arange(int(self.offsets[k]), int(self.offsets[k + 1])) for k in blocks])
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        return Rows(self.all.take(index), offsets)
