"""How a column of a table becomes numbers: one class for each kind of column, each a frozen value.

A code writes the numbers of a column into `out` [rows, width]. Numbers come in groups, each of which has one learned
lengthscale. The last number of a group may be a reserve: zero in all rows of the fit, and one where a value is none
that the fit has met. Such a row is as far from all others as two random rows are in the mean, or as two levels are, so
its forecast is wider by as much as the column matters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparsegp.data.values import clock_days, days_since_epoch, numbers, one_array, texts
from sparsegp.errors import InputError

Array = NDArray[np.float64]

NUMBER, BOOLEAN, CATEGORY, ORDERED = "number", "boolean", "category", "ordered category"
DATE, TIME, DURATION = "date", "time of day", "duration"
CONSTANT, EMPTY, IDENTIFIER, IGNORED = "constant", "empty", "identifier", "ignored"

CYCLES = {"day": 1.0, "week": 7.0, "year": 365.2425}
"""Length of each cycle in days."""


@dataclass(frozen=True)
class Group:
    """Numbers with one lengthscale: which of them are standardised, and whether the last is a reserve."""

    standardized: tuple[bool, ...]
    has_reserve: bool = False


class Code(Protocol):
    """How one column becomes numbers."""

    @property
    def name(self) -> str:
        """Of the column."""

    @property
    def kind(self) -> str:
        """In plain words."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """The numbers of the column; none where it is left out."""

    @property
    def labels(self) -> tuple[str, ...]:
        """What each number is, for people."""

    @property
    def words(self) -> str:
        """The kind, with what is worth knowing."""

    def write(self, column: Any, out: Array) -> None:
        """The numbers of an arrow column; `out` is zero before."""

    def read(self, numbers: Array) -> NDArray[Any]:
        """A number or a level for each row, as far as its numbers tell."""


@dataclass(frozen=True)
class Number:
    """A number, or a boolean as 0 and 1. Where it is missing it is its mean, and an indicator says so."""

    name: str
    mean: float
    was_missing: bool = False
    kind: str = NUMBER

    @property
    def groups(self) -> tuple[Group, ...]:
        if self.was_missing:
            return Group((True,)), Group((False,))
        return (Group((True, False), has_reserve=True),)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.name, f"{self.name} missing"

    @property
    def words(self) -> str:
        return f"{self.kind}, sometimes missing" if self.was_missing else self.kind

    def write(self, column: Any, out: Array) -> None:
        values = numbers(column, self.name)
        missing = np.isnan(values)
        out[:, 0] = np.where(missing, self.mean, values) if missing.any() else values
        out[:, 1] = missing

    def read(self, numbers: Array) -> NDArray[Any]:
        return numbers[:, 0]


@dataclass(frozen=True)
class Category:
    """A level is an indicator: any two levels are equally far from each other. `rare` levels share one.

    Where the fit has met missing values they are a level, too; a level that it has not met has the reserve.
    """

    name: str
    levels: tuple[str, ...]
    rare: tuple[str, ...] = ()
    was_missing: bool = False
    kind: str = CATEGORY

    @property
    def _n_known(self) -> int:
        return len(self.levels) + bool(self.rare) + self.was_missing

    @property
    def groups(self) -> tuple[Group, ...]:
        return (Group((False,) * (self._n_known + 1), has_reserve=True),)

    @property
    def labels(self) -> tuple[str, ...]:
        named = [f"{self.name} = {level}" for level in self.levels]
        named += [f"{self.name} with a rare level"] if self.rare else []
        named += [f"{self.name} missing"] if self.was_missing else []
        return (*named, f"{self.name} not seen before")

    @property
    def words(self) -> str:
        return _words_of_levels(self.kind, len(self.levels), len(self.rare), self.was_missing)

    @cached_property
    def _index(self) -> "_LevelIndex":
        return _LevelIndex(self.levels, self.rare)

    def write(self, column: Any, out: Array) -> None:
        found = self._index.of(column)
        place = np.where(found == RARE, len(self.levels), found)
        place[found == MISSING] = self._n_known - 1 if self.was_missing else self._n_known
        place[found == UNSEEN] = self._n_known
        out[np.arange(len(place)), place] = 1.0

    def read(self, numbers: Array) -> NDArray[Any]:
        words = [*self.levels, *(["a rare level"] if self.rare else []), *(["missing"] if self.was_missing else [])]
        found: NDArray[Any] = np.array([*words, "not seen before"])[numbers.argmax(axis=1)]
        return found


@dataclass(frozen=True)
class Embedding:
    """A level is a point: the rank of an ordered one, or for many levels what their rows say of the target.

    `points` has one for each level; `rare` levels and those not seen before are at `centre`, the latter with the
    reserve. `missing` is the point of missing values, which an indicator tells apart; None where the fit met none.
    """

    name: str
    levels: tuple[str, ...]
    points: tuple[float, ...]
    centre: float = 0.0
    rare: tuple[str, ...] = ()
    missing: float | None = None
    kind: str = CATEGORY

    @property
    def groups(self) -> tuple[Group, ...]:
        line = Group((True, False), has_reserve=True)
        return (line,) if self.missing is None else (line, Group((False,)))

    @property
    def labels(self) -> tuple[str, ...]:
        what = "rank" if self.kind == ORDERED else "effect"
        known = f"{self.name}, {what}", f"{self.name} not seen before"
        return known if self.missing is None else (*known, f"{self.name} missing")

    @property
    def words(self) -> str:
        return _words_of_levels(self.kind, len(self.levels), len(self.rare), self.missing is not None)

    @cached_property
    def _index(self) -> "_LevelIndex":
        return _LevelIndex(self.levels, self.rare)

    @cached_property
    def _points(self) -> Array:
        missing = self.centre if self.missing is None else self.missing
        return np.array([*self.points, self.centre, missing, self.centre], dtype=np.float64)

    @property
    def n_places(self) -> int:
        """Of the levels, of rare ones together, of missing values, and of levels not seen before."""
        return len(self.levels) + 3

    def places(self, column: Any) -> NDArray[np.int64]:
        """Of each row, the number of its level, or one of the three after them."""
        found = self._index.of(column)
        return np.where(found < 0, len(self.levels) - 1 - found, found)

    def write(self, column: Any, out: Array) -> None:
        place, n_levels = self.places(column), len(self.levels)
        is_missing = place == n_levels + 1
        out[:, 0] = self._points[place]
        out[:, 1] = place == n_levels + 2
        if self.missing is None:
            out[:, 1] += is_missing
        else:
            out[:, 2] = is_missing

    def read(self, numbers: Array) -> NDArray[Any]:
        return numbers[:, 0]


RARE, MISSING, UNSEEN = -1, -2, -3


class _LevelIndex:
    """Finds the level of each row, once for each distinct value."""

    def __init__(self, levels: Sequence[str], rare: Sequence[str]) -> None:
        self.n_levels = len(levels)
        self.known = pa.array([*levels, *rare], pa.string())
        self.by_case = {level.casefold(): level for level in reversed(levels)}

    def of(self, column: Any) -> NDArray[np.int64]:
        """The number of the level, RARE, MISSING or UNSEEN."""
        encoded = one_array(column)
        encoded = encoded if pa.types.is_dictionary(encoded.type) else encoded.dictionary_encode()
        values = texts(encoded.dictionary)
        if pa.types.is_boolean(encoded.dictionary.type):
            values = pa.array([self.by_case.get(value, value) for value in values.to_pylist()], pa.string())
        found = pc.index_in(values, value_set=self.known).fill_null(UNSEEN).to_numpy(zero_copy_only=False)
        found = np.where(found >= self.n_levels, RARE, found).astype(np.int64)
        found[values.is_null().to_numpy(zero_copy_only=False)] = MISSING
        place = encoded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
        levels: NDArray[np.int64] = np.append(found, MISSING)[place]
        return levels


def _words_of_levels(kind: str, n_levels: int, n_rare: int, missing: bool) -> str:
    words = f"{kind} of {n_levels:,} levels"
    words += f" and {n_rare:,} rare ones" if n_rare else ""
    return f"{words}, sometimes missing" if missing else words


@dataclass(frozen=True)
class Date:
    """A date: the time since 1970 in days, and points on the circles of the day, the week and the year.

    `zone` is that in which days begin. `mean` None: a time of day, without a date. A missing date is at the mean and at
    the centre of all circles; where none was missing in the fit, reserves take it away from there.
    """

    name: str
    mean: float | None
    cycles: tuple[str, ...] = ()
    zone: str | None = None
    was_missing: bool = False

    @property
    def kind(self) -> str:
        return TIME if self.mean is None else DATE

    @property
    def groups(self) -> tuple[Group, ...]:
        sizes: list[tuple[bool, ...]] = [(True,)] if self.mean is not None else []
        sizes += [(False, False)] * len(self.cycles)
        if self.was_missing:
            return (*map(Group, sizes), Group((False,)))
        return tuple(Group((*size, False), has_reserve=True) for size in sizes)

    @property
    def labels(self) -> tuple[str, ...]:
        parts = [] if self.mean is None else [[f"{self.name} in days"]]
        parts += [[f"{self.name}, {part} of its {cycle}" for part in ("sine", "cosine")] for cycle in self.cycles]
        absent = f"{self.name} missing"
        if self.was_missing:
            return (*(label for part in parts for label in part), absent)
        return tuple(label for part in parts for label in (*part, absent))

    @property
    def words(self) -> str:
        parts = f" with its {', '.join(self.cycles)}" if self.cycles and self.mean is not None else ""
        zone = f" ({self.zone})" if self.zone else ""
        return f"{self.kind}{parts}{zone}{', sometimes missing' if self.was_missing else ''}"

    def write(self, column: Any, out: Array) -> None:
        if self.mean is None:
            instant = wall = clock_days(column, self.name)
        else:
            instant, wall = days_since_epoch(column, self.zone, self.name)
        missing = np.isnan(instant)
        parts = [] if self.mean is None else [np.where(missing, self.mean, instant)[:, None]]
        for cycle in self.cycles:
            angle = (2.0 * math.pi / CYCLES[cycle]) * np.where(missing, 0.0, wall)
            parts.append(np.where(missing[:, None], 0.0, np.column_stack([np.sin(angle), np.cos(angle)])))
        if self.was_missing:
            out[:] = np.column_stack([*parts, missing])
        else:
            out[:] = np.column_stack([column for part in parts for column in (part, missing)])

    def read(self, numbers: Array) -> NDArray[Any]:
        if self.mean is not None:
            return numbers[:, 0]
        hours: Array = np.arctan2(numbers[:, 0], numbers[:, 1]) * 12.0 / math.pi % 24.0
        return hours


@dataclass(frozen=True)
class Dropped:
    """A column that says nothing, or that is not to be looked at."""

    name: str
    kind: str

    groups: tuple[Group, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        return f"{self.kind}, left out"

    def write(self, column: Any, out: Array) -> None:
        raise InputError(f"Column {self.name!r} is left out.")

    def read(self, numbers: Array) -> NDArray[Any]:
        return np.zeros(len(numbers))
