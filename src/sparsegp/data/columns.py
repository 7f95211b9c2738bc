"""Which columns of a table are inputs, target, noise and weight, and how they become numbers."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from sparsegp.data.batches import Array, Batch, Place
from sparsegp.data.layout import PlainLayout
from sparsegp.errors import InputError

_MOST_NAMES = 20
_IS_NUMBER = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_decimal,
    pa.types.is_null,
)


@dataclass(frozen=True)
class Roles:
    """What the caller says of a table's columns. `features` None: all columns that have no other role."""

    target: str | None
    features: tuple[str, ...] | None = None
    noise_var: str | None = None
    weight: str | None = None

    @property
    def named(self) -> dict[str, str]:
        """The columns that are no features, by the name of the argument that gives them."""
        given = {"target": self.target, "noise_var": self.noise_var, "sample_weight": self.weight}
        return {role: name for role, name in given.items() if name is not None}


@dataclass(frozen=True)
class Columns:
    """The columns chosen from a table; without a target where only the inputs are wanted."""

    features: tuple[str, ...]
    target: str | None
    noise_var: str | None = None
    weight: str | None = None

    @property
    def all(self) -> list[str]:
        return [name for name in (*self.features, self.target, self.noise_var, self.weight) if name is not None]

    def batch(self, table: Any, place: Place, constants: Mapping[str, Any] | None = None) -> Batch:
        """Rows of a pyarrow table or record batch; `constants` are columns with one value for all of them."""
        known = constants or {}

        def column(name: str) -> Array:
            return np.full(table.num_rows, float(known[name])) if name in known else as_numbers(table.column(name))

        X = np.empty((table.num_rows, len(self.features)))
        for d, name in enumerate(self.features):
            X[:, d] = column(name)
        noise, weight = (None if name is None else column(name) for name in (self.noise_var, self.weight))
        y = np.zeros(table.num_rows) if self.target is None else column(self.target)
        return Batch(X, y, noise, weight, place)


class FromTable(PlainLayout):
    """Mixin of sources whose inputs are columns of a table."""

    columns: Columns

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self.columns.features

    @property
    def n_features(self) -> int:
        return len(self.columns.features)


@dataclass(frozen=True)
class Header:
    """Names and types of a table's columns; `hidden` ones (a stored index) are features only when asked for."""

    where: str
    types: Mapping[str, Any]
    hidden: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, schema: Any, where: str) -> "Header":
        repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if repeated:
            raise InputError(f"{where} has more than one column named {', '.join(map(repr, repeated))}. Rename them.")
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        return cls(where, dict(zip(schema.names, schema.types, strict=True)), frozenset(map(str, index)))

    def choose(self, roles: Roles) -> Columns:
        """The columns of the roles, each there and numeric, or an error that says which is not."""
        for role, name in roles.named.items():
            self.require(name, f"{role}={name!r}")
        others = set(roles.named.values())
        if roles.features is None:
            features = tuple(name for name in self.types if name not in others and name not in self.hidden)
        else:
            features = self._given_features(roles.features, others)
        if not features:
            raise InputError(f"{self.where} has no column left for the inputs besides {_listed(sorted(others))}.")
        columns = Columns(features, roles.target, roles.noise_var, roles.weight)
        self.require_numbers(columns.all)
        return columns

    def _given_features(self, names: tuple[str, ...], others: set[str]) -> tuple[str, ...]:
        for name in names:
            self.require(name, f"feature {name!r}")
            if name in others or names.count(name) > 1:
                raise InputError(f"Column {name!r} is named twice: a column is one feature, target, noise or weight.")
        return names

    def require(self, name: str, what: str) -> None:
        if name not in self.types:
            near = difflib.get_close_matches(name, self.types, n=3, cutoff=0.5)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise InputError(f"{what} is not a column of {self.where}.{hint} It has {_listed(list(self.types))}.")

    def require_numbers(self, names: Iterable[str]) -> None:
        for name in names:
            if not any(is_number(self.types[name]) for is_number in _IS_NUMBER):
                raise InputError(
                    f"Column {name!r} of {self.where} has type {self.types[name]}; expected numbers. Encode it as "
                    "numbers first, or leave it out by naming the input columns (features=[...]; --features of the "
                    "command line)."
                )

    def require_like(self, first: "Header", columns: Columns, roles: Roles) -> None:
        """A further file has the columns chosen from the first one, and no others where all were to be chosen."""
        for name in columns.all:
            self.require(name, f"column {name!r}, which {first.where} has,")
        self.require_numbers(columns.all)
        more = self.types.keys() - self.hidden - first.types.keys()
        if more and roles.features is None:
            raise InputError(
                f"{self.where} has columns that {first.where} has not: {_listed(sorted(more))}. "
                "Name the input columns (features=[...]; --features of the command line)."
            )


def as_numbers(column: Any) -> Array:
    """An arrow column as float64, missing values as NaN."""
    if column.type != pa.float64():
        column = column.cast(pa.float64(), safe=False)
    numbers: Array = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    return numbers


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_MOST_NAMES]))
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"
