"""Tables in memory: whatever narwhals knows, or has the Arrow stream interface, read as arrow columns."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sparsegp.data.arrays import ArraySource
from sparsegp.data.batches import Place, rows_per_batch
from sparsegp.data.columns import Columns, FromTable, Header, Piece, Roles
from sparsegp.errors import InputError

_ARROW_INTERFACES = ("__arrow_c_stream__", "__arrow_c_array__")
_PLAIN = (np.ndarray, list, tuple, dict, str, bytes, int, float)


def library_of(X: Any) -> str:
    """The package that defines the type of X."""
    return type(X).__module__.partition(".")[0]


def is_table(X: Any) -> bool:
    """Whether X has named columns: pandas, polars and pyarrow tables, DuckDB relations, lazy frames and the like.

    A dask DataFrame is none of them: it is read partition by partition.
    """
    if isinstance(X, _PLAIN) or library_of(X) == "dask" or is_series(X):
        return False
    return any(hasattr(X, name) for name in _ARROW_INTERFACES) or _as_frame(X) is not None


def is_series(X: Any) -> bool:
    """One column without a table around it has the Arrow interface, too."""
    import narwhals.stable.v2 as nw

    return nw.dependencies.is_into_series(X) or isinstance(X, pa.Array | pa.ChunkedArray)


def _as_frame(X: Any) -> Any:
    """X as a narwhals frame; None where narwhals does not know it."""
    import narwhals.stable.v2 as nw

    found = nw.from_native(X, pass_through=True)
    return found if isinstance(found, nw.DataFrame | nw.LazyFrame) else None


def to_arrow(X: Any, name: str = "the table") -> Any:
    """The table as a pyarrow Table; its columns are shared, not copied, wherever the libraries allow it."""
    if isinstance(X, pa.Table):
        return X
    try:
        frame = _as_frame(X)
        if frame is None:
            return pa.table(X)
        return frame.collect("pyarrow").to_arrow() if hasattr(frame, "collect") else frame.to_arrow()
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"{name} has a column of mixed types: {error}. Convert it to one type first.") from error
    except Exception as error:  # a lazy frame is computed here, and every engine has errors of its own
        raise InputError(
            f"{name}, a {library_of(X)} {type(X).__name__}, cannot be read: {error}.{_hint(error)}"
        ) from error


def _hint(error: Exception) -> str:
    return " Rename the columns: no two may have the same name." if "unique column names" in str(error) else ""


@dataclass(frozen=True)
class TableSource(FromTable):
    """A table in memory, its rows turned into numbers batch by batch. `apart`: targets that are no column of it."""

    table: Any
    columns: Columns
    name: str = "the table"
    batch_rows: int | None = None
    apart: ArraySource | None = None

    @classmethod
    def of(cls, X: Any, roles: Roles, name: str = "the table", batch_rows: int | None = None) -> "TableSource":
        table = to_arrow(X, name)
        return cls(table, Header.of(table.schema, name).choose(roles), name, batch_rows)

    @classmethod
    def with_targets(
        cls, X: Any, y: Any, noise_var: Any = None, weight: Any = None, batch_rows: int | None = None
    ) -> "TableSource":
        """All columns of a table, and targets, noise variances and weights that are given apart from it."""
        found = cls.of(X, Roles(None), batch_rows=batch_rows)
        inputs = np.empty((found.n_rows, 1))
        return replace(found, apart=ArraySource.of(inputs, y, noise_var, weight, name=found.name))

    @classmethod
    def like(cls, X: Any, columns: Columns, name: str = "the table", batch_rows: int | None = None) -> "TableSource":
        """More rows of columns that were chosen from another table; others, and their order, do not matter."""
        table = to_arrow(X, name)
        header = Header.of(table.schema, name)
        for column in columns.all:
            header.require(column, f"column {column!r} of the first table")
        return cls(table, columns, name, batch_rows)

    @property
    def n_rows(self) -> int:
        return int(self.table.num_rows)

    def pieces(self) -> Iterator[Piece]:
        step = self.batch_rows or rows_per_batch(self.n_features)
        for start in range(0, self.n_rows, step):
            place = Place(self.name, start)
            apart = None if self.apart is None else self.apart.part(start, start + step)
            yield Piece(self.table.slice(start, step), place, {}, apart)
