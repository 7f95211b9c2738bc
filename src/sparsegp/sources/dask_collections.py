"""Dask DataFrames and Arrays, read partition by partition. Dask itself is never imported here."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparsegp.errors import InputError
from sparsegp.sources.arrays import ArraySource
from sparsegp.sources.batch import Batch
from sparsegp.sources.columns import Columns, FromTable, Header, Roles
from sparsegp.sources.tables import TableSource


@dataclass(frozen=True)
class DaskFrameSource(FromTable):
    """A dask DataFrame; one partition is computed at a time, by the scheduler that dask is set to use."""

    frame: Any
    columns: Columns
    batch_rows: int | None = None

    @classmethod
    def of(cls, frame: Any, roles: Roles, batch_rows: int | None = None) -> "DaskFrameSource":
        schema = pa.Table.from_pandas(frame._meta, preserve_index=False).schema
        columns = Header.of(schema, "the dask DataFrame").choose(roles)
        return cls(frame[columns.all], columns, batch_rows)

    @property
    def n_rows(self) -> None:
        return None

    def __iter__(self) -> Iterator[Batch]:
        roles = Roles(self.columns.target, self.columns.features, self.columns.noise_var, self.columns.weight)
        for k in range(self.frame.npartitions):
            part = self.frame.partitions[k].compute()
            yield from TableSource.of(part, roles, f"partition {k}", self.batch_rows)


@dataclass(frozen=True)
class DaskArraySource:
    """Dask arrays X [N, D] and y [N] (and noise variances, weights), computed one block of rows at a time."""

    X: Any
    y: Any
    noise_var: Any = None
    weight: Any = None
    batch_rows: int | None = None

    @classmethod
    def of(
        cls, X: Any, y: Any, noise_var: Any = None, weight: Any = None, batch_rows: int | None = None
    ) -> "DaskArraySource":
        if X.ndim != 2:
            raise InputError(f"X must be a dask array [rows, columns]; got shape {X.shape}.")
        noise, weights = _aligned(noise_var, X, "noise_var"), _aligned(weight, X, "sample_weight")
        return cls(X, _aligned(y, X, "y"), noise, weights, batch_rows)

    @property
    def feature_names(self) -> None:
        return None

    @property
    def n_features(self) -> int:
        return int(self.X.shape[1])

    @property
    def n_rows(self) -> int | None:
        return None if math.isnan(self.X.shape[0]) else int(self.X.shape[0])

    def __iter__(self) -> Iterator[Batch]:
        for k in range(self.X.numblocks[0]):
            y, noise_var, weight = (
                None if values is None else values.blocks[k].compute()
                for values in (self.y, self.noise_var, self.weight)
            )
            X = self.X.blocks[k].compute()
            yield from ArraySource.of(X, y, noise_var, weight, name=f"partition {k}", batch_rows=self.batch_rows)


def _aligned(values: Any, X: Any, name: str) -> Any:
    """Values with the same blocks of rows as X."""
    if values is None:
        return None
    if type(values).__module__.partition(".")[0] != "dask":
        raise InputError(f"{name} must be a dask array like X; got {type(values).__name__}.")
    known = not (math.isnan(X.shape[0]) or math.isnan(values.shape[0]))
    fits = values.shape == X.shape[:1] if known else values.numblocks == X.numblocks[:1]
    if values.ndim != 1 or not fits:
        raise InputError(f"{name} must have one value for each row of X; got shape {values.shape} for {X.shape}.")
    return values.rechunk((X.chunks[0],)) if known else values
