"""Tables in memory: pandas, polars and pyarrow, all read as arrow columns."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sparsegp.data.arrays import ArraySource
from sparsegp.data.batches import Place, rows_per_batch
from sparsegp.data.columns import Columns, FromTable, Header, Piece, Roles
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
