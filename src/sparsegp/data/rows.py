"""Rows in the scaling of the model that are read from a source as they are needed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sparsegp.core.block import Block, MemoryRows, Rows, Sum
from sparsegp.data.batches import Array, Batch, Source, prefetched, regrouped, rows_per_batch
from sparsegp.data.disk_rows import Assign, DiskRows, Passes, random_block, sorted_on_disk, total_of
from sparsegp.data.scan import Scan, valid_batches, with_weight
from sparsegp.errors import InputError


class Scaling(Protocol):
    """The scaling of the model: x' and y' of the user's x and y, and how many of the user's units make one of y'."""

    @property
    def y_scale(self) -> float:
        """y = y_scale y' + a constant."""

    def inputs(self, X: Array) -> Array:
        """x' of each row."""

    def targets(self, y: Array) -> Array:
        """y' of each row."""


_DOUBLE = torch.empty(0, dtype=torch.float64)


def to_block(batch: Batch, scaling: Scaling, like: Tensor = _DOUBLE) -> Block:
    """A batch in the scaling of the model, in the precision and on the device of `like`."""

    def tensor(values: Array) -> Tensor:
        # The rounding of BLAS depends on where numbers lie: memory of torch is aligned, that of numpy is not.
        return torch.from_numpy(np.ascontiguousarray(values)).to(like, copy=True)

    return Block(
        tensor(scaling.inputs(batch.X)),
        tensor(scaling.targets(batch.y)),
        None if batch.noise_var is None else tensor(batch.noise_var / scaling.y_scale**2),
        None if batch.weight is None else like.new_tensor(batch.weight),
    )


@dataclass(frozen=True)
class SourceRows:
    """`Rows` of a source, read anew in every pass, ahead of the work by a thread. Rows of weight zero are left out.

    The groups of a pass do not depend on how the source cuts its batches: the same rows from any source give the same
    numbers. `n_rows` is what the scan counted; a pass that gives another number is an error. `sample` holds random
    rows in memory.
    """

    source: Source
    scaling: Scaling
    n_rows: int
    sample: MemoryRows
    total_weight: float
    least_noise_var: float | None = None
    mean_noise_var: float | None = None
    device: str = "cpu"
    group_rows: int | None = None
    passes: Passes = field(default_factory=Passes, compare=False)

    @classmethod
    def of(
        cls, source: Source, scan: Scan, scaling: Scaling, like: Tensor = _DOUBLE, group_rows: int | None = None
    ) -> "SourceRows":
        """From what the scan has found, in the precision and on the device of `like`."""
        least, mean = scan.least_noise_var, scan.mean_noise_var
        return cls(
            source,
            scaling,
            scan.n_rows,
            MemoryRows(to_block(scan.sample, scaling, like)),
            scan.total_weight,
            None if least is None else least / scaling.y_scale**2,
            None if mean is None else mean / scaling.y_scale**2,
            str(like.device),
            group_rows,
            Passes(1),
        )

    def __len__(self) -> int:
        return self.n_rows

    @property
    def n_features(self) -> int:
        return self.sample.n_features

    @property
    def dtype(self) -> torch.dtype:
        return self.sample.dtype

    @property
    def n_blocks(self) -> int:
        return 0

    @property
    def serials(self) -> None:
        return None

    @property
    def largest_part(self) -> int:
        return len(self.sample)

    def __iter__(self) -> Iterator[MemoryRows]:
        return prefetched(self._groups())

    def _groups(self) -> Iterator[MemoryRows]:
        self.passes.count += 1
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        size = self.group_rows or rows_per_batch(self.source.n_features)
        n_rows = 0
        for batch in regrouped(map(with_weight, valid_batches(self.source)), size):
            n_rows += len(batch)
            yield MemoryRows(to_block(batch, self.scaling, like))
        if n_rows != self.n_rows:
            raise InputError(
                f"The first pass over the data met {self.n_rows} rows, this one {n_rows}. A source must give the same "
                "rows every time: check that the files are not being written to, or that __iter__ starts again."
            )

    def sum(self, task: Callable[[MemoryRows], Sum]) -> Sum:
        return total_of(task(rows) for rows in self)

    def parts(self, sizes: Sequence[int], rng: np.random.Generator, *, by_block: bool) -> Iterator[Rows]:
        if by_block:
            raise InputError(_NO_BLOCKS)
        inner = self.sample.parts([min(size, len(self.sample)) for size in sizes], rng, by_block=False)
        for size, part in zip(sizes, inner, strict=True):
            yield self if size == len(self) else part

    def subset_of_blocks(self, blocks: Tensor) -> Rows:
        raise InputError(_NO_BLOCKS)

    def in_blocks(self, assign: Assign, n_blocks: int) -> "DiskRows":
        return sorted_on_disk(self, assign, n_blocks)

    def draws(self, block_rows: int, rng: np.random.Generator, *, by_block: bool) -> "DiskRows":
        """Rows sorted into random blocks on disk: the order of a file is not random."""
        if by_block:
            raise InputError(_NO_BLOCKS)
        n_blocks = -(-len(self) // block_rows)
        return sorted_on_disk(self, random_block(n_blocks, rng), n_blocks)

    def store(self) -> Any:
        raise InputError(_NO_BLOCKS)

    def report(self) -> dict[str, Any]:
        return {"passes": self.passes.count}


_NO_BLOCKS = "These rows are read from a source, in no blocks: sort them with in_blocks first."
