"""Parquet, CSV, Feather/Arrow and JSON lines, folders of them and globs, streamed: only the columns that are needed, a
batch at a time."""

import glob
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparsegp.data.batches import Place, rows_per_batch
from sparsegp.data.columns import Columns, FromTable, Header, Piece, Roles
from sparsegp.data.file_kinds import label
from sparsegp.data.formats import TableFile, table_file
from sparsegp.data.text_files import CsvFile, Dialect
from sparsegp.errors import InputError, did_you_mean

PARQUET_SUFFIXES = (".parquet", ".pq", ".parq")
ARROW_SUFFIXES = (".feather", ".arrow", ".arrows", ".ipc")
_PACKED = ("", ".gz", ".bz2", ".zst", ".lz4")
CSV_SUFFIXES = tuple(f".{kind}{packed}" for kind in ("csv", "tsv") for packed in _PACKED)
JSON_SUFFIXES = tuple(f".{kind}{packed}" for kind in ("jsonl", "ndjson") for packed in _PACKED)
SUFFIXES = (*PARQUET_SUFFIXES, *CSV_SUFFIXES, *ARROW_SUFFIXES, *JSON_SUFFIXES)
_UNNAMED = re.compile(r"|Unnamed: \d+|__index_level_\d+__")


@dataclass(frozen=True)
class Files:
    """Paths of files, folders or globs, and how CSV among them is written where that is not to be found in it.

    Everything that takes a path takes this, too. `text`: columns that are text whatever they look like. `only`: the
    input columns; None: all that are nothing else.
    """

    paths: tuple[Path, ...]
    dialect: Dialect = field(default_factory=Dialect)
    text: frozenset[str] = frozenset()
    only: tuple[str, ...] | None = None

    @classmethod
    def of(cls, X: Any) -> "Files | None":
        """X, if it is a path or a list of paths; None otherwise."""
        if isinstance(X, cls):
            return X
        if isinstance(X, str | Path):
            return cls((Path(X),))
        if isinstance(X, list | tuple) and X and all(isinstance(path, str | Path) for path in X):
            return cls(tuple(map(Path, X)))
        return None

    def __str__(self) -> str:
        return ", ".join(map(str, self.paths))

    def open(self, roles: Roles, batch_rows: int | None = None) -> "FileSource":
        """The rows of all paths. The content of a file tells what it is."""
        roles = replace(roles, features=self.only if roles.features is None else roles.features)
        found = [file for path in self.paths for file in files_in(path)]
        if not found:
            raise InputError(
                f"Expected Parquet, CSV, Feather/Arrow or JSON lines files ({', '.join(SUFFIXES)}) in {self}; "
                "found none."
            )
        folder = self.paths[0] if len(self.paths) == 1 and self.paths[0].is_dir() else None
        tables = [table_file(path, self.dialect).with_text(self.text) for path in found]
        return FileSource.open(tables, roles, batch_rows, folder)


