"""Rows as the user gives them, column by column: an array or a table, with other values in some columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparsegp.estimators import checks

Whole = NDArray[np.int64]
Values = NDArray[Any]

FEW_VALUES = 10


@dataclass(frozen=True)
class GivenRows:
    """Rows for a fitted model in the columns that its user knows, so that a category is one column."""

    X: Any
    names: tuple[str, ...]

    @classmethod
    def of(cls, X: Any, names: Sequence[str]) -> "GivenRows":
        """`names` are those of a model, for rows without names."""
        if isinstance(X, pa.Table):  # as it is: pandas need not be there
            plain = [column.cast(_plain(column.type)) for column in X.columns]
            return cls(pa.table(plain, names=X.column_names), tuple(X.column_names))
        X = checks.as_frame(X)
        own = getattr(X, "columns", None)
        if own is None:
            return cls(np.asarray(X, dtype=np.float64), tuple(names))
        return cls(X, tuple(map(str, own)))

    def __len__(self) -> int:
        return len(self.X)

    def column(self, number: int) -> Values:
        """The values of a column, as they are."""
        if isinstance(self.X, np.ndarray):
            return self.X[:, number]
        if isinstance(self.X, pa.Table):
            return np.asarray(self.X.column(number).to_numpy())
        column = self.X.iloc[:, number] if hasattr(self.X, "iloc") else self.X.to_series(number)
        return np.asarray(column)

    def rows(self, index: Whole, changed: Mapping[int, Values] | None = None) -> Any:
        """These rows, with other values in some columns: of the type that was given."""
        changes = changed or {}
        if isinstance(self.X, np.ndarray):
            out = self.X[index]
            for number, values in changes.items():
                out[:, number] = values
            return out
        if isinstance(self.X, pa.Table):
            table = self.X.take(index)
            for number, values in changes.items():
                field = self.X.schema.field(number)
                table = table.set_column(number, field, pa.array(values, type=field.type, from_pandas=True))
            return table
        if hasattr(self.X, "iloc"):
            frame = self.X.iloc[index].reset_index(drop=True)
            for number, values in changes.items():
                # by taking rows of the same column its type stays as it was
                frame.isetitem(number, values)
            return frame
        series = {number: self.X.to_series(number) for number in changes}
        cast = [
            type(own)(own.name, values, dtype=own.dtype)
            for own, values in zip(series.values(), changes.values(), strict=True)
        ]
        return self.X[index].with_columns(cast)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the levels of a category; any other as it is."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def known(values: Values) -> NDArray[np.bool_]:
    """Where a column has a value at all."""
    if values.dtype.kind == "f":
        return ~np.isnan(values)
    if values.dtype.kind in "mM":
        return ~np.isnat(values)
    if values.dtype.kind == "O":
        return np.array([value is not None and value == value for value in values], dtype=bool)
    return np.ones(len(values), dtype=bool)


def has_levels(values: Values) -> bool:
    """Whether a column is shown value by value: text, truth values, and numbers of which there are few."""
    if values.dtype.kind in "iufmM":
        return len(np.unique(values[known(values)])) <= FEW_VALUES
    return True
