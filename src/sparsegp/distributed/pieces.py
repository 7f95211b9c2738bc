"""A source cut into shares, one for each worker, that workers can read on their own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparsegp.distributed.connecting import dask_package
from sparsegp.errors import InputError
from sparsegp.sources.arrays import ArraySource
from sparsegp.sources.batch import Batch, Place, Source, rows_per_batch
from sparsegp.sources.columns import Columns, Roles
from sparsegp.sources.files import READ_BUFFER_BYTES, CsvSource, ParquetPart, ParquetSource, label
from sparsegp.sources.iterables import DaskArraySource, DaskFrameSource
from sparsegp.sources.tables import TableSource


@dataclass(frozen=True)
class Joined:
    """Several sources with the same columns, one after another."""

    sources: tuple[Source, ...]
    feature_names: tuple[str, ...] | None
    n_features: int

    @property
    def n_rows(self) -> None:
        return None

    def __iter__(self) -> Iterator[Batch]:
        for source in self.sources:
            yield from source


@dataclass(frozen=True)
class RowGroup:
    """One row group of a Parquet file; `start` is its first row within the file."""

    part: ParquetPart
    columns: Columns
    group: int
    start: int
    n_rows: int

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self.columns.features

    @property
    def n_features(self) -> int:
        return len(self.columns.features)

    def __iter__(self) -> Iterator[Batch]:
        wanted = [name for name in self.columns.all if name not in self.part.constants]
        place = Place(label(self.part.path), self.start, self.group)
        step = rows_per_batch(self.n_features)
        try:
            with pq.ParquetFile(self.part.path, buffer_size=READ_BUFFER_BYTES) as file:
                for table in file.iter_batches(step, row_groups=[self.group], columns=wanted, use_threads=False):
                    yield self.columns.batch(table, place, self.part.constants)
                    place = place.later(table.num_rows)
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{place.name}, row group {self.group} cannot be read on a worker: {error}. The file must be at the "
                "same path on every worker and must not change during a fit."
            ) from error


def pieces_of(source: Source, n_shares: int) -> list[tuple[Source, float]]:
    """Consecutive pieces of a source, each with the number of its rows (1 where nobody knows it)."""
    if isinstance(source, ParquetSource):
        return [(group, group.n_rows) for part in source.parts for group in _row_groups(part, source.columns)]
    if isinstance(source, CsvSource):
        return [(replace(source, paths=(path,)), 1.0) for path in source.paths]
    if isinstance(source, ArraySource | TableSource):
        cuts = [round(source.n_rows * k / n_shares) for k in range(n_shares + 1)]
        return [(_rows(source, a, b), b - a) for a, b in pairwise(cuts)]
    raise InputError(
        f"A {type(source).__name__} can only be read on this machine, not by workers. Give arrays, a table, a dask "
        "collection, or paths to Parquet or CSV files that every worker can read."
    )


def shared_out(pieces: Sequence[Any], sizes: Sequence[float], n_shares: int) -> list[list[Any]]:
    """Consecutive pieces for each share, about as many rows in each; a piece goes where its middle falls."""
    size = np.asarray(sizes, dtype=np.float64)
    middle = np.cumsum(size) - size / 2.0
    share = np.minimum((middle / max(float(size.sum()), 1.0) * n_shares).astype(int), n_shares - 1)
    return [[piece for piece, k in zip(pieces, share, strict=True) if k == j] for j in range(n_shares)]


def _row_groups(part: ParquetPart, columns: Columns) -> list[RowGroup]:
    metadata = pq.read_metadata(part.path)
    sizes = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
    starts = np.cumsum([0, *sizes]).tolist()
    return [RowGroup(part, columns, k, starts[k], n_rows) for k, n_rows in enumerate(sizes)]


def _rows(source: ArraySource | TableSource, start: int, stop: int) -> Source:
    """Rows start:stop; messages count rows from `start`, which the name says."""
    name = source.name if start == 0 else f"{source.name} from row {start} on"
    if isinstance(source, TableSource):
        return replace(source, table=source.table.slice(start, stop - start), name=name)
    noise, weight = (None if part is None else part[start:stop] for part in (source.noise_var, source.weight))
    return replace(source, X=source.X[start:stop], y=source.y[start:stop], noise_var=noise, weight=weight, name=name)


def partitions_of(source: DaskFrameSource | DaskArraySource) -> list[Any]:
    """What dask computes for each partition: a frame, or the list [X, y, noise variances, weights]."""
    if isinstance(source, DaskFrameSource):
        return list(source.frame.to_delayed())
    columns = (source.X.rechunk({1: -1}), source.y, source.noise_var, source.weight)
    parts = [None if values is None else values.to_delayed().ravel() for values in columns]
    together = dask_package("dask").delayed(list)
    return [together([None if part is None else part[k] for part in parts]) for k in range(source.X.numblocks[0])]


def frame_source(columns: Columns, first: int, frames: Sequence[Any]) -> Joined:
    """Runs on a worker: partitions `first`, `first + 1`, ... of a dask DataFrame."""
    roles = Roles(columns.target, columns.features, columns.noise_var, columns.weight)
    sources = tuple(TableSource.of(frame, roles, f"partition {first + k}") for k, frame in enumerate(frames))
    return Joined(sources, columns.features, len(columns.features))


def array_source(n_features: int, first: int, blocks: Sequence[Sequence[Any]]) -> Joined:
    """Runs on a worker: partitions `first`, `first + 1`, ... of dask arrays X, y, noise variances and weights."""
    sources = tuple(
        ArraySource.of(X, y, noise_var, weight, name=f"partition {first + k}")
        for k, (X, y, noise_var, weight) in enumerate(blocks)
    )
    return Joined(sources, None, n_features)
