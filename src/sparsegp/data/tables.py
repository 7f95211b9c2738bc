"""Tables in memory: whatever narwhals knows, or has the Arrow stream interface, read as arrow columns."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sparsegp.data.batches import Array, Batch, Place, rows_per_batch
from sparsegp.data.columns import Columns, FromTable, Header, Roles, as_numbers
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
        raise InputError(f"{name}, a {library_of(X)} {type(X).__name__}, cannot be read: {error}.") from error


@dataclass(frozen=True)
class TableSource(FromTable):
    """A table in memory, its rows turned into numbers batch by batch."""

    table: Any
    columns: Columns
    name: str = "the table"
    batch_rows: int | None = None

    @classmethod
    def of(cls, X: Any, roles: Roles, name: str = "the table", batch_rows: int | None = None) -> "TableSource":
        table = to_arrow(X, name)
        return cls(table, Header.of(table.schema, name).choose(roles), name, batch_rows)

    @property
    def n_rows(self) -> int:
        return int(self.table.num_rows)

    def tables(self) -> Iterator[tuple[Any, Place]]:
        """Rows of the table, with the place of each cut."""
        step = self.batch_rows or rows_per_batch(self.n_features)
        for start in range(0, self.n_rows, step):
            yield self.table.slice(start, step), Place(self.name, start)

    def __iter__(self) -> Iterator[Batch]:
        for table, place in self.tables():
            yield self.columns.batch(table, place)


def inputs_of(X: Any) -> tuple[Array, tuple[str, ...]]:
    """All columns of a table as a matrix, and their names: for a target that is given apart from it."""
    table = to_arrow(X)
    header = Header.of(table.schema, "the table")
    header.require_numbers(header.types)
    matrix = np.empty((table.num_rows, table.num_columns))
    for d, column in enumerate(table.columns):
        matrix[:, d] = as_numbers(column)
    return matrix, tuple(table.schema.names)
