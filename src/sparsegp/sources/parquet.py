"""Parquet files and folders, streamed row group by row group, only the columns that are needed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparsegp.errors import InputError
from sparsegp.sources import files
from sparsegp.sources.batch import Batch, Place, rows_per_batch
from sparsegp.sources.columns import Columns, FromTable, Header, Roles

READ_BUFFER_BYTES = 2**20


@dataclass(frozen=True)
class ParquetPart:
    """One file: its path, its number of rows, and the columns that its folder names give (year=2020)."""

    path: str
    n_rows: int
    constants: Mapping[str, Any]


@dataclass(frozen=True)
class ParquetSource(FromTable):
    """Parquet files with the same columns. At most one batch and the pages it came from are in memory."""

    parts: tuple[ParquetPart, ...]
    columns: Columns
    batch_rows: int | None = None

    @classmethod
    def open(
        cls, paths: Sequence[Path], roles: Roles, batch_rows: int | None = None, folder: Path | None = None
    ) -> "ParquetSource":
        """Reads the footers of all files: missing columns, wrong types and unreadable files are found here.

        Folders below `folder` that are named like year=2020 give a column.
        """
        found = [_facts(path, folder) for path in paths]
        first = found[0][1]
        columns = first.choose(roles)
        for _, header in found[1:]:
            header.require_like(first, columns, roles)
        return cls(tuple(part for part, _ in found), columns, batch_rows)

    @property
    def n_rows(self) -> int:
        return sum(part.n_rows for part in self.parts)

    def __iter__(self) -> Iterator[Batch]:
        for part in self.parts:
            yield from self._rows_of(part)

    def _rows_of(self, part: ParquetPart) -> Iterator[Batch]:
        wanted = [name for name in self.columns.all if name not in part.constants]
        step = self.batch_rows or rows_per_batch(self.n_features)
        place = Place(files.label(part.path), 0, 0)
        try:
            # A buffer makes the reader stream pages instead of holding whole column chunks.
            with pq.ParquetFile(part.path, buffer_size=READ_BUFFER_BYTES) as file:
                for group in range(file.num_row_groups):
                    place = Place(place.name, place.start, group)
                    for table in file.iter_batches(step, row_groups=[group], columns=wanted, use_threads=False):
                        yield self.columns.batch(table, place, part.constants)
                        place = place.later(table.num_rows)
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{place.name}, row group {place.group} cannot be read: {error}. "
                "The file may be damaged or have changed since it was opened: write it again."
            ) from error


def _facts(path: Path, folder: Path | None) -> tuple[ParquetPart, Header]:
    """What the footer of a file says, together with the columns that its folders give."""
    try:
        with pq.ParquetFile(path) as file:
            schema, n_rows = file.schema_arrow, file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{files.label(path)} cannot be read as Parquet: {error}. Write it again.") from error
    constants = {} if folder is None else _folder_columns(path.relative_to(folder).parent)
    header = Header.of(schema, files.label(path))
    types = {name: pa.float64() if isinstance(value, float) else pa.string() for name, value in constants.items()}
    return ParquetPart(str(path), n_rows, constants), replace(header, types={**header.types, **types})


def _folder_columns(folder: Path) -> dict[str, float | str]:
    """Values of folders named like year=2020, as numbers where they are numbers."""
    found: dict[str, float | str] = {}
    for name, is_column, value in (part.partition("=") for part in folder.parts):
        if is_column:
            try:
                found[name] = float(value)
            except ValueError:
                found[name] = value
    return found
