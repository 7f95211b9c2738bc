"""Paths on disk: which there are, what they are called in messages, and what to say when one is missing."""

import difflib
from pathlib import Path

from sparsegp.errors import InputError

PARQUET_SUFFIXES = (".parquet", ".pq", ".parq")
CSV_SUFFIXES = (".csv", ".csv.gz", ".csv.bz2", ".tsv", ".tsv.gz")
SUFFIXES = (*PARQUET_SUFFIXES, *CSV_SUFFIXES)


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
