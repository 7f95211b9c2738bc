"""Parquet and CSV files and folders of them, streamed: only the columns that are needed, a batch at a time."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from sparsegp.data.batches import Place, rows_per_batch
from sparsegp.data.columns import Columns, FromTable, Header, Piece, Roles
from sparsegp.data.values import NUMBER_TYPE, family
from sparsegp.errors import InputError

PARQUET_SUFFIXES = (".parquet", ".pq", ".parq")
CSV_SUFFIXES = (".csv", ".csv.gz", ".csv.bz2", ".tsv", ".tsv.gz")
SUFFIXES = (*PARQUET_SUFFIXES, *CSV_SUFFIXES)
READ_BUFFER_BYTES = 2**20
_COLUMN_NUMBER = re.compile(r"column #(\d+)")


def open_files(paths: Sequence[Path], roles: Roles, batch_rows: int | None = None) -> "ParquetSource | CsvSource":
    """The Parquet files, or the CSV files, of all paths: files, or folders of them."""
    for path in paths:
        require_exists(path)
    found = [file for path in paths for file in files_in(path)]
    as_csv = [file for file in found if has_suffix(file, CSV_SUFFIXES)]
    if not found or 0 < len(as_csv) < len(found):
        have = "both kinds" if found else "none"
        raise InputError(
            f"Expected Parquet files ({', '.join(PARQUET_SUFFIXES)}) or CSV files "
            f"({', '.join(CSV_SUFFIXES)}) in {', '.join(map(str, paths))}; found {have}."
        )
    if as_csv:
        return CsvSource.open(as_csv, roles, batch_rows)
    folder = paths[0] if len(paths) == 1 and paths[0].is_dir() else None
    return ParquetSource.open(found, roles, batch_rows, folder)


def has_suffix(path: Path, suffixes: tuple[str, ...]) -> bool:
    return path.name.lower().endswith(suffixes)


def label(path: str | Path) -> str:
    """How messages call a file."""
    return f"file '{path}'"


def require_exists(path: Path) -> None:
    if path.exists():
        return
    siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, siblings, n=3)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else " Check the path."
    raise InputError(f"There is no file or folder '{path}'.{hint}")


def files_in(path: Path) -> list[Path]:
    """The file itself, or the Parquet and CSV files of a folder and its folders, sorted by name.

    Files and folders whose name begins with a dot or an underscore are passed over, as is usual for tables in folders.
    """
    if path.is_file():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.is_file() and has_suffix(file, SUFFIXES))
    return [file for file in found if not any(part[0] in "._" for part in file.relative_to(path).parts)]


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

    def pieces(self) -> Iterator[Piece]:
        for part in self.parts:
            yield from self._rows_of(part)

    def _rows_of(self, part: ParquetPart) -> Iterator[Piece]:
        wanted = [name for name in self.columns.all if name not in part.constants]
        step = self.batch_rows or rows_per_batch(self.n_features)
        place = Place(label(part.path), 0, 0)
        try:
            # A buffer makes the reader stream pages instead of holding whole column chunks.
            with pq.ParquetFile(part.path, buffer_size=READ_BUFFER_BYTES) as file:
                for group in range(file.num_row_groups):
                    place = Place(place.name, place.start, group)
                    for table in file.iter_batches(step, row_groups=[group], columns=wanted, use_threads=False):
                        yield Piece(table, place, part.constants)
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
        raise InputError(f"{label(path)} cannot be read as Parquet: {error}. Write it again.") from error
    constants = {} if folder is None else _folder_columns(path.relative_to(folder).parent)
    header = Header.of(schema, label(path))
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


@dataclass(frozen=True)
class CsvSource(FromTable):
    """CSV files with a header line and the same columns. Empty fields, NA, NaN and null are missing values."""

    paths: tuple[Path, ...]
    columns: Columns
    batch_rows: int | None = None

    @classmethod
    def open(cls, paths: Sequence[Path], roles: Roles, batch_rows: int | None = None) -> "CsvSource":
        """Reads the beginning of every file: missing columns and text columns are found here."""
        first, *others = (_header(path) for path in paths)
        columns = first.choose(roles)
        for header in others:
            header.require_like(first, columns, roles)
        return cls(tuple(paths), columns, batch_rows)

    @property
    def n_rows(self) -> None:
        return None

    def pieces(self) -> Iterator[Piece]:
        for path in self.paths:
            yield from self._rows_of(path)

    def _rows_of(self, path: Path) -> Iterator[Piece]:
        types = _header(path).types
        # Types are guessed from the first block of text only; numbers may have decimals further down.
        wanted = {
            name: pa.float64() if family(types[name]) == NUMBER_TYPE else types[name] for name in self.columns.all
        }
        options = csv.ConvertOptions(include_columns=list(wanted), column_types=wanted)
        step = self.batch_rows or rows_per_batch(self.n_features)
        place = Place(label(path))
        try:
            with csv.open_csv(str(path), parse_options=_parsing(path), convert_options=options) as reader:
                for record in reader:
                    for start in range(0, record.num_rows, step):
                        yield Piece(record.slice(start, step), place.later(start))
                    place = place.later(record.num_rows)
        except (pa.ArrowException, OSError) as error:
            raise InputError(_unreadable(place.name, error, list(types))) from error


def _parsing(path: Path) -> Any:
    return csv.ParseOptions(delimiter="\t" if ".tsv" in path.name.lower() else ",")


def _header(path: Path) -> Header:
    try:
        with csv.open_csv(str(path), parse_options=_parsing(path)) as reader:
            return Header.of(reader.schema, label(path))
    except (pa.ArrowException, OSError) as error:
        raise InputError(_unreadable(label(path), error, [])) from error


def _unreadable(where: str, error: Exception, names: list[str]) -> str:
    """Arrow numbers the columns; people know their names. Its rows are lines: the header is row 1."""
    number = _COLUMN_NUMBER.search(str(error))
    column = f", column {names[int(number[1])]!r}" if number and int(number[1]) < len(names) else ""
    return f"{where}{column} cannot be read as CSV numbers (lines counted from 1): {error}. Correct the file."
