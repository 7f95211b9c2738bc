"""CSV files and folders, streamed in blocks of text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

from sparsegp.errors import InputError
from sparsegp.sources import files
from sparsegp.sources.batch import Batch, Place, rows_per_batch
from sparsegp.sources.columns import Columns, FromTable, Header, Roles

_COLUMN_NUMBER = re.compile(r"column #(\d+)")


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

    def __iter__(self) -> Iterator[Batch]:
        for path in self.paths:
            yield from self._rows_of(path)

    def _rows_of(self, path: Path) -> Iterator[Batch]:
        types = _header(path).types
        # Types are guessed from the first block of text only; numbers may have decimals further down.
        wanted = {name: pa.bool_() if pa.types.is_boolean(types[name]) else pa.float64() for name in self.columns.all}
        options = csv.ConvertOptions(include_columns=list(wanted), column_types=wanted)
        step = self.batch_rows or rows_per_batch(self.n_features)
        place = Place(files.label(path))
        try:
            with csv.open_csv(str(path), parse_options=_parsing(path), convert_options=options) as reader:
                for record in reader:
                    for start in range(0, record.num_rows, step):
                        yield self.columns.batch(record.slice(start, step), place.later(start))
                    place = place.later(record.num_rows)
        except (pa.ArrowException, OSError) as error:
            raise InputError(_unreadable(place.name, error, list(types))) from error


def _parsing(path: Path) -> Any:
    return csv.ParseOptions(delimiter="\t" if ".tsv" in path.name.lower() else ",")


def _header(path: Path) -> Header:
    try:
        with csv.open_csv(str(path), parse_options=_parsing(path)) as reader:
            return Header.of(reader.schema, files.label(path))
    except (pa.ArrowException, OSError) as error:
        raise InputError(_unreadable(files.label(path), error, [])) from error


def _unreadable(where: str, error: Exception, names: list[str]) -> str:
    """Arrow numbers the columns; people know their names. Its rows are lines: the header is row 1."""
    number = _COLUMN_NUMBER.search(str(error))
    column = f", column {names[int(number[1])]!r}" if number and int(number[1]) < len(names) else ""
    return f"{where}{column} cannot be read as CSV numbers (lines counted from 1): {error}. Correct the file."
