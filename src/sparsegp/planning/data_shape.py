"""How many rows and columns there are, and how many bytes a pass over them reads, without reading them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsegp.errors import InputError
from sparsegp.estimators.incoming.validation import positive_count

CSV_SAMPLE_BYTES = 2**20


@dataclass(frozen=True)
class DataShape:
    """`file_bytes` are read from files in one pass; `is_held` says that the caller has the rows in memory already."""

    n_rows: int
    n_features: int
    file_bytes: float = 0.0
    is_held: bool = False
    is_estimated: bool = False

    @property
    def array_bytes(self) -> float:
        """Of inputs and targets as float64."""
        return 8.0 * self.n_rows * (self.n_features + 1)


def shape_of(
    X: Any,
    *,
    target: str | None = None,
    features: Sequence[str] | None = None,
    n_rows: int | None = None,
    n_features: int | None = None,
) -> DataShape:
    """Of arrays, tables, files, or of the numbers alone, which stand for a file of as many float64.

    A given `n_rows` goes before what the data say.
    """
    if n_rows is not None:
        positive_count("n_rows", n_rows)
    if X is None:
        if n_rows is None or n_features is None:
            raise InputError("plan() needs data, or both n_rows= and n_features=.")
        numbers = n_rows * (positive_count("n_features", n_features) + 1)
        return DataShape(n_rows, n_features, file_bytes=8.0 * numbers)
    if n_features is not None:
        raise InputError("The data say how many columns there are: leave n_features= out.")
    found = _of_files(X, target, features, n_rows) if _is_path(X) else _in_memory(X, target, features, n_rows)
    if found.n_rows < 1:
        raise InputError("The data have no rows: there is nothing to plan.")
    return found


def _is_path(X: Any) -> bool:
    return isinstance(X, str | Path) or (
        isinstance(X, list | tuple) and bool(X) and all(isinstance(path, str | Path) for path in X)
    )


def _in_memory(X: Any, target: str | None, features: Sequence[str] | None, n_rows: int | None) -> DataShape:
    names = getattr(X, "column_names", None) or getattr(X, "columns", None)
    shape = getattr(X, "shape", None) or np.shape(X)
    if len(shape) != 2:
        raise InputError(f"plan() needs a matrix or a table [rows, columns]; got {type(X).__name__} of shape {shape}.")
    if target is not None and (names is None or target not in list(names)):
        raise InputError(f"target={target!r} is not a column of the {type(X).__name__}. Name one, or leave it out.")
    n_columns = len(features) if features is not None else int(shape[1]) - (target is not None)
    if n_columns < 1:
        raise InputError(f"The table has no column besides the target {target!r}.")
    known = shape[0] if n_rows is None else n_rows
    if not isinstance(known, int | np.integer):
        raise InputError(f"The number of rows of this {type(X).__name__} is not known before a pass: give n_rows=.")
    return DataShape(int(known), n_columns, is_held=True)


def _of_files(X: Any, target: str | None, features: Sequence[str] | None, n_rows: int | None) -> DataShape:
    from sparsegp.sources import open_source
    from sparsegp.sources.csv import CsvSource
    from sparsegp.sources.parquet import ParquetSource

    source = open_source(X, target=target, features=features)
    if isinstance(source, ParquetSource):
        size = sum(_column_bytes(part.path, source.columns.all) for part in source.parts)
        return DataShape(source.n_rows if n_rows is None else n_rows, source.n_features, float(size))
    assert isinstance(source, CsvSource)
    size = sum(path.stat().st_size for path in source.paths)
    rows = _csv_rows(source.paths) if n_rows is None else n_rows
    return DataShape(rows, source.n_features, float(size), is_estimated=n_rows is None)


def _column_bytes(path: str, names: Sequence[str]) -> int:
    """Of these columns as they are on disk, by the footer of the file."""
    import pyarrow.parquet as pq

    footer = pq.read_metadata(path)
    groups = (footer.row_group(k) for k in range(footer.num_row_groups))
    columns = (group.column(j) for group in groups for j in range(group.num_columns))
    return sum(column.total_compressed_size for column in columns if column.path_in_schema in names)


def _csv_rows(paths: Sequence[Path]) -> int:
    """From the length of the first lines of each file."""
    return round(sum(_lines(path) for path in paths))


def _lines(path: Path) -> float:
    if path.suffix.lower() not in (".csv", ".tsv"):
        raise InputError(f"The number of rows of '{path}' is not known before it is unpacked: give n_rows=.")
    with path.open("rb") as file:
        start = file.read(CSV_SAMPLE_BYTES)
    count = start.count(b"\n") + (not start.endswith(b"\n"))
    return max(0.0, count * path.stat().st_size / max(len(start), 1) - 1.0)