def files_in(path: Path) -> list[Path]:
    """The file itself, those that a glob names, or those of a folder and its folders, sorted by name.

    Files and folders whose name begins with a dot or an underscore are passed over, as is usual for tables in folders.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        return _globbed(path)
    found = sorted(file for file in path.rglob("*") if file.is_file() and file.name.lower().endswith(SUFFIXES))
    return [file for file in found if not any(part[0] in "._" for part in file.relative_to(path).parts)]


def _globbed(path: Path) -> list[Path]:
    if path.is_symlink() and not path.exists():
        raise InputError(f"'{path}' is a link that leads to no file. Give the file itself.")
    if path.exists():
        raise InputError(f"'{path}' is neither a file nor a folder. Give a file with a table.")
    named = sorted(glob.glob(str(path), recursive=True)) if glob.has_magic(str(path)) else []  # noqa: PTH207, a pattern may be absolute
    if named:
        return [file for name in named for file in files_in(Path(name))]
    siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = did_you_mean(path.name, siblings, _stem) or " Check the path."
    raise InputError(f"There is no file or folder '{path}'.{hint}")


def _stem(name: str) -> str:
    """Without .csv.gz: two names are not alike because they end alike."""
    return name.split(".")[0]


@dataclass(frozen=True)
class Part:
    """One file and the columns that its folder names give (year=2020)."""

    file: TableFile
    constants: Mapping[str, Any]

    @classmethod
    def of(cls, file: TableFile, folder: Path | None) -> "Part":
        return cls(file, {} if folder is None else _folder_columns(file.path.relative_to(folder).parent))

    def header(self, roles: Roles) -> Header:
        """The columns of the file, those of its folders included; an index without a name is not among the inputs."""
        self._require_names(roles)
        header = Header.of(self.file.schema, label(self.file.path))
        unnamed = {name for name in header.types if _UNNAMED.fullmatch(name)} - {*roles.named.values()}
        added = {name: pa.float64() if isinstance(v, float) else pa.string() for name, v in self.constants.items()}
        return replace(header, types={**header.types, **added}, hidden=header.hidden | unnamed)

    def _require_names(self, roles: Roles) -> None:
        """A first line of numbers is no header, unless it has the columns that are asked for."""
        names = {*roles.named.values(), *(roles.features or ())}
        if isinstance(self.file, CsvFile) and self.file.header_is_missing and not names <= {*self.file.schema.names}:
            first = ", ".join(self.file.schema.names[:5])
            raise InputError(
                f"The first line of {label(self.file.path)} has only numbers ({first}): is the line with the names "
                "of the columns missing? Add it to the file; or give --no-header (header=False), and the columns are "
                "called column1, column2, ..."
            )

    def read(self, names: Sequence[str], step: int) -> Iterator[tuple[Any, int | None]]:
        stored = [name for name in names if name not in self.constants]
        for table, group in self.file.read(stored, step):
            whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
            for name in names:
                if name in self.constants:
                    whole = whole.append_column(name, pa.repeat(self.constants[name], table.num_rows))
            yield whole, group


@dataclass(frozen=True)
class FileSource(FromTable):
    """Files with the same columns. At most one batch and the pages it came from are in memory.

    `names`: all columns that are there; `also`: those of them that are read beside what the columns of the rows are.
    """

    parts: tuple[Part, ...]
    columns: Columns
    batch_rows: int | None = None
    names: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @classmethod
    def open(
        cls, files: Sequence[TableFile], roles: Roles, batch_rows: int | None = None, folder: Path | None = None
    ) -> "FileSource":
        """Reads the beginning of all files: missing columns, wrong types and unreadable files are found here.

        Folders below `folder` that are named like year=2020 give a column.
        """
        _require_one_kind(files)
        parts = [Part.of(file, folder) for file in files]
        first, *others = (part.header(roles) for part in parts)
        columns = first.choose(roles)
        for header in others:
            header.require_like(first, columns, roles)
        _point_out_index(first, roles)
        return cls(tuple(parts), columns, batch_rows, tuple(first.types))

    @property
    def unused(self) -> tuple[str, ...]:
        """Columns that are there and not read; those without a name of their own are not counted."""
        return tuple(name for name in self.names if name not in self._read and not _UNNAMED.fullmatch(name))

    @property
    def _read(self) -> list[str]:
        read = self.columns.all
        return [*read, *(name for name in self.also if name not in read)]

    def keeping(self, names: Sequence[str]) -> "FileSource":
        """The same rows, with the columns of these names beside the others; where types are guessed, they are text."""
        text = {name for name in names if name not in self.columns.all}
        for part in self.parts:
            header = part.header(Roles(None))
            for name in names:
                header.require(name, f"column {name!r} to keep")
                if pa.types.is_temporal(header.types[name]):  # to be written as it was
                    text.add(name)
        parts = tuple(replace(part, file=part.file.with_text(text)) for part in self.parts)
        return replace(self, parts=parts, also=tuple(names))

    @property
    def n_rows(self) -> int | None:
        counts = [part.file.n_rows for part in self.parts]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def estimated_rows(self) -> int | None:
        """Without a pass over the data; None where nothing tells."""
        counts = [part.file.estimated_rows() for part in self.parts]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def n_bytes(self) -> int:
        """On disk, of the columns that are read."""
        return sum(part.file.n_bytes(self.columns.all) for part in self.parts)

    def cut(self) -> list["FileSource"]:
        """Sources of parts of the rows, in order: the row groups of Parquet files, other files whole."""
        parts = [replace(part, file=file) for part in self.parts for file in part.file.pieces()]
        return [replace(self, parts=(part,)) for part in parts]

    def pieces(self) -> Iterator[Piece]:
        step = self.batch_rows or rows_per_batch(self.n_features)
        for part in self.parts:
            place = Place(label(part.file.path), part.file.first_row)
            for table, group in part.read(self._read, step):
                if group != place.group:
                    place = Place(place.name, place.start, group)
                yield Piece(table, place)
                place = place.later(table.num_rows)


def _require_one_kind(files: Sequence[TableFile]) -> None:
    """A table that is there twice, as CSV and as Parquet, would count twice."""
    kinds = {type(file): f"'{file.path}'" for file in files}
    if len(kinds) > 1:
        raise InputError(
            f"The files are of different kinds, such as {' and '.join(kinds.values())}. "
            "Give files of one kind: a table that is there in two formats would count twice."
        )


def _point_out_index(header: Header, roles: Roles) -> None:
    unnamed = [name for name in header.hidden if _UNNAMED.fullmatch(name) and not name.startswith("__index")]
    if unnamed and roles.features is None:
        warnings.warn(
            f"Column {unnamed[0]!r} of {header.where} has no name of its own: it looks like a stored row number and "
            "is left out. To use it, name it among the features.",
            stacklevel=2,
        )


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
