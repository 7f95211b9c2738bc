"""Formats of files with named columns: each gives its schema at once and its rows in a stream."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc, json

from sparsegp import memory
from sparsegp.data.file_kinds import CSV, IPC_FILE, IPC_STREAM, JSON_LINES, PARQUET, Kind, kind_of, label, opened
from sparsegp.data.text_files import CsvFile, Dialect
from sparsegp.errors import InputError, SparseGPError

READ_BUFFER_BYTES = 2**20
_JSON_BLOCK_BYTES = 2**22


class TableFile(Protocol):
    """One file with named columns."""

    @property
    def path(self) -> Path: ...

    @property
    def schema(self) -> Any:
        """Names and arrow types of all columns; unreadable files are found here."""

    @property
    def n_rows(self) -> int | None:
        """None where only a pass can tell."""

    def with_text(self, names: Collection[str]) -> "TableFile":
        """The same file; where types are guessed, the columns of these names are text."""

    def read(self, names: Sequence[str], step: int) -> Iterator[tuple[Any, int | None]]:
        """Tables of at most `step` rows of these columns, in order, with the row group where the format has them."""

    @property
    def first_row(self) -> int:
        """The number of the first row within the file, of a piece of it."""

    def pieces(self) -> Sequence["TableFile"]:
        """Parts of the file that can be read apart from each other, in order."""

    def n_bytes(self, names: Sequence[str]) -> int:
        """Bytes on disk that a pass over these columns reads."""

    def estimated_rows(self) -> int | None:
        """Without a pass; None where nothing tells."""


def table_file(path: Path, dialect: Dialect | None = None) -> TableFile:
    """A file as a table; one that is something else is called by its name."""
    kind = kind_of(path)
    if kind.name == CSV:
        return CsvFile(path, kind, dialect or Dialect())
    makers: dict[str, Callable[[Path, Kind], TableFile]] = {
        PARQUET: ParquetFile,
        IPC_FILE: IpcFile,
        IPC_STREAM: IpcStream,
        JSON_LINES: JsonLinesFile,
    }
    return makers[kind.name](path, kind)


@dataclass(frozen=True)
class _Typed:
    """A file that knows the types of its columns."""

    path: Path
    kind: Kind

    first_row = 0

    def with_text(self, names: Collection[str]) -> Any:
        return self

    def pieces(self) -> Sequence[Any]:
        return [self]

    def n_bytes(self, names: Sequence[str]) -> int:
        return self.path.stat().st_size

    def estimated_rows(self) -> int | None:
        return None

    def _unreadable(self, error: Exception, group: int | None = None) -> SparseGPError:
        if memory.is_shortage(error):
            return memory.shortage(error)
        where = "" if group is None else f", row group {group}"
        return InputError(
            f"{label(self.path)}{where} cannot be read as {self.kind.name}: {error}. The file may be damaged, or have "
            "changed since it was opened: write it again. On a cluster it must be at the same path on every worker."
        )


@dataclass(frozen=True)
class ParquetFile(_Typed):
    """`group`: this row group only, whose first row is `first_row` of the file."""

    group: int | None = None
    first_row: int = 0

    @cached_property
    def _footer(self) -> tuple[Any, Any]:
        try:
            with pq.ParquetFile(self.path) as file:
                return file.schema_arrow, file.metadata
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error

    def __getstate__(self) -> dict[str, Any]:
        """Without the footer, which another process reads again."""
        return {name: value for name, value in vars(self).items() if name != "_footer"}

    @property
    def schema(self) -> Any:
        return self._footer[0]

    @property
    def n_rows(self) -> int:
        return sum(self._sizes[k] for k in self._groups)

    @property
    def _sizes(self) -> list[int]:
        footer = self._footer[1]
        return [footer.row_group(k).num_rows for k in range(footer.num_row_groups)]

    @property
    def _groups(self) -> Sequence[int]:
        return range(self._footer[1].num_row_groups) if self.group is None else [self.group]

    def pieces(self) -> list["ParquetFile"]:
        """The row groups."""
        starts = accumulate(self._sizes, initial=0)
        return [replace(self, group=k, first_row=start) for k, start in zip(self._groups, starts, strict=False)]

    def read(self, names: Sequence[str], step: int) -> Iterator[tuple[Any, int | None]]:
        group = self.group or 0
        try:
            # A buffer makes the reader stream pages instead of holding whole column chunks.
            with pq.ParquetFile(self.path, buffer_size=READ_BUFFER_BYTES) as file:
                for group in self._groups:
                    for batch in file.iter_batches(step, row_groups=[group], columns=names, use_threads=False):
                        yield batch, group
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error, group) from error

    def n_bytes(self, names: Sequence[str]) -> int:
        """Of these columns as they are on disk, by the footer."""
        groups = (self._footer[1].row_group(k) for k in self._groups)
        columns = (group.column(j) for group in groups for j in range(group.num_columns))
        return sum(column.total_compressed_size for column in columns if column.path_in_schema in names)


@dataclass(frozen=True)
class IpcFile(_Typed):
    """The Arrow file format, which is Feather of version 2."""

    @cached_property
    def schema(self) -> Any:
        try:
            with pa.memory_map(str(self.path)) as source:
                return ipc.open_file(source).schema
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error

    @cached_property
    def n_rows(self) -> int:
        return sum(batch.num_rows for batch in self._batches(self.schema.names[:1]))

    def read(self, names: Sequence[str], step: int) -> Iterator[tuple[Any, int | None]]:
        for batch in self._batches(names):
            yield from _cut(batch, step)

    def _batches(self, names: Sequence[str]) -> Iterator[Any]:
        wanted = ipc.IpcReadOptions(included_fields=[self.schema.get_field_index(name) for name in names])
        try:
            with pa.memory_map(str(self.path)) as source:
                reader = ipc.open_file(source, options=wanted)
                yield from (reader.get_batch(k) for k in range(reader.num_record_batches))
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error


@dataclass(frozen=True)
class IpcStream(_Typed):
    n_rows = None

    @cached_property
    def schema(self) -> Any:
        try:
            with opened(self.path, None) as source:
                return ipc.open_stream(source).schema
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error

    def read(self, names: Sequence[str], step: int) -> Iterator[tuple[Any, int | None]]:
        wanted = ipc.IpcReadOptions(included_fields=[self.schema.get_field_index(name) for name in names])
        try:
            with opened(self.path, None) as source:
                for batch in ipc.open_stream(source, options=wanted):
                    yield from _cut(batch, step)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error


@dataclass(frozen=True)
class JsonLinesFile(_Typed):
    """One object a line; a key that a line does not have is a missing value there. `text` as in a CSV file."""

    text: frozenset[str] = frozenset()

    n_rows = None

    def with_text(self, names: Collection[str]) -> "JsonLinesFile":
        return replace(self, text=self.text | {*names})

    @cached_property
    def schema(self) -> Any:
        for block in self._blocks():
            found = self._parsed(block, None).schema
            for name in self.text & {*found.names}:
                found = found.set(found.get_field_index(name), pa.field(name, pa.string()))
            return found
        raise InputError(f"{label(self.path)} cannot be read: Empty file. Give a table with rows.")

    def read(self, names: Sequence[str], step: int) -> Iterator[tuple[Any, int | None]]:
        found = pa.schema([(name, _widened(self.schema.field(name).type)) for name in names])
        for block in self._blocks():
            # a column that no line of the block has is missing in all of them
            yield from _cut(self._parsed(block, found).select(names), step)

    def _blocks(self) -> Iterator[bytes]:
        """Whole lines, some megabytes of them at a time."""
        rest = b""
        try:
            with opened(self.path, self.kind.compression) as stream:
                while chunk := stream.read(_JSON_BLOCK_BYTES):
                    cut = chunk.rfind(b"\n") + 1
                    if cut:
                        yield rest + chunk[:cut]
                        rest = chunk[cut:]
                    else:
                        rest += chunk
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error
        if rest.strip():
            yield rest

    def _parsed(self, block: bytes, schema: Any) -> Any:
        parsing = json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
        )
        try:
            return json.read_json(pa.BufferReader(block), json.ReadOptions(block_size=len(block) + 1), parsing)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error


def _widened(found: Any) -> Any:
    """Types are guessed from the first lines only; numbers may have decimals further down."""
    return pa.float64() if pa.types.is_integer(found) or pa.types.is_null(found) else found


def _cut(table: Any, step: int) -> Iterator[tuple[Any, None]]:
    for start in range(0, table.num_rows, step):
        yield table.slice(start, step), None
