"""The columns of a table as the numbers that a model sees: a code for each column, found once, in the first fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from sparsegp.data.codes import Array, Category, Code
from sparsegp.data.layout import FeatureLayout
from sparsegp.errors import InputError


@dataclass(frozen=True)
class Encoding:
    """The codes of a user's columns, in their order. Those that are left out have no numbers."""

    codes: tuple[Code, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All columns of the user."""
        return tuple(code.name for code in self.codes)

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that are looked at."""
        return tuple(code.name for code in self.codes if code.groups)

    @cached_property
    def layout(self) -> FeatureLayout:
        """Which numbers belong together, and which are standardised."""
        groups = [group for code in self.codes for group in code.groups]
        sizes = [len(group.standardized) for group in groups]
        return FeatureLayout(
            tuple(np.repeat(np.arange(len(groups)), sizes).tolist()),
            tuple(flag for group in groups for flag in group.standardized),
        )

    @property
    def n_features(self) -> int:
        """How many numbers the model sees."""
        return self.layout.n_features

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """How many numbers each column becomes."""
        return tuple(sum(len(group.standardized) for group in code.groups) for code in self.codes)

    @cached_property
    def origins(self) -> tuple[int, ...]:
        """Of each number, the column of the user that it belongs to."""
        return tuple(np.repeat(np.arange(len(self.codes)), self.widths).tolist())

    @property
    def labels(self) -> tuple[str, ...]:
        """What each number is, for people."""
        return tuple(label for code in self.codes for label in code.labels)

    @cached_property
    def _reserves(self) -> dict[str, int]:
        """The number of each column that says that a value is none that the fit has met."""
        found, place = {}, 0
        for code in self.codes:
            for group in code.groups:
                place += len(group.standardized)
                if group.has_reserve:
                    found[code.name] = place - 1
        return found

    @property
    def words(self) -> dict[str, str]:
        """The kind of each column, in plain words."""
        return {code.name: code.words for code in self.codes}

    def encode(self, table: Any, constants: Mapping[str, Any] | None = None) -> Array:
        """The numbers [rows, features] of a pyarrow table or record batch, whose columns may be in any order.

        `constants` are columns with one value for all rows.
        """
        known = constants or {}
        X: Array = np.zeros((table.num_rows, self.n_features))
        place = 0
        for code, width in zip(self.codes, self.widths, strict=True):
            if width:
                code.write(_column(table, code.name, known), X[:, place : place + width])
            place += width
        return X

    def of_matrix(self, X: Array) -> Array:
        """The numbers of a matrix whose columns are those of the fit, in their order."""
        return self.encode(matrix_table(X, self.names))

    def decoded(self, X: Array) -> dict[str, Any]:
        """Of encoded rows: by column, a number or a level for each row, as far as the numbers tell."""
        ends = np.cumsum(self.widths)
        found = zip(self.codes, self.widths, ends, strict=True)
        return {code.name: code.read(X[:, end - width : end]) for code, width, end in found if width}

    def typical(self, X: Array) -> Array:
        """A row of numbers in the middle of others: medians, and of categories the commonest level."""
        row: Array = np.median(X, axis=0)
        ends = np.cumsum(self.widths)
        for code, width, end in zip(self.codes, self.widths, ends, strict=True):
            if isinstance(code, Category):
                row[end - width : end] = np.eye(width)[np.argmax(X[:, end - width : end].sum(axis=0))]
        return row

    def unmet(self, X: Array) -> dict[str, int]:
        """Of encoded rows: by column, in how many rows its value is none that the fit has met."""
        counts = {name: int(np.count_nonzero(X[:, place])) for name, place in self._reserves.items()}
        return {name: count for name, count in counts.items() if count}


def _column(table: Any, name: str, constants: Mapping[str, Any]) -> Any:
    if name in constants:
        return pa.repeat(pa.scalar(constants[name]), table.num_rows)
    if name not in table.schema.names:
        raise InputError(
            f"Column {name!r} of the fit is missing; the table has {', '.join(map(repr, table.schema.names))}. Give "
            "it, with missing values if it is not known."
        )
    return table.column(name)


def unmet_words(unmet: Mapping[str, int], n_rows: int) -> str:
    """What is said of rows with values that the fit has not met."""
    parts = [f"{name!r} in {count:,} of {n_rows:,} rows" for name, count in unmet.items()]
    return (
        f"Values that the fit has not met, or that were never missing there: {', '.join(parts)}. The forecasts of "
        "these rows are wider."
    )


def matrix_table(X: Any, names: tuple[str, ...] | None = None) -> Any:
    """The columns of a matrix of numbers as a pyarrow table: x0, x1, ... where they have no names."""
    titles = names or tuple(f"x{d}" for d in range(X.shape[1]))
    columns = [pa.array(np.ascontiguousarray(X[:, d]), from_pandas=True) for d in range(X.shape[1])]
    return pa.table(dict(zip(titles, columns, strict=True)))
