"""Arrays in memory (or memory-mapped) as a source."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegp.checked import as_array, require_unmasked
from sparsegp.data.batches import Array, Batch, Place, rows_per_batch
from sparsegp.data.layout import PlainLayout
from sparsegp.errors import InputError


@dataclass(frozen=True)
class ArraySource(PlainLayout):
    """X [N, D] and y [N] of any numeric type, converted batch by batch: a `numpy.memmap` is never read whole."""

    X: Any
    y: Any
    noise_var: Array | None = None
    weight: Array | None = None
    feature_names: tuple[str, ...] | None = None
    name: str = "the arrays"
    batch_rows: int | None = None

    @classmethod
    def of(
        cls,
        X: Any,
        y: Any,
        noise_var: Any = None,
        weight: Any = None,
        feature_names: tuple[str, ...] | None = None,
        name: str = "the arrays",
        batch_rows: int | None = None,
    ) -> "ArraySource":
        X, y = _numeric(X, "X", name), _numeric(y, "y", name)
        if X.ndim != 2 or X.shape[1] < 1:
            raise InputError(f"X of {name} must be a matrix [rows, columns]; got shape {X.shape}.")
        _require_rows(y, len(X), "y", name)
        noise, weights = (
            None if given is None else _per_row(given, len(X), label, name)
            for given, label in ((noise_var, "noise_var"), (weight, "sample_weight"))
        )
        return cls(X, y, noise, weights, feature_names, name, batch_rows)

    @property
    def n_features(self) -> int:
        return int(self.X.shape[1])

    @property
    def n_rows(self) -> int:
        return len(self.y)

    def __iter__(self) -> Iterator[Batch]:
        step = self.batch_rows or rows_per_batch(self.n_features)
        for start in range(0, self.n_rows, step):
            yield self.part(start, start + step)

    def part(self, start: int, stop: int) -> Batch:
        """Some rows."""
        part = slice(start, stop)
        return Batch(
            np.asarray(self.X[part], dtype=np.float64),
            np.asarray(self.y[part], dtype=np.float64),
            None if self.noise_var is None else self.noise_var[part],
            None if self.weight is None else self.weight[part],
            Place(self.name, start),
        )


def _numeric(values: Any, label: str, name: str) -> Any:
    require_unmasked(values, f"{label} of {name}")
    array = as_array(values, f"{label} of {name}")
    if array.dtype.kind not in "fiub":
        raise InputError(f"{label} of {name} has type {array.dtype}; expected numbers. Text goes in a DataFrame.")
    return array


def _per_row(values: Any, n_rows: int, label: str, name: str) -> Array:
    array = np.asarray(_numeric(values, label, name), dtype=np.float64)
    array = np.full(n_rows, float(array)) if array.ndim == 0 else array
    _require_rows(array, n_rows, label, name)
    return array


def _require_rows(array: Any, n_rows: int, label: str, name: str) -> None:
    if array.shape != (n_rows,):
        raise InputError(
            f"{label} of {name} must have one value for each of the {n_rows} rows of X; got shape {array.shape}."
        )
