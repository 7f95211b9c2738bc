"""Tables in memory: pandas, polars and pyarrow, all read as arrow columns."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sparsegp.data.batches import Array, Batch, Place, rows_per_batch
from sparsegp.data.columns import Columns, FromTable, Header, Roles, as_numbers
from sparsegp.errors import InputError

_FROM = {
    ("pandas", "DataFrame"): lambda X: pa.Table.from_pandas(X, preserve_index=False),
    ("polars", "DataFrame"): lambda X: X.to_arrow(),
    ("pyarrow", "RecordBatch"): lambda X: pa.Table.from_batches([X]),
    ("pyarrow", "Table"): lambda X: X,
}
LIBRARIES = frozenset(library for library, _ in _FROM)


def library_of(X: Any) -> str:
    """The package that defines the type of X."""
    return type(X).__module__.partition(".")[0]


def is_table(X: Any) -> bool:
    return (library_of(X), type(X).__name__) in _FROM


def to_arrow(X: Any, name: str = "the table") -> Any:
    """The table as a pyarrow Table; its columns are shared, not copied, wherever the libraries allow it."""
    try:
        return _FROM[library_of(X), type(X).__name__](X)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"{name} has a column of mixed types: {error}. Convert it to numbers first.") from error


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

    def __iter__(self) -> Iterator[Batch]:
        step = self.batch_rows or rows_per_batch(self.n_features)
        for start in range(0, self.n_rows, step):
            yield self.columns.batch(self.table.slice(start, step), Place(self.name, start))


def inputs_of(X: Any) -> tuple[Array, tuple[str, ...]]:
    """All columns of a table as a matrix, and their names: for a target that is given apart from it."""
    table = to_arrow(X)
    header = Header.of(table.schema, "the table")
    header.require_numbers(header.types)
    matrix = np.empty((table.num_rows, table.num_columns))
    for d, column in enumerate(table.columns):
        matrix[:, d] = as_numbers(column)
    return matrix, tuple(table.schema.names)
