"""Blocks on disk: rows of any number sorted by block into files, then fetched one block at a time.

Memory does not grow with the number of rows. Rows are first scattered into files, each of which holds some consecutive
blocks and fits into memory; then every file is sorted by block. An index written last says where each block is.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsegp.data import Block, Rows
from sparsegp.errors import InputError
from sparsegp.partition import Partition
from sparsegp.sources.batch import Array, rows_per_batch
from sparsegp.sources.prefetch import prefetched

Assign = Callable[[Tensor], Tensor]
"""Block 0..K-1 of each row, from its inputs in the model's units."""

FILE_BYTES = 64 * 2**20
INDEX = "index.json"
VERSION = 1


@dataclass(frozen=True)
class Layout:
    """The columns of a row on disk: its inputs, its target and, where there are any, its noise variance and weight."""

    n_features: int
    has_noise: bool
    has_weight: bool

    @classmethod
    def of(cls, block: Block) -> "Layout":
        return cls(block.X.shape[1], block.noise_var is not None, block.weight is not None)

    @property
    def width(self) -> int:
        return self.n_features + 1 + self.has_noise + self.has_weight

    def pack(self, block: Block) -> Array:
        parts = [block.y, block.noise_var, block.weight]
        columns = [part[:, None] for part in parts if part is not None]
        return torch.cat([block.X, *columns], dim=1).to(torch.float64).cpu().numpy()

    def unpack(self, values: Array, dtype: torch.dtype) -> Block:
        rows = torch.from_numpy(values).to(dtype)
        D = self.n_features
        noise = rows[:, D + 1] if self.has_noise else None
        return Block(rows[:, :D].contiguous(), rows[:, D], noise, rows[:, -1] if self.has_weight else None)


@dataclass(frozen=True)
class DiskBlocks:
    """Blocks of rows in a folder. A source of blocks for sampling, a store for local predictions, and, iterated, groups
    of whole blocks for a pass over all rows. Blocks may be empty."""

    folder: Path
    layout: Layout
    counts: NDArray[np.int64]
    sizes: Array
    file_of: NDArray[np.int64]
    dtype: torch.dtype = torch.float64

    @classmethod
    def open(cls, folder: str | Path, dtype: torch.dtype = torch.float64) -> "DiskBlocks":
        """Blocks that were written before; files that are missing or cut short are found here."""
        folder = Path(folder)
        if not (folder / INDEX).exists():
            raise InputError(f"'{folder}' holds no finished blocks (no {INDEX}). Write them with write_blocks.")
        found = json.loads((folder / INDEX).read_text())
        if found["version"] != VERSION:
            raise InputError(f"'{folder}' was written in version {found['version']}; this one reads {VERSION}.")
        layout = Layout(found["n_features"], found["has_noise"], found["has_weight"])
        counts, file_of = (np.array(found[name], dtype=np.int64) for name in ("counts", "file_of"))
        blocks = cls(folder, layout, counts, np.array(found["sizes"], dtype=np.float64), file_of, dtype)
        blocks._require_whole_files()
        return blocks

    def _require_whole_files(self) -> None:
        for file in np.unique(self.file_of).tolist():
            expected = int(self.counts[self.file_of == file].sum()) * self.layout.width * 8
            path = _path(self.folder, file)
            if not path.exists() or path.stat().st_size != expected:
                raise InputError(f"'{path}' is missing or not {expected} bytes long. Write the blocks again.")

    @property
    def n_blocks(self) -> int:
        return len(self.counts)

    @property
    def n_rows(self) -> int:
        return int(self.counts.sum())

    @cached_property
    def _start(self) -> NDArray[np.int64]:
        """First row of each block within its file."""
        before = np.cumsum(self.counts) - self.counts
        first = np.searchsorted(self.file_of, self.file_of)
        return before - before[first]

    def block(self, k: int) -> Block:
        return self._read(k, k + 1)

    def _read(self, first: int, stop: int) -> Block:
        """The rows of consecutive blocks of one file."""
        width, n_rows = self.layout.width, int(self.counts[first:stop].sum())
        values = np.fromfile(
            _path(self.folder, int(self.file_of[first])),
            count=n_rows * width,
            offset=int(self._start[first]) * width * 8,
        )
        return self.layout.unpack(values.reshape(n_rows, width), self.dtype)

    def __iter__(self) -> Iterator[Rows]:
        return prefetched(self._groups())

    def _groups(self) -> Iterator[Rows]:
        limit = rows_per_batch(self.layout.n_features)
        first = 0
        while first < self.n_blocks:
            same_file = int(np.searchsorted(self.file_of, self.file_of[first], side="right"))
            within = np.cumsum(self.counts[first:same_file]) <= limit
            stop = first + max(1, int(within.sum()))
            offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(self.counts[first:stop])]))
            yield Rows(self._read(first, stop), offsets)
            first = stop


