"""Which columns of a table are inputs, target, noise and weight, and how they become numbers."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sparsegp.data.batches import Array, Batch, Place
from sparsegp.data.encoding import Encoding
from sparsegp.data.layout import FeatureLayout
from sparsegp.data.values import BOOLEAN_TYPE, EMPTY_TYPE, NUMBER_TYPE, family, numbers
from sparsegp.errors import InputError, did_you_mean

_MOST_NAMES = 20
_NUMBERS = (NUMBER_TYPE, BOOLEAN_TYPE, EMPTY_TYPE)


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
class Piece:
    """Rows as they were read: a pyarrow table or record batch, and columns with one value for all rows.

    `apart` has target, noise and weights of rows that were given without names.
    """

    table: Any
    place: Place
    constants: Mapping[str, Any] = field(default_factory=dict)
    apart: Batch | None = None

    def column(self, name: str) -> Any:
        """An arrow column."""
        if name in self.constants:
            return pa.repeat(pa.scalar(self.constants[name]), self.table.num_rows)
        return self.table.column(name)


@dataclass(frozen=True)
class Columns:
    """The columns chosen from a table; without a target where only the inputs are wanted.

    `encoding`: how the features become numbers; None while they are numbers themselves, none of which is missing.
    `are_numbers`: whether that may be, by their types.
    """

    features: tuple[str, ...]
    target: str | None
    noise_var: str | None = None
    weight: str | None = None
    encoding: Encoding | None = None
    are_numbers: bool = True

    @property
    def inputs(self) -> tuple[str, ...]:
        """The features that are looked at."""
        return self.features if self.encoding is None else self.encoding.needed

    @property
    def all(self) -> list[str]:
        return [name for name in (*self.inputs, self.target, self.noise_var, self.weight) if name is not None]

    @property
    def n_features(self) -> int:
        """How many numbers the inputs of a row are."""
        return len(self.features) if self.encoding is None else self.encoding.n_features

    @property
    def layout(self) -> FeatureLayout:
        return FeatureLayout.plain(len(self.features)) if self.encoding is None else self.encoding.layout

    def batch(self, piece: Piece) -> Batch:
        """Rows as numbers."""
        if piece.apart is not None:
            return replace(piece.apart, X=self._inputs(piece))
        n_rows = piece.table.num_rows
        noise, weight = (
            None if name is None else numbers(piece.column(name), name) for name in (self.noise_var, self.weight)
        )
        y = np.zeros(n_rows) if self.target is None else numbers(piece.column(self.target), self.target)
        return Batch(self._inputs(piece), y, noise, weight, piece.place)

    def _inputs(self, piece: Piece) -> Array:
        if self.encoding is not None:
            return self.encoding.encode(piece.table, piece.constants)
        X = np.empty((piece.table.num_rows, len(self.features)))
        for d, name in enumerate(self.features):
            X[:, d] = numbers(piece.column(name), name)
        return X


class FromTable(ABC):
    """Mixin of sources whose inputs are columns of a table: they read pieces of it, which become numbers here."""

    columns: Columns

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """A new pass over all rows, with the types that they were read with."""

    @property
    def encoding(self) -> Encoding | None:
        return self.columns.encoding

    @property
    def layout(self) -> FeatureLayout:
        return self.columns.layout

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        return self.columns.features

    @property
    def n_features(self) -> int:
        return self.columns.n_features

    def __iter__(self) -> Iterator[Batch]:
        return map(self.columns.batch, self.pieces())


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
            besides = f" left besides {_listed(sorted(others))}" if others else ""
            raise InputError(f"{self.where} has no columns for the inputs{besides}: give one at least.")
        self.require_numbers(roles.named)
        self.require_columns(features)
        # a type that says nothing, as that of an empty part, may turn out as anything
        known = (NUMBER_TYPE, BOOLEAN_TYPE)
        are_numbers = all(family(self.types[name]) in known and not _is_coded(self.types[name]) for name in features)
        return Columns(features, roles.target, roles.noise_var, roles.weight, are_numbers=are_numbers)

    def _given_features(self, names: tuple[str, ...], others: set[str]) -> tuple[str, ...]:
        for name in names:
            self.require(name, f"feature {name!r}")
            if name in others or names.count(name) > 1:
                raise InputError(f"Column {name!r} is named twice: a column is one feature, target, noise or weight.")
        return names

    def require(self, name: str, what: str) -> None:
        if name not in self.types:
            hint = did_you_mean(name, self.types) or self._says_of_values()
            raise InputError(f"{what} is not a column of {self.where}.{hint} It has {_listed(list(self.types))}.")

    def _says_of_values(self) -> str:
        """Two numbers among the names, or more: the line with the names may be missing."""
        if sum(map(_is_number, self.types)) < 2:
            return ""
        return (
            " Some of its names are numbers: is the line with the names missing? For CSV, --no-header (header=False) "
            "calls the columns column1, column2, ..."
        )

    def require_numbers(self, named: Mapping[str, str]) -> None:
        """Target, noise and weight, by their roles."""
        for role, name in named.items():
            if family(self.types[name]) not in _NUMBERS:
                raise InputError(
                    f"{role}={name!r} of {self.where} has type {self.types[name]}; expected numbers. {LIKELY_REASON}"
                )

    def require_columns(self, names: Iterable[str]) -> None:
        """Inputs are numbers, text, categories or dates; lists and structures are none."""
        for name in names:
            if family(self.types[name]) is None:
                raise InputError(
                    f"Column {name!r} of {self.where} has type {self.types[name]}; expected numbers, text, categories "
                    "or dates. Take it apart, or leave it out by naming the input columns (features=[...]; --features "
                    "of the command line)."
                )

    def require_like(self, first: "Header", columns: Columns, roles: Roles) -> None:
        """A further file has the columns chosen from the first one, and no others where all were to be chosen."""
        for name in columns.all:
            self.require(name, f"column {name!r}, which {first.where} has,")
        self.require_numbers(roles.named)
        self.require_columns(columns.features)
        for name in columns.features:
            here, there = (_compared(header.types[name]) for header in (self, first))
            if EMPTY_TYPE not in (here, there) and here != there:
                raise InputError(
                    f"Column {name!r} is {here} in {self.where} and {there} in {first.where}. Write one of them again, "
                    "or leave the column out."
                )
        more = self.types.keys() - self.hidden - first.types.keys()
        if more and roles.features is None:
            raise InputError(
                f"{self.where} has columns that {first.where} has not: {_listed(sorted(more))}. "
                "Name the input columns (features=[...]; --features of the command line)."
            )


LIKELY_REASON = (
    "Likely reasons: commas between thousands, a decimal comma, a unit behind the number, a word for missing values; "
    "or it is a label, and regression predicts numbers. Convert it first."
)


def _compared(kind: Any) -> str | None:
    """What the values are; booleans are numbers."""
    found = family(kind)
    return NUMBER_TYPE if found == BOOLEAN_TYPE else found


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _is_coded(kind: Any) -> bool:
    return bool(pa.types.is_dictionary(kind))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_MOST_NAMES]))
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"
