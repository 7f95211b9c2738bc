"""CSV as people have it: separator, decimal comma, encoding and header are found in the file, or given."""

import codecs
import csv as python_csv
import io
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from sparsegp import memory
from sparsegp.data.file_kinds import Kind, label, opened
from sparsegp.errors import InputError, SparseGPError

SEPARATORS = ",;\t|"
MISSING = ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "?")
MISSING_WORDS = ("N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null")
_LOOK_AT_LINES = 100
_BLOCK_BYTES = 2**22  # of which Arrow finds the types in the first 2**20 of UTF-8, a fourth at least
_LONGEST_ROW_BYTES = 2**25
_COLUMN_NUMBER = re.compile(r"column #(\d+)")
_DECIMAL_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}([.' ]\d{3})+),\d+")
_DECIMAL_POINT = re.compile(r"[-+]?\d+\.(\d{1,2}|\d{4,})")  # 1.234 may be a thousand
_GROUP_MARKS = ",.' \u00a0\u202f"
_BYTE_ORDER_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written. None: found in the file. Without a header its columns are column1, column2, ..."""

    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    header: bool = True

    def __post_init__(self) -> None:
        if self.sep is not None and len(self.sep) != 1:
            raise InputError(f"The separator (--sep) must be one character, such as , or ; or a tab; got {self.sep!r}.")
        if self.decimal not in (None, ".", ","):
            raise InputError(f"The decimal mark (--decimal) must be . or , ; got {self.decimal!r}.")
        if self.sep is not None and self.sep == self.decimal:
            raise InputError(f"The separator and the decimal mark are both {self.sep!r}; one of them is another.")


@dataclass(frozen=True)
class CsvFile:
    """One CSV file. `text`: columns that are read as text whatever their beginning looks like."""

    path: Path
    kind: Kind
    given: Dialect
    text: frozenset[str] = frozenset()

    n_rows = None
    first_row = 0

    def pieces(self) -> list["CsvFile"]:
        return [self]

    def with_text(self, names: Collection[str]) -> "CsvFile":
        return replace(self, text=self.text | {*names})

    @property
    def label(self) -> str:
        return label(self.path)

    @cached_property
    def dialect(self) -> Dialect:
        """As given, and the rest as found in the first lines."""
        encoding = self.given.encoding or _encoding_of(self.kind.head, self.label)
        try:
            text = self.kind.head.decode(encoding, errors="ignore")
        except LookupError:
            raise InputError(f"--encoding {encoding!r} is not known; utf-8, cp1252 and utf-16 are frequent.") from None
        lines = text.splitlines()[:_LOOK_AT_LINES]
        sep = self.given.sep or _separator_of(lines)
        decimal = self.given.decimal or _decimal_of(lines, sep)
        return Dialect(sep, decimal, encoding, self.given.header)

    @cached_property
    def _first_rows(self) -> list[list[str]]:
        text = self.kind.head.decode(self.dialect.encoding or "utf-8", errors="ignore").lstrip("\ufeff")
        reader = python_csv.reader(io.StringIO(text), delimiter=self.dialect.sep or ",")
        try:
            return [row for row, _ in zip(reader, range(_LOOK_AT_LINES), strict=False) if row]
        except python_csv.Error:
            return []

    @property
    def header_is_missing(self) -> bool:
        """Whether the line of names looks like a line of values: all of it numbers."""
        first = self._first_rows[0] if self._first_rows else []
        return self.given.header and bool(first) and all(_is_number(field, self.dialect.decimal) for field in first)

    @cached_property
    def _head(self) -> Any:
        """The first block of rows, with the types that Arrow finds in it."""
        try:
            with self._reader({}) as reader:
                return next(iter(reader), pa.RecordBatch.from_pylist([], reader.schema))
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise self._unreadable(error) from error

    @cached_property
    def schema(self) -> Any:
        """Names and types as the beginning of the file has them; grouped numbers (1,234) are numbers."""
        found = self._head.schema
        for k, name in enumerate(found.names):
            if name in self.text:
                found = found.set(k, pa.field(name, pa.string()))
            elif name in self._marks:
                found = found.set(k, pa.field(name, pa.float64()))
        return found

    @cached_property
    def _marks(self) -> dict[str, str]:
        """Of the columns of grouped numbers the mark between the groups."""
        texts = {f.name: self._head.column(k) for k, f in enumerate(self._head.schema) if pa.types.is_string(f.type)}
        marks = {name: self._mark_of(column) for name, column in texts.items() if name not in self.text}
        return {name: mark for name, mark in marks.items() if mark is not None}

    def _mark_of(self, column: Any) -> str | None:
        values = column.drop_null()
        for mark in _GROUP_MARKS:
            if mark == self.dialect.decimal or not len(values):
                continue
            point, between = re.escape(self.dialect.decimal or "."), re.escape(mark)
            grouped = rf"^\s*[-+]?\d{{1,3}}({between}\d{{3}})+({point}\d*)?\s*$"
            plain = rf"^\s*[-+]?\d{{0,3}}({point}\d*)?\s*$"
            is_grouped = pc.match_substring_regex(values, grouped)
            fits = pc.or_(is_grouped, pc.match_substring_regex(values, plain))
            if pc.any(is_grouped).as_py() and pc.all(fits).as_py():
                return mark
        return None

    def read(self, names: Sequence[str], step: int) -> Iterator[tuple[Any, int | None]]:
        types = {name: self._read_as(name) for name in names}
        try:
            with self._reader(types) as reader:
                for record in reader:
                    plain = self._ungrouped(record)
                    for start in range(0, record.num_rows, step):
                        yield plain.slice(start, step), None
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise self._unreadable(error) from error

    def _read_as(self, name: str) -> Any:
        """Types are guessed from the first block of text only; numbers may have decimals further down."""
        found = self.schema.field(name).type
        if name in self._marks:
            return pa.string()
        if pa.types.is_integer(found) or pa.types.is_null(found):
            return pa.float64()
        if pa.types.is_timestamp(found):
            # nanoseconds where there are any; microseconds reach farther into the past and the future
            return pa.timestamp("ns" if found.unit == "ns" else "us", tz=found.tz)
        return found

    def _ungrouped(self, record: Any) -> Any:
        for name, mark in self._marks.items():
            if name in record.schema.names:
                k = record.schema.get_field_index(name)
                plain = pc.replace_substring(pc.utf8_trim_whitespace(record.column(k)), mark, "")
                if self.dialect.decimal == ",":
                    plain = pc.replace_substring(plain, ",", ".")
                record = record.set_column(k, name, pc.cast(plain, pa.float64()))
        return record

    def _reader(self, types: dict[str, Any]) -> Any:
        dialect, names = self.dialect, None
        if not dialect.header:
            names = [f"column{k + 1}" for k in range(len(self._first_rows[0]) if self._first_rows else 0)]
        try:
            if codecs.lookup(dialect.encoding or "utf-8").name == "utf-8":
                return self._parsed(opened(self.path, self.kind.compression), names, types)
            blocks = self._decoded_blocks()
            first = self._parsed(next(blocks, pa.BufferReader(b"")), names, types)
            return pa.RecordBatchReader.from_batches(first.schema, self._continued(first, blocks, types))
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise self._unreadable(error) from error

    def _parsed(self, source: Any, names: list[str] | None, types: dict[str, Any]) -> Any:
        return csv.open_csv(
            source,
            read_options=csv.ReadOptions(column_names=names),
            # only text that has quotes can have line breaks within them, and looking for them costs time
            parse_options=csv.ParseOptions(delimiter=self.dialect.sep, newlines_in_values=self._has_quotes),
            convert_options=csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                decimal_point=self.dialect.decimal,
                null_values=[*MISSING, *MISSING_WORDS],
                strings_can_be_null=True,
            ),
        )

    @property
    def _has_quotes(self) -> bool:
        return b'"' in self.kind.head

    def _continued(self, first: Any, blocks: Iterator[Any], types: dict[str, Any]) -> Iterator[Any]:
        """The rows of the first block and of the others, which have neither a line of names nor types of their own."""
        yield from first
        names = list(self._head.schema.names) if types else first.schema.names
        types = types or {field.name: field.type for field in first.schema}
        for block in blocks:
            yield from self._parsed(block, names, types)

    def _decoded_blocks(self) -> Iterator[Any]:
        """Whole rows as UTF-8, some at a time.

        Arrow would decode in threads of its own, which call Python. They do so ahead of the reader, and a program that
        ends meanwhile hangs or aborts. What they get here is a copy that Python has no part in.
        """
        decoder, rest = codecs.getincrementaldecoder(self.dialect.encoding or "utf-8")(), b""
        with opened(self.path, self.kind.compression) as source:
            while part := source.read(_BLOCK_BYTES):
                rest += decoder.decode(part).encode()
                end = _end_of_rows(rest, self._has_quotes)
                if end:
                    yield _copied(rest[:end])
                    rest = rest[end:]
                elif len(rest) > _LONGEST_ROW_BYTES:
                    raise pa.ArrowInvalid(f"a row has more than {_LONGEST_ROW_BYTES:,} bytes")
            rest += decoder.decode(b"", final=True).encode()
            if rest:
                yield _copied(rest)

    def _unreadable(self, error: Exception) -> SparseGPError:
        if memory.is_shortage(error):
            return memory.shortage(error)
        """Arrow numbers the columns; people know their names. Its rows are lines: the header is row 1."""
        if isinstance(error, UnicodeError) or "UTF8" in str(error):
            encoding = self.dialect.encoding
            return InputError(f"{self.label} is not {encoding} text: {error}. Say what it is: --encoding cp1252, say.")
        number = _COLUMN_NUMBER.search(str(error))
        if number is None:
            return InputError(
                f"{self.label} cannot be read as CSV with the separator {self.dialect.sep!r} (lines counted from 1): "
                f"{error}. Correct the file, or give the separator (--sep)."
            )
        name = self.schema.names[int(number[1])]
        return InputError(
            f"{self.label}, column {name!r} cannot be read as {self.schema.field(name).type}, which the beginning of "
            f"the file looks like (lines counted from 1): {error}. Correct the file; or say that the column is a "
            f"category (--categorical), or leave it out (--ignore)."
        )

    def n_bytes(self, names: Sequence[str]) -> int:
        return self.path.stat().st_size

    def estimated_rows(self) -> int | None:
        """From the length of the first lines; None where the file is packed."""
        if self.kind.compression is not None:
            return None
        head = self.kind.head
        count = head.count(b"\n") + (not head.endswith(b"\n"))
        return max(0, round(count * self.path.stat().st_size / len(head)) - self.given.header)


def _end_of_rows(block: bytes, has_quotes: bool) -> int:
    """The place behind the last line break, of those that are not within quotes."""
    mark, end = b"\n" if b"\n" in block else b"\r", len(block)
    n_quotes = block.count(b'"') if has_quotes else 0
    while (place := block.rfind(mark, 0, end)) >= 0:
        n_quotes -= block.count(b'"', place, end) if has_quotes else 0
        if n_quotes % 2 == 0:
            return place + 1
        end = place
    return 0


def _copied(block: bytes) -> Any:
    sink = pa.BufferOutputStream()
    sink.write(block)
    return pa.BufferReader(sink.getvalue())


def _encoding_of(head: bytes, label: str) -> str:
    for mark, name in _BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return name
    try:
        head[: max(len(head) - 4, 0)].decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 8:
            warnings.warn(f"{label} is not UTF-8 text and was read as cp1252 (Windows, Western Europe).", stacklevel=2)
            return "cp1252"
    return "utf-8"


def _separator_of(lines: list[str]) -> str:
    """The one that cuts most lines into the same number of fields, more than one of them."""

    def fields(sep: str) -> tuple[float, int]:
        counts = Counter(len(row) for row in python_csv.reader(lines, delimiter=sep) if row)
        width, times = max(counts.items(), key=lambda item: (item[1], item[0]), default=(1, 0))
        return (times / max(sum(counts.values()), 1) if width > 1 else 0.0, width)

    try:
        return max(SEPARATORS, key=fields)
    except python_csv.Error:
        return ","


def _decimal_of(lines: list[str], sep: str) -> str:
    """A comma where fields look like 1,5 and none like 1.5; it cannot be one where it separates fields."""
    if sep == ",":
        return "."
    fields = [field.strip() for row in python_csv.reader(lines[1:], delimiter=sep) for field in row]
    has_comma, has_point = (any(mark.fullmatch(f) for f in fields) for mark in (_DECIMAL_COMMA, _DECIMAL_POINT))
    return "," if has_comma and not has_point else "."


def _is_number(field: str, decimal: str | None) -> bool:
    try:
        float(field.replace(decimal or ".", "."))
    except ValueError:
        return False
    return True
