"""A source as the model sees it: torch rows in the model's units, in groups of a fixed number of rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sparsegp.data import Block, Rows
from sparsegp.errors import InputError
from sparsegp.sources.batch import Array, Batch, Source, rows_per_batch
from sparsegp.sources.prefetch import prefetched
from sparsegp.sources.survey import regrouped, valid_batches, with_weight


class Units(Protocol):
    """The model's units: x' and y' of the user's x and y, and how many of the user's units make one of y'."""

    @property
    def y_scale(self) -> float:
        """y = y_scale y' + a constant."""

    def inputs(self, X: Array) -> Array:
        """x' of each row."""

    def targets(self, y: Array) -> Array:
        """y' of each row."""


_DOUBLE = torch.empty(0, dtype=torch.float64)


def to_block(batch: Batch, units: Units, like: Tensor = _DOUBLE) -> Block:
    """A batch in the model's units, in the precision and on the device of `like`."""

    def tensor(values: Array) -> Tensor:
        # The rounding of BLAS depends on where numbers lie: memory of torch is aligned, that of numpy is not.
        return like.new_tensor(values)

    return Block(
        tensor(units.inputs(batch.X)),
        tensor(units.targets(batch.y)),
        None if batch.noise_var is None else tensor(batch.noise_var / units.y_scale**2),
        None if batch.weight is None else tensor(batch.weight),
    )


@dataclass(frozen=True)
class ModelRows:
    """Re-iterable groups of rows, read ahead by a thread. Rows of weight zero are left out.

    The groups do not depend on how the source cuts its batches: the same rows from any source give the same numbers.
    `n_rows` is what the survey counted; a pass that gives another number is an error.
    """

    source: Source
    units: Units
    n_rows: int
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    group_rows: int | None = None

    def __iter__(self) -> Iterator[Rows]:
        return prefetched(self._groups())

    def _groups(self) -> Iterator[Rows]:
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        size = self.group_rows or rows_per_batch(self.source.n_features)
        n_rows = 0
        for batch in regrouped(map(with_weight, valid_batches(self.source)), size):
            n_rows += len(batch)
            yield Rows(to_block(batch, self.units, like))
        if n_rows != self.n_rows:
            raise InputError(
                f"The first pass over the data met {self.n_rows} rows, this one {n_rows}. A source must give the same "
                "rows every time: check that the files are not being written to, or that __iter__ starts again."
            )


def joined(blocks: Sequence[Block]) -> Block:
    """The rows of several blocks, all with or all without known noise and weights."""
    filled = [block for block in blocks if len(block)] or list(blocks[:1])
    if len(filled) == 1:
        return filled[0]
    noises = [block.noise_var for block in filled if block.noise_var is not None]
    weights = [block.weight for block in filled if block.weight is not None]
    if len(noises) not in (0, len(filled)) or len(weights) not in (0, len(filled)):
        raise InputError("Some batches have noise variances or weights and others have not; give all or none.")
    return Block(
        torch.cat([block.X for block in filled]),
        torch.cat([block.y for block in filled]),
        torch.cat(noises) if noises else None,
        torch.cat(weights) if weights else None,
    )
