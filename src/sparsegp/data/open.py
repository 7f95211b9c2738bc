"""One door for every kind of data: `open_source`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sparsegp import memory
from sparsegp.data.arrays import ArraySource
from sparsegp.data.batches import Source
from sparsegp.data.columns import Roles
from sparsegp.data.files import Files
from sparsegp.data.iterables import DaskArraySource, DaskFrameSource, IterableSource, reader_of, spool
from sparsegp.data.tables import TableSource, is_series, is_table, library_of
from sparsegp.errors import InputError


@dataclass(frozen=True)
class OpeningOptions:
    """`most_entries`: numbers in X beyond which rows stay where they are, 128 MB as float64, two million rows of eight
    columns; fewer where there is no room for `copies` of them. `scan_fraction`: of a time budget, after which the scan
    ends and the rows read so far must do; `survey_fraction`: of that, after which columns have been looked at."""

    most_entries: int = 2**24
    scan_fraction: float = 0.3
    survey_fraction: float = 0.4
    copies: int = 8

    def within_memory(self) -> "OpeningOptions":
        room = int(memory.available_bytes() / (8 * self.copies))
        return replace(self, most_entries=max(1, min(self.most_entries, room)))


def open_source(
    X: Any,
    y: Any = None,
    *,
    target: str | None = None,
    features: Sequence[str] | None = None,
    noise_var: Any = None,
    sample_weight: Any = None,
    batch_rows: int | None = None,
    spool_to: str | Path | None = None,
) -> Source:
    """A re-iterable source of batches from arrays, tables, files, dask collections or iterables of batches.

    With names (tables, files, dask DataFrames): `target`, and `noise_var` and `sample_weight` where there are any, are
    names of columns; `features` are the input columns (None: all others). Without names (arrays, dask Arrays): `y`,
    `noise_var` and `sample_weight` are arrays. Iterables give tuples (X, y[, noise_var[, weight]]) or tables.
    A source is given back as it is. `spool_to` is a new Parquet file to which an iterator that can be read only once is
    written first.
    """
    if is_source(X):
        return X  # type: ignore[no-any-return]
    roles = _roles(target, features, noise_var, sample_weight)
    if roles is not None and y is not None:
        raise InputError("Give either y or target=, not both.")
    if (files := Files.of(X)) is not None:
        return files.open(_needed(roles, "a file"), batch_rows)
    library = library_of(X)
    if is_table(X) and y is None:
        return TableSource.of(X, _needed(roles, "a table"), batch_rows=batch_rows)
    if library == "dask" and y is None:
        return DaskFrameSource.of(X, _needed(roles, "a dask DataFrame"), batch_rows)
    if y is None:
        return _open_iterable(X, roles, batch_rows, spool_to)
    if library == "dask" and hasattr(X, "columns"):
        return DaskFrameSource.beside(X, y, noise_var, sample_weight, batch_rows)
    if library == "dask":
        return DaskArraySource.of(X, y, noise_var, sample_weight, batch_rows)
    if is_table(X):
        return TableSource.with_targets(X, y, noise_var, sample_weight, batch_rows)
    return ArraySource.of(X, y, noise_var, sample_weight, batch_rows=batch_rows)


def open_inputs(X: Any, features: Sequence[str] | None = None) -> Source:
    """Rows to predict, from files: the columns `features` (None: all), and zeros in place of targets."""
    files = Files.of(X)
    assert files is not None, X
    return files.open(Roles(None, None if features is None else tuple(features)))


def is_source(X: Any) -> bool:
    """Rows that somebody has opened already."""
    return hasattr(X, "layout") and hasattr(X, "feature_names") and hasattr(X, "encoding")


def is_read_in_batches(X: Any, y: Any = None) -> bool:
    """Files, dask collections and iterables of batches: data that are not one array or table in memory."""
    if Files.of(X) is not None or library_of(X) == "dask" or is_source(X):
        return True
    if y is not None or isinstance(X, np.ndarray) or is_table(X):
        return False
    return callable(X) or isinstance(X, Iterable)


def _roles(target: str | None, features: Sequence[str] | None, noise_var: Any, sample_weight: Any) -> Roles | None:
    if target is None:
        if features is not None:
            raise InputError("features= names columns and goes with target='column'; got features without target.")
        return None
    for name, value in (("noise_var", noise_var), ("sample_weight", sample_weight)):
        if value is not None and not isinstance(value, str):
            raise InputError(f"With target='column', {name} is the name of a column too; got {type(value).__name__}.")
    return Roles(target, None if features is None else tuple(features), noise_var, sample_weight)


def _needed(roles: Roles | None, what: str) -> Roles:
    if roles is None:
        raise InputError(f"For {what}, say with target='column' which of its columns is the target.")
    return roles


def _open_iterable(X: Any, roles: Roles | None, batch_rows: int | None, spool_to: str | Path | None) -> Source:
    if isinstance(X, np.ndarray):
        raise InputError("X is an array and y is missing: give y.")
    if is_series(X) or not (callable(X) or isinstance(X, Iterable)):
        raise InputError(
            "Data must be arrays, a table (pandas, polars, pyarrow, anything with an Arrow stream), a path to Parquet, "
            "CSV, Feather or JSON lines, a dask collection or an iterable of batches; "
            f"got {_called(X)}."
        )
    if spool_to is not None:
        path = Path(spool_to)
        return Files((path,)).open(spool(X() if callable(X) else X, roles, path), batch_rows)
    return IterableSource.of(reader_of(X), roles, batch_rows)


def _called(X: Any) -> str:
    """A pandas Series, a float."""
    return type(X).__name__ if library_of(X) == "builtins" else f"a {library_of(X)} {type(X).__name__}"
