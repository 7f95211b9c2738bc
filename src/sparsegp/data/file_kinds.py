"""What a file is, by its first bytes: its name may say anything."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparsegp.errors import InputError

PARQUET, IPC_FILE, IPC_STREAM, JSON_LINES, CSV = "Parquet", "Arrow file", "Arrow stream", "JSON lines", "CSV"
HEAD_BYTES = 2**18

_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
_TABLES = {b"PAR1": PARQUET, b"ARROW1": IPC_FILE, b"\xff\xff\xff\xff": IPC_STREAM}
_WRITE_AGAIN = "Write the table as Parquet or CSV"
_OTHERS = {
    b"PK\x03\x04": ("a zip archive", "Unpack it first"),
    b"\xd0\xcf\x11\xe0": ("an old Excel (.xls) or Office file", "Save the sheet as CSV"),
    b"\xfd7zXZ": ("an xz archive", "Unpack it first"),
    b"7z\xbc\xaf": ("a 7-Zip archive", "Unpack it first"),
    b"Rar!": ("a RAR archive", "Unpack it first"),
    b"\x89PNG": ("a PNG picture", "Give a table"),
    b"\xff\xd8\xff": ("a JPEG picture", "Give a table"),
    b"GIF8": ("a GIF picture", "Give a table"),
    b"%PDF": ("a PDF document", "Give a table"),
    b"SQLite format 3": ("an SQLite database", _WRITE_AGAIN),
    b"\x89HDF": ("an HDF5 file", _WRITE_AGAIN),
    b"CDF\x01": ("a NetCDF file", _WRITE_AGAIN),
    b"CDF\x02": ("a NetCDF file", _WRITE_AGAIN),
    b"\x93NUMPY": ("a numpy array", "Load it with numpy and give the arrays to an estimator, or write it as Parquet"),
    b"FEA1": ("a Feather file of version 1", "Write it again as Feather version 2 or Parquet"),
    b"ORC": ("an ORC file", _WRITE_AGAIN),
    b"Obj\x01": ("an Avro file", _WRITE_AGAIN),
    b"<stata_dta>": ("a Stata file", _WRITE_AGAIN),
    b"$FL2": ("an SPSS file", _WRITE_AGAIN),
    b"RDX": ("an R data file", "Write the table from R as Parquet or CSV"),
    b"X\n\x00\x00\x00": ("an R data file", "Write the table from R as Parquet or CSV"),
    b"\x80\x04\x95": ("a Python pickle", _WRITE_AGAIN),
    b"\x80\x05\x95": ("a Python pickle", _WRITE_AGAIN),
    b"\x7fELF": ("a program", "Give a table"),
    b"<?xml": ("an XML file", _WRITE_AGAIN),
    b"<!doctype html": ("a web page", "Download the table itself: a page is often a sign-in or an error in its place"),
    b"<html": ("a web page", "Download the table itself: a page is often a sign-in or an error in its place"),
}
_OFFICE = {
    b"xl/": ("an Excel workbook (.xlsx)", "Save the sheet as CSV"),
    b"opendocument.spreadsheet": ("an OpenDocument spreadsheet (.ods)", "Save the sheet as CSV"),
    b"word/": ("a Word document (.docx)", "Give a table"),
}
_TAR_MAGIC, _TAR_PLACE = b"ustar", 257
_MODEL_HEADER = b'{"__metadata__"'


@dataclass(frozen=True)
class Kind:
    """A format that can be read, the compression around it (None: none), and the first bytes within."""

    name: str
    compression: str | None
    head: bytes


def label(path: str | Path) -> str:
    """How messages call a file."""
    return f"file '{path}'"


def kind_of(path: Path) -> Kind:
    """The kind of a file, or an error that calls the file what it is."""
    try:
        compression, head = _unpacked_head(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{label(path)} cannot be read: {error}. It may be damaged: write it again.") from error
    if not head:
        raise InputError(f"{label(path)} cannot be read: Empty file. Give a table with a header and rows.")
    for magic, name in _TABLES.items():
        if head.startswith(magic):
            if compression is not None:
                raise InputError(f"{label(path)} is a {name} within {compression} compression. Unpack it first.")
            return Kind(name, None, head)
    _refuse_others(path, head)
    return Kind(JSON_LINES if _is_json(path, head) else CSV, compression, head)


def _unpacked_head(path: Path) -> tuple[str | None, bytes]:
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    compression = next((name for magic, name in _COMPRESSIONS.items() if head.startswith(magic)), None)
    if compression is None:
        return None, head
    with opened(path, compression) as stream:
        return compression, stream.read(HEAD_BYTES)


def opened(path: Path, compression: str | None) -> Any:
    """The bytes of a file, unpacked as they are read."""
    return pa.input_stream(str(path), compression=compression)


def _refuse_others(path: Path, head: bytes) -> None:
    start = head[:64].lstrip().lower() if head[:1] in (b"<", b" ", b"\n", b"\r") else head
    found = next((what for magic, what in _OTHERS.items() if start.startswith(magic)), None)
    if head.startswith(b"PK\x03\x04"):
        found = next((what for mark, what in _OFFICE.items() if mark in head), found)
    if head[_TAR_PLACE : _TAR_PLACE + len(_TAR_MAGIC)] == _TAR_MAGIC:
        found = "a tar archive", "Unpack it first"
    if head[8 : 8 + len(_MODEL_HEADER)] == _MODEL_HEADER:
        found = "a model file", "Give the table with the rows here; a model comes first: sparsegp predict MODEL DATA"
    if found is None and b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        found = "no text and no table format known here", "Expected Parquet, CSV, Feather/Arrow or JSON lines"
    if found is not None:
        raise InputError(f"{label(path)} is {found[0]}, not a table that can be read. {found[1]}.")


def _is_json(path: Path, head: bytes) -> bool:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"[") and start[1:].lstrip()[:1] in (b"{", b"["):
        raise InputError(
            f"{label(path)} is one JSON array. Write it as JSON lines: one object {{...}} a line, without brackets "
            "and commas around them (pandas: to_json(path, orient='records', lines=True))."
        )
    return start.startswith(b"{")