def nearest_block(partition: Partition, metric: Tensor | None = None) -> Assign:
    """The block of the nearest centroid, distances taken after each input was multiplied by `metric`."""

    def assign(X: Tensor) -> Tensor:
        X = X.to(torch.float64)
        return partition.assign(X if metric is None else X * metric)

    return assign


def random_block(n_blocks: int, rng: np.random.Generator) -> Assign:
    """A random block for each row: mini-batches for approximations that are not defined by blocks."""
    return lambda X: torch.from_numpy(rng.integers(n_blocks, size=X.shape[0]))


def write_blocks(
    groups: Iterable[Rows],
    assign: Assign,
    n_blocks: int,
    folder: str | Path,
    *,
    n_rows: int,
    file_bytes: int = FILE_BYTES,
) -> DiskBlocks:
    """Sort the rows of one pass by block into a new folder; `n_rows` decides on how many files."""
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"The folder '{folder}' for the blocks is not empty. Name a new one, or empty it.")
    folder.mkdir(parents=True, exist_ok=True)
    writer: _Scatter | None = None
    for rows in groups:
        writer = writer or _Scatter(folder, Layout.of(rows.all), n_blocks, n_rows, file_bytes)
        writer.add(rows.all, assign(rows.all.X))
    if writer is None:
        raise InputError("The data have no rows: there is nothing to sort into blocks.")
    writer.finish()
    return DiskBlocks.open(folder, rows.all.X.dtype)


class _Scatter:
    """Rows on their way into files; the label of each row goes in front of it until its file is sorted."""

    def __init__(self, folder: Path, layout: Layout, n_blocks: int, n_rows: int, file_bytes: int) -> None:
        self.folder, self.layout = folder, layout
        n_files = min(n_blocks, -(-n_rows * (layout.width + 1) * 8 // file_bytes))
        self.file_of = np.arange(n_blocks) * n_files // n_blocks
        self.counts, self.sizes = np.zeros(n_blocks, dtype=np.int64), np.zeros(n_blocks)

    def add(self, block: Block, labels: Tensor) -> None:
        if Layout.of(block) != self.layout:
            raise InputError("Some rows have noise variances or weights and others have not; give all or none.")
        label = labels.cpu().numpy()
        if label.min() < 0 or label.max() >= len(self.counts):
            raise InputError(
                f"Block labels must lie in 0..{len(self.counts) - 1}; got {label.min()}..{label.max()}. "
                "Give write_blocks the number of blocks that `assign` knows."
            )
        weight = None if block.weight is None else block.weight.to(torch.float64).cpu().numpy()
        self.counts += np.bincount(label, minlength=len(self.counts))
        self.sizes += np.bincount(label, weights=weight, minlength=len(self.sizes))
        packed = np.column_stack([label, self.layout.pack(block)])
        file = self.file_of[label]
        order = np.argsort(file, kind="stable")
        present, starts = np.unique(file[order], return_index=True)
        for k, rows in zip(present.tolist(), np.split(packed[order], starts[1:]), strict=True):
            with _path(self.folder, k).open("ab") as out:
                rows.tofile(out)

    def finish(self) -> None:
        """Sort every file by block, then write the index."""
        for file in np.unique(self.file_of).tolist():
            path = _path(self.folder, file)
            path.touch()
            rows = np.fromfile(path).reshape(-1, self.layout.width + 1)
            rows = rows[np.argsort(rows[:, 0], kind="stable"), 1:]
            rows.tofile(path)
        index = {
            "version": VERSION,
            "n_features": self.layout.n_features,
            "has_noise": self.layout.has_noise,
            "has_weight": self.layout.has_weight,
            "counts": self.counts.tolist(),
            "sizes": self.sizes.tolist(),
            "file_of": self.file_of.tolist(),
        }
        (self.folder / INDEX).write_text(json.dumps(index))


def _path(folder: Path, file: int) -> Path:
    return folder / f"blocks-{file:05d}.f64"
