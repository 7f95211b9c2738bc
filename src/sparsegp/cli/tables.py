"""Columns of Parquet and CSV files as arrays, a chunk of rows at a time, with errors that name column and row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsegp.errors import InputError

Array = NDArray[np.float64]
PARQUET = (".parquet", ".pq")
CSV = (".csv", ".csv.gz", ".tsv")
CHUNK_ROWS = 65_536


@dataclass(frozen=True)
class Columns:
    """Which columns are what. `weight` and `noise_var` may be absent, `target` where only inputs are read."""

    features: tuple[str, ...]
    target: str | None = None
    weight: str | None = None
    noise_var: str | None = None

    @property
    def others(self) -> tuple[str | None, ...]:
        return self.target, self.weight, self.noise_var

    @property
    def names(self) -> list[str]:
        return [*self.features, *(name for name in self.others if name is not None)]


@dataclass(frozen=True)
class Chunk:
    """Some rows: inputs, and the other columns where they were asked for."""

    X: Array
    y: Array | None
    weight: Array | None
    noise_var: Array | None

    @property
    def parts(self) -> tuple[Array | None, ...]:
        return self.X, self.y, self.weight, self.noise_var


def column_names(path: Path) -> list[str]:
    """Names of the columns of a file."""
    import pyarrow.parquet as pq

    first = _files(path)[0]
    if first.name.endswith(CSV):
        with _arrow_errors(first), _open_csv(first, None) as reader:
            return list(reader.schema.names)
    with _arrow_errors(first):
        return list(pq.ParquetFile(first).schema_arrow.names)


def select(path: Path, features: str | Sequence[str] | None, others: Sequence[str | None]) -> tuple[str, ...]:
    """The features of a file: those named, or all columns that are nothing else."""
    names = column_names(path)
    if features is None:
        chosen = [name for name in names if name not in others]
    else:
        chosen = [part.strip() for part in features.split(",")] if isinstance(features, str) else list(features)
    for name in [*chosen, *(name for name in others if name is not None)]:
        if name not in names:
            close = get_close_matches(name, names, n=3)
            hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else f"It has {', '.join(names)}."
            raise InputError(f"{path} has no column {name!r}. {hint}")
    if not chosen:
        raise InputError(f"{path} has no column to predict from besides {', '.join(map(repr, filter(None, others)))}.")
    return tuple(chosen)


def read(path: Path, columns: Columns) -> Chunk:
    """All rows at once."""
    chunks = list(chunks_of(path, columns, CHUNK_ROWS))
    if not chunks:
        raise InputError(f"{path} has no rows.")
    parts = zip(*(chunk.parts for chunk in chunks), strict=True)
    return Chunk(*(None if column[0] is None else np.concatenate(column) for column in parts))  # type: ignore[arg-type]


def chunks_of(path: Path, columns: Columns, chunk_rows: int) -> Iterator[Chunk]:
    """The rows in their order, at most `chunk_rows` of them at a time."""
    for file in _files(path):
        first = 0
        with _arrow_errors(file):
            for batch in _batches(file, columns.names, chunk_rows):
                if batch.num_rows:
                    yield _chunk(file, batch, columns, first)
                first += batch.num_rows


def _chunk(file: Path, batch: Any, columns: Columns, first: int) -> Chunk:
    X = np.column_stack([_numbers(file, batch, name, first) for name in columns.features])
    others = (None if name is None else _numbers(file, batch, name, first) for name in columns.others)
    return Chunk(X, *others)


def _numbers(file: Path, batch: Any, name: str, first: int) -> Array:
    import pyarrow as pa

    column = batch.column(name)
    kind = column.type
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    if not any(check(kind) for check in checks):
        raise InputError(
            f"Column {name!r} of {file} has type {kind}; sparsegp needs numbers. Encode it as numbers, or name the "
            "columns to use with --features."
        )
    values: Array = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise InputError(
            f"Column {name!r} of {file} is empty or not finite in row {first + bad[0]} (counted from 0; {bad.size} "
            "such rows in this part of the file). Drop or repair those rows."
        )
    return values


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in PARQUET)
        if not files:
            raise InputError(f"The folder {path} has no Parquet files.")
        return files
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    if not path.name.endswith((*PARQUET, *CSV)):
        raise InputError(f"{path} must end in {', '.join((*PARQUET, *CSV))}, which says how to read it.")
    return [path]


def _batches(file: Path, names: list[str], chunk_rows: int) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not file.name.endswith(CSV):
        yield from pq.ParquetFile(file).iter_batches(batch_size=chunk_rows, columns=names)
        return
    with _open_csv(file, names) as reader:
        for batch in reader:
            yield from pa.Table.from_batches([batch]).to_batches(max_chunksize=chunk_rows)


def _open_csv(file: Path, names: list[str] | None) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    convert = csv.ConvertOptions(include_columns=names, column_types=dict.fromkeys(names or (), pa.float64()))
    parse = csv.ParseOptions(delimiter="\t" if file.suffix == ".tsv" else ",")
    return csv.open_csv(file, parse_options=parse, convert_options=convert)


class _arrow_errors:
    """What Arrow says of a file it cannot read, as an error that names the file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        import pyarrow as pa

        if isinstance(error, pa.ArrowException | KeyError):
            raise InputError(f"{self.file} cannot be read: {error}. Check the file and the columns.") from error
