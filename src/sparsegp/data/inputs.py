"""Tables to predict at, or to learn more from: the columns of the fit by name, in any order."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegp.data.batches import Array
from sparsegp.data.columns import Columns, Header
from sparsegp.data.encoding import Encoding, unmet_words
from sparsegp.data.tables import TableSource, is_table, to_arrow

MOST_NAMES = 5


def is_named_table(X: Any) -> bool:
    """A table whose columns have names. A frame of numbers whose columns are numbered is an array to scikit-learn."""
    if not is_table(X):
        return False
    names: Sequence[Any] = getattr(X, "column_names", None) or list(getattr(X, "columns", ()))
    return all(isinstance(name, str) for name in names) or any(kind.kind == "O" for kind in X.dtypes)


def missing_in(rows: Array, names: Sequence[str] | None) -> dict[str, int]:
    """By column, in how many rows its number is missing."""
    counts = np.isnan(rows).sum(axis=0).tolist()
    titles = [f"x{d}" for d in range(len(counts))] if names is None else map(str, names)
    return {name: count for name, count in zip(titles, counts, strict=True) if count}


@dataclass(frozen=True)
class InputColumns:
    """The columns of a fit: their names, how they become numbers, and the name of the target."""

    names: Sequence[str] | None
    encoding: Encoding | None
    target: str | None = None

    @property
    def needed(self) -> tuple[str, ...] | None:
        """The columns that the model looks at; None where columns have no names."""
        if self.names is None:
            return None
        return tuple(map(str, self.names)) if self.encoding is None else self.encoding.needed

    def takes(self, X: Any) -> bool:
        """Whether the columns of X can be found by their names."""
        return self.names is not None and is_named_table(X)

    def known(self, X: Any) -> Any:
        """The columns that the model looks at as a pyarrow table; a word on those that it does not know."""
        table, needed = to_arrow(X), self.needed or ()
        header = Header.of(table.schema, "the table")
        for name in needed:
            header.require(name, f"column {name!r} of the fit")
        own = {*map(str, self.names or ()), self.target}
        extra = [name for name in table.schema.names if name not in own | header.hidden]
        if extra:
            more = f" and {len(extra) - MOST_NAMES} more" if len(extra) > MOST_NAMES else ""
            shown = ", ".join(map(repr, extra[:MOST_NAMES])) + more
            warnings.warn(f"Columns that the model was not fitted with are ignored: {shown}.", stacklevel=5)
        return table.select(list(needed))

    def matrix(self, X: Any) -> Array:
        """The rows of a table as the numbers that the model sees."""
        table = self.known(X)
        source = TableSource.like(table, Columns(tuple(table.schema.names), None, encoding=self.encoding))
        rows = np.concatenate([np.zeros((0, source.n_features)), *(batch.X for batch in source)])
        self.say_unmet(rows)
        return rows

    def say_missing(self, rows: Array) -> None:
        """A warning where numbers are missing that never were in the fit."""
        missing = missing_in(rows, self.names)
        if missing:
            warnings.warn(unmet_words(missing, len(rows)), stacklevel=6)

    def say_unmet(self, rows: Array) -> None:
        """A warning where rows have values that the fit has not met."""
        unmet = {} if self.encoding is None else self.encoding.unmet(rows)
        if unmet:
            warnings.warn(unmet_words(unmet, len(rows)), stacklevel=5)
