"""Batches that something else makes: Python iterables, with a spool for those that can be read only once, and dask
DataFrames and Arrays, read partition by partition. Dask itself is never imported here."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparsegp.data.arrays import ArraySource
from sparsegp.data.batches import Batch
from sparsegp.data.columns import Columns, FromTable, Header, Piece, Roles
from sparsegp.data.layout import PlainLayout
from sparsegp.data.tables import TableSource, is_table, library_of
from sparsegp.errors import InputError
from sparsegp.whole_file import locked, replacing

Make = Callable[[], Iterable[Any]]


@dataclass(frozen=True)
class IterableSource(PlainLayout):
    """Items (X, y), (X, y, noise_var), (X, y, noise_var, weight)."""

    make: Make
    n_features: int
    batch_rows: int | None = None
    feature_names = None

    @staticmethod
    def of(make: Make, roles: Roles | None, batch_rows: int | None = None) -> "IterableSource | IterableTables":
        """Looks at the first item for the number and names of the columns."""
        first = next(iter(make()), None)
        if first is None:
            raise InputError("The iterable of batches gave none; give at least one batch with a row.")
        item = _item(first, 0, roles, batch_rows)
        if isinstance(item, TableSource):
            return IterableTables(make, item.columns, batch_rows)
        return IterableSource(make, item.n_features, batch_rows)

    @property
    def n_rows(self) -> None:
        return None

    def __iter__(self) -> Iterator[Batch]:
        for k, item in enumerate(self.make()):
            source = _item(item, k, None, self.batch_rows)
            if source.n_features != self.n_features:
                raise InputError(
                    f"Every batch must have the columns of the first one, {self.n_features}; batch {k} has "
                    f"{source.n_features}."
                )
            yield from source


@dataclass(frozen=True)
class IterableTables(FromTable):
    """Items that are tables, all with the columns of the first one."""

    make: Make
    columns: Columns
    batch_rows: int | None = None

    @property
    def n_rows(self) -> None:
        return None

    def pieces(self) -> Iterator[Piece]:
        for k, item in enumerate(self.make()):
            if not is_table(item):
                raise InputError(
                    f"Every batch must be a table like the first one; batch {k} is a {type(item).__name__}."
                )
            yield from TableSource.like(item, self.columns, f"batch {k}", self.batch_rows).pieces()


def reader_of(X: Any) -> Make:
    """A function that starts a new pass over X, which is a function already or can be iterated more than once."""
    if callable(X):
        return lambda: X()
    if iter(X) is X:
        raise InputError(
            f"A {type(X).__name__} can be read only once, and learning reads the data several times. Give a list, an "
            "object whose __iter__ starts again, the function that makes the generator (without calling it), or "
            "spool_to='rows.parquet' to write the batches to that file first."
        )
    return lambda: X


def spool(items: Iterable[Any], roles: Roles | None, path: Path) -> Roles:
    """Write the batches, read once, to a Parquet file with a row group for each; returns the roles of its columns."""
    with locked(path):
        if path.exists():
            raise InputError(f"spool_to='{path}' exists already. Name a new file, or remove that one.")
        batches = _named_batches(items, roles)
        names, first = next(batches, ((), None))
        if first is None:
            raise InputError("The iterator of batches gave no rows; give at least one batch with a row.")
        found = _spooled_roles(first, names)
        with replacing(path) as out, pq.ParquetWriter(out, _spool_schema(found)) as writer:
            writer.write_table(_spool_table(first, names, found))
            for other_names, batch in batches:
                writer.write_table(_spool_table(batch, other_names, found))
    return found


def _named_batches(items: Iterable[Any], roles: Roles | None) -> Iterator[tuple[tuple[str, ...], Batch]]:
    """Batches with the names of their input columns; those of arrays are made up."""
    for k, item in enumerate(items):
        source = _item(item, k, roles, None)
        names = source.feature_names or tuple(f"x{d}" for d in range(source.n_features))
        yield from ((names, batch) for batch in source)


def _item(item: Any, k: int, roles: Roles | None, batch_rows: int | None) -> ArraySource | TableSource:
    name = f"batch {k}"
    if is_table(item):
        if roles is None:
            raise InputError(f"{name} is a table; say with target='column' which of its columns is the target.")
        return TableSource.of(item, roles, name, batch_rows)
    if isinstance(item, tuple) and 2 <= len(item) <= 4:
        X, y, noise_var, weight = (*item, None, None)[:4]
        return ArraySource.of(X, y, noise_var, weight, name=name, batch_rows=batch_rows)
    raise InputError(
        f"{name} is a {type(item).__name__}; expected a tuple (X, y), (X, y, noise_var) or (X, y, noise_var, weight), "
        "or a pandas, polars or pyarrow table."
    )


def _spooled_roles(batch: Batch, names: tuple[str, ...]) -> Roles:
    """Names of the spooled columns that no feature has."""

    noise = None if batch.noise_var is None else _free("noise_var", names)
    weight = None if batch.weight is None else _free("weight", names)
    return Roles(_free("y", names), names, noise, weight)


def _free(name: str, names: Sequence[str]) -> str:
    return name if name not in names else _free("_" + name, names)


def _spool_schema(roles: Roles) -> Any:
    return pa.schema([(name, pa.float64()) for name in (*(roles.features or ()), *roles.named.values())])


def _spool_table(batch: Batch, names: tuple[str, ...], roles: Roles) -> Any:
    columns = [*batch.X.T, *(part for part in (batch.y, batch.noise_var, batch.weight) if part is not None)]
    schema = _spool_schema(roles)
    if names != roles.features or len(columns) != len(schema):
        raise InputError(
            f"{batch.place.name} has the inputs {', '.join(names)} and {len(columns)} columns with target, noise and "
            f"weight; the first one has {', '.join(roles.features or ())} and {len(schema)}. Give all the same columns."
        )
    return pa.table([pa.array(column) for column in columns], schema=schema)


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

    @classmethod
    def beside(
        cls, frame: Any, y: Any, noise_var: Any = None, weight: Any = None, batch_rows: int | None = None
    ) -> "DaskFrameSource":
        """Inputs as a dask DataFrame, the others as Series of the same partitions."""
        names = tuple(map(str, frame.columns))
        given = {"y": y, "noise_var": noise_var, "sample_weight": weight}
        series = {name: values for name, values in given.items() if values is not None}
        for name, values in series.items():
            _require_series(name, values, frame)
        column = {name: _free(name, names) for name in series}
        together = frame.assign(**{column[name]: values for name, values in series.items()})
        roles = Roles(column["y"], names, column.get("noise_var"), column.get("sample_weight"))
        return cls.of(together, roles, batch_rows)

    @property
    def n_rows(self) -> None:
        return None

    def pieces(self) -> Iterator[Piece]:
        for k in range(self.frame.npartitions):
            part = _computed(self.frame.partitions[k], k)
            yield from TableSource.like(part, self.columns, f"partition {k}", self.batch_rows).pieces()


@dataclass(frozen=True)
class DaskArraySource(PlainLayout):
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
                None if values is None else _computed(values.blocks[k], k)
                for values in (self.y, self.noise_var, self.weight)
            )
            X = _computed(self.X.blocks[k], k)
            yield from ArraySource.of(X, y, noise_var, weight, name=f"partition {k}", batch_rows=self.batch_rows)


def _computed(part: Any, k: int) -> Any:
    try:
        return part.compute()
    except Exception as error:
        raise InputError(
            f"Partition {k} cannot be computed: {error!r}. Look at `collection.partitions[{k}].compute()`."
        ) from error


def _require_series(name: str, values: Any, frame: Any) -> None:
    """Partition by partition the rows of the frame, without moving any."""
    if library_of(values) != "dask" or not hasattr(values, "divisions") or getattr(values, "ndim", 0) != 1:
        raise InputError(
            f"{name} must be a dask Series like the columns of X; got {type(values).__name__}. Or give one DataFrame "
            "with all columns and target='column'."
        )
    if values.npartitions != frame.npartitions or values.divisions != frame.divisions:
        raise InputError(
            f"{name} must have the partitions of X: it has {values.npartitions}, X has {frame.npartitions}. Take both "
            "from one DataFrame, or give it with target='column'."
        )


def _aligned(values: Any, X: Any, name: str) -> Any:
    """Values with the same blocks of rows as X."""
    if values is None:
        return None
    if library_of(values) != "dask" or hasattr(values, "divisions"):
        raise InputError(
            f"{name} must be a dask array like X; got {type(values).__name__}. A Series goes with a DataFrame, or "
            "use `series.to_dask_array(lengths=True)`."
        )
    known = not (math.isnan(X.shape[0]) or math.isnan(values.shape[0]))
    fits = values.shape == X.shape[:1] if known else values.numblocks == X.numblocks[:1]
    if values.ndim != 1 or not fits:
        raise InputError(f"{name} must have one value for each row of X; got shape {values.shape} for {X.shape}.")
    return values.rechunk((X.chunks[0],)) if known else values
