"""Rows in the scaling of the model in blocks on disk: the folder, how rows are sorted into it, and how it is read."""

import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsegp.core.block import Answer, Block, MemoryRows, Rows, Sum
from sparsegp.data.batches import Array, prefetched, rows_per_batch
from sparsegp.data.scan import SAMPLE_ROWS
from sparsegp.errors import InputError

Assign = Callable[[Tensor], Tensor]
"""Block 0..K-1 of each row, from its inputs in the scaling of the model."""

FILE_BYTES = 64 * 2**20
INDEX = "index.json"
VERSION = 2


@dataclass
class Passes:
    """How many times all rows were read."""

    count: int = 0


class ReadInPasses(Protocol):
    """Rows that come group by group, with a sample that is in memory."""

    @property
    def sample(self) -> MemoryRows: ...

    @property
    def passes(self) -> Passes: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[MemoryRows]: ...


def total_of(parts: Iterable[Sum]) -> Sum:
    return reduce(lambda total, part: total + part, parts)


class ScratchFolder:
    """A new folder that is removed when nobody refers to it any more. Copies refer to the same folder."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="sparsegp-blocks-"))
        weakref.finalize(self, shutil.rmtree, str(self.path), ignore_errors=True)

    def __copy__(self) -> "ScratchFolder":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "ScratchFolder":
        return self

    def __reduce__(self) -> Any:
        """Another process refers to the folder without owning it."""
        return type(None), ()


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
class DiskRows:
    """`Rows` sorted into blocks in a folder; a block is read when it is needed. Blocks may be empty.

    `held` is a sample that is in memory already; else some blocks are one. `home` ends with the rows.
    """

    folder: Path
    layout: Layout
    counts: NDArray[np.int64]
    sizes: Array
    file_of: NDArray[np.int64]
    dtype: torch.dtype = torch.float64
    least_noise_var: float | None = None
    mean_noise_var: float | None = None
    held: MemoryRows | None = None
    home: ScratchFolder | None = None
    passes: Passes = field(default_factory=Passes, compare=False)
    per_step = 1

    @classmethod
    def open(cls, folder: str | Path, dtype: torch.dtype = torch.float64) -> "DiskRows":
        """Blocks that were written before; files that are missing or cut short are found here."""
        folder = Path(folder)
        if not (folder / INDEX).exists():
            raise InputError(f"'{folder}' holds no finished blocks (no {INDEX}). Write them with write_blocks.")
        found = json.loads((folder / INDEX).read_text())
        if found["version"] != VERSION:
            raise InputError(f"'{folder}' was written in version {found['version']}; this one reads {VERSION}.")
        layout = Layout(found["n_features"], found["has_noise"], found["has_weight"])
        counts, file_of = (np.array(found[name], dtype=np.int64) for name in ("counts", "file_of"))
        sizes, noise = np.array(found["sizes"], dtype=np.float64), found.get("noise_var") or (None, None)
        blocks = cls(folder, layout, counts, sizes, file_of, dtype, *noise)
        blocks._require_whole_files()
        return blocks

    def _require_whole_files(self) -> None:
        for file in np.unique(self.file_of).tolist():
            n_rows = int(self.counts[self.file_of == file].sum())
            for path, width in ((_path(self.folder, file), self.layout.width), (_serials_path(self.folder, file), 1)):
                expected = n_rows * width * 8
                if not path.exists() or path.stat().st_size != expected:
                    raise InputError(f"'{path}' is missing or not {expected} bytes long. Write the blocks again.")

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def n_features(self) -> int:
        return self.layout.n_features

    @property
    def total_weight(self) -> float:
        return float(self.sizes.sum())

    @property
    def n_blocks(self) -> int:
        return len(self.counts)

    @property
    def largest_part(self) -> int:
        return len(self)

    @cached_property
    def sample(self) -> MemoryRows:
        """The rows of blocks spread over all of them, where none are held."""
        if self.held is not None:
            return self.held
        n = max(1, round(min(1.0, SAMPLE_ROWS / max(1, len(self))) * self.n_blocks))
        spread = np.linspace(0, self.n_blocks - 1, n).astype(np.int64)
        return self.subset_of_blocks(torch.from_numpy(spread))

    @cached_property
    def _start(self) -> NDArray[np.int64]:
        """First row of each block within its file."""
        before = np.cumsum(self.counts) - self.counts
        first = np.searchsorted(self.file_of, self.file_of)
        return before - before[first]

    @property
    def serials(self) -> Tensor:
        files = [np.fromfile(_serials_path(self.folder, k), dtype=np.int64) for k in np.unique(self.file_of).tolist()]
        return torch.from_numpy(np.concatenate(files))

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

    def __iter__(self) -> Iterator[MemoryRows]:
        return prefetched(self._groups())

    def _groups(self) -> Iterator[MemoryRows]:
        self.passes.count += 1
        limit = rows_per_batch(self.layout.n_features)
        first = 0
        while first < self.n_blocks:
            same_file = int(np.searchsorted(self.file_of, self.file_of[first], side="right"))
            within = np.cumsum(self.counts[first:same_file]) <= limit
            stop = first + max(1, int(within.sum()))
            offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(self.counts[first:stop])]))
            yield MemoryRows(self._read(first, stop), offsets)
            first = stop

    def sum(self, task: Callable[[MemoryRows], Sum]) -> Sum:
        return total_of(task(rows) for rows in self)

    def parts(self, sizes: Sequence[int], rng: np.random.Generator, *, by_block: bool) -> Iterator[Rows]:
        order = torch.from_numpy(rng.permutation(self.n_blocks if by_block else len(self)))
        for size in sizes:
            if size == len(self):
                yield self
            elif by_block:
                yield self.subset_of_blocks(order[: max(1, round(size / len(self) * self.n_blocks))])
            else:
                yield self._some_rows(order[:size].sort().values)

    def _some_rows(self, index: Tensor) -> MemoryRows:
        """Rows by their place in the order of the blocks, from one pass."""
        parts, first = [], 0
        for rows in self:
            mine = index[(index >= first) & (index < first + len(rows))] - first
            parts.append(rows.subset(mine))
            first += len(rows)
        return MemoryRows.concat(parts)

    def subset_of_blocks(self, blocks: Tensor) -> MemoryRows:
        """In memory: a model learns from a few blocks at a time."""
        parts = [self.block(k) for k in blocks.tolist()]
        return MemoryRows(Block.concat(parts), torch.tensor([0, *map(len, parts)]).cumsum(0))

    def in_blocks(self, assign: Assign, n_blocks: int) -> "DiskRows":
        return sorted_on_disk(self, assign, n_blocks)

    def draws(self, block_rows: int, rng: np.random.Generator, *, by_block: bool) -> "DiskRows":
        """The blocks themselves: they are small, whether they are places or random."""
        return self

    def each(self, task: Callable[[Block], Answer], index: Sequence[int]) -> list[Answer]:
        return [task(self.block(k)) for k in index]

    def store(self) -> "DiskRows":
        return self

    def report(self) -> dict[str, Any]:
        return {"passes": self.passes.count}


def random_block(n_blocks: int, rng: np.random.Generator) -> Assign:
    """A random block for each row: mini-batches for approximations that are not defined by blocks."""
    return lambda X: torch.from_numpy(rng.integers(n_blocks, size=X.shape[0]))


def sorted_on_disk(rows: ReadInPasses, assign: Assign, n_blocks: int) -> DiskRows:
    """The same rows in blocks in a folder of their own, which is removed with the last reference to them."""
    folder = ScratchFolder()
    found = write_blocks(rows, assign, n_blocks, folder.path, n_rows=len(rows))
    return replace(found, held=rows.sample.in_blocks(assign, n_blocks), home=folder, passes=rows.passes)


def write_blocks(
    groups: Iterable[MemoryRows],
    assign: Assign,
    n_blocks: int,
    folder: str | Path,
    *,
    n_rows: int,
    file_bytes: int = FILE_BYTES,
) -> DiskRows:
    """Sort the rows of one pass by block into a new folder; `n_rows` decides on how many files.

    Rows are scattered over files that each hold some blocks and fit into memory; then every file is sorted by block.
    An index written last says where each block is.
    """
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
    return DiskRows.open(folder, rows.all.X.dtype)


class _Scatter:
    """Rows on their way into files; label and serial number go in front of each row until its file is sorted."""

    def __init__(self, folder: Path, layout: Layout, n_blocks: int, n_rows: int, file_bytes: int) -> None:
        self.folder, self.layout = folder, layout
        n_files = min(n_blocks, -(-n_rows * (layout.width + 2) * 8 // file_bytes))
        self.file_of = np.arange(n_blocks) * n_files // n_blocks
        self.counts, self.sizes = np.zeros(n_blocks, dtype=np.int64), np.zeros(n_blocks)
        self.least_noise_var, self.noise_var_sum = np.inf, 0.0
        self.n_added = 0

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
        if block.noise_var is not None:
            self.least_noise_var = min(self.least_noise_var, float(block.noise_var.min()))
            self.noise_var_sum += float(block.noise_var.sum(dtype=torch.float64))
        packed = np.column_stack([label, self.n_added + np.arange(len(label)), self.layout.pack(block)])
        self.n_added += len(label)
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
            rows = np.fromfile(path).reshape(-1, self.layout.width + 2)
            rows = rows[np.argsort(rows[:, 0], kind="stable"), 1:]
            rows[:, 0].astype(np.int64).tofile(_serials_path(self.folder, file))
            rows[:, 1:].tofile(path)
        index = {
            "version": VERSION,
            "n_features": self.layout.n_features,
            "has_noise": self.layout.has_noise,
            "has_weight": self.layout.has_weight,
            "counts": self.counts.tolist(),
            "sizes": self.sizes.tolist(),
            "file_of": self.file_of.tolist(),
            "noise_var": (self.least_noise_var, self.noise_var_sum / self.counts.sum())
            if self.layout.has_noise
            else None,
        }
        (self.folder / INDEX).write_text(json.dumps(index))


def _path(folder: Path, file: int) -> Path:
    return folder / f"blocks-{file:05d}.f64"


def _serials_path(folder: Path, file: int) -> Path:
    return folder / f"serials-{file:05d}.i64"
