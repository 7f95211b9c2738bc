"""What the columns of a table are: one pass over its rows, whose findings can be added up over parts of them."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparsegp.data import codes
from sparsegp.data.codes import CYCLES, Category, Code, Date, Dropped, Embedding, Number
from sparsegp.data.values import (
    BOOLEAN_TYPE,
    DATE_TYPE,
    DAY_US,
    EMPTY_TYPE,
    NUMBER_TYPE,
    TEXT_TYPE,
    TIME_TYPE,
    are_dates,
    are_numbers,
    family,
    is_date_text,
    is_number_text,
    no_date_among,
    numbers,
    one_array,
    texts,
    timestamps,
    zone_of,
)
from sparsegp.errors import InputError, did_you_mean

AS_NUMBER, AS_CATEGORY, AS_DATE, AS_IGNORED = "number", "category", "date", "ignore"
ASKED = (AS_NUMBER, AS_CATEGORY, AS_DATE, AS_IGNORED)


@dataclass(frozen=True)
class SurveyOptions:
    """Up to `few_levels` levels have an indicator each. Of more, up to `most_indicators` have, unless each has
    `rows_for_point` rows in the mean: then its point on a line is well known. Beyond that levels are points.
    `fewest_rows`: a level with fewer is rare, `fewest_for_point` where levels are points. `most_levels`: a column with
    more is an identifier. `repeated`: so is text of whose rows a smaller share has a level that is not rare.
    `fewest_for_identifier`: rows that it takes. `nearly`: a share of rows with numbers or dates that makes text
    suspicious."""

    few_levels: int = 24
    most_indicators: int = 128
    rows_for_point: int = 500
    fewest_rows: int = 5
    fewest_for_point: int = 20
    most_levels: int = 500_000
    repeated: float = 0.2
    fewest_for_identifier: int = 20
    most_rare_names: int = 100_000
    cycles_spanned: float = 1.0
    nearly: float = 0.9


@dataclass(frozen=True)
class Asked:
    """What the user knows of columns: a kind, or the levels of an ordered category from first to last."""

    kinds: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, categorical: Any, columns: Any) -> "Asked":
        """From the parameters of an estimator."""
        kinds: dict[str, str | tuple[str, ...]] = {}
        if categorical is not None and not (isinstance(categorical, str) and categorical == "auto"):
            if isinstance(categorical, str | bytes) or not isinstance(categorical, Iterable):
                raise InputError(
                    "categorical must be 'auto' or a list of columns (names, or numbers for arrays); got "
                    f"{categorical!r}."
                )
            kinds |= {_name(column): AS_CATEGORY for column in categorical}
        if columns is not None:
            if not isinstance(columns, Mapping):
                raise InputError(f"columns must be a mapping from columns to kinds; got {type(columns).__name__}.")
            kinds |= {_name(column): _kind(column, kind) for column, kind in columns.items()}
        return cls(kinds)

    def require_known(self, names: Sequence[str]) -> None:
        for name in self.kinds:
            if name not in names:
                shown = ", ".join(map(repr, names[:20]))
                raise InputError(
                    f"categorical= or columns= (--categorical, --dates, --ignore) names {name!r}, which is no column "
                    f"of X.{did_you_mean(name, names)} It has {shown}."
                )


def _name(column: Any) -> str:
    return f"x{column}" if isinstance(column, int | np.integer) else str(column)


def _kind(column: Any, kind: Any) -> str | tuple[str, ...]:
    if isinstance(kind, str) and kind in ASKED:
        return kind
    if not isinstance(kind, str) and isinstance(kind, Sequence) and len(kind) > 1:
        return tuple(texts(pa.array(list(kind))).to_pylist())
    raise InputError(
        f"columns[{column!r}] must be one of {', '.join(map(repr, ASKED))}, or the list of all levels in their order; "
        f"got {kind!r}."
    )


@dataclass(frozen=True)
class LevelCounts:
    """How many rows have each value, as text. `values` None: more values than a category can have."""

    values: Any
    counts: Any

    @classmethod
    def of(cls, column: Any) -> "LevelCounts":
        encoded = one_array(column)
        encoded = encoded if pa.types.is_dictionary(encoded.type) else encoded.dictionary_encode()
        place = encoded.indices.drop_null().to_numpy(zero_copy_only=False)
        found = cls(texts(encoded.dictionary), pa.array(np.bincount(place, minlength=len(encoded.dictionary))))
        return found.joined()

    def joined(self) -> "LevelCounts":
        """Every value once, none missing, and each in some row."""
        table = pa.table({"value": self.values, "n": self.counts})
        table = table.filter(pc.and_(pc.is_valid(table["value"]), pc.greater(table["n"], 0)))
        table = table.group_by("value", use_threads=False).aggregate([("n", "sum")])
        return LevelCounts(table["value"].combine_chunks(), table["n_sum"].combine_chunks())

    def plus(self, other: "LevelCounts", most: int) -> "LevelCounts":
        if self.values is None or other.values is None:
            return LevelCounts(None, None)
        both = LevelCounts(
            pa.concat_arrays([self.values, other.values]), pa.concat_arrays([self.counts, other.counts])
        ).joined()
        return both if len(both.values) <= most else LevelCounts(None, None)

    def sorted(self) -> tuple[list[str], list[int]]:
        """By text: the order does not depend on that of the rows."""
        order = pc.sort_indices(self.values)
        return self.values.take(order).to_pylist(), self.counts.take(order).to_pylist()


@dataclass(frozen=True)
class ColumnFacts:
    """What the rows so far tell of one column. Of numbers and dates (in days) the mean and the ends are known."""

    name: str
    families: frozenset[str] = frozenset()
    n_rows: int = 0
    n_missing: int = 0
    mean: float = 0.0
    low: float = np.inf
    high: float = -np.inf
    has_clock: bool = False
    zones: frozenset[str | None] = frozenset()
    order: tuple[str, ...] | None = None
    levels: LevelCounts | None = None
    most_levels: int = SurveyOptions.most_levels

    @classmethod
    def of(cls, name: str, column: Any, asked: str | tuple[str, ...] | None, most_levels: int) -> "ColumnFacts":
        """Of one arrow column."""
        column = one_array(column)
        kind = family(column.type)
        if kind is None:
            raise InputError(
                f"Column {name!r} has the type {column.type}, which is neither numbers, text, dates nor categories. "
                f"Take it apart into columns, or leave it out (columns={{{name!r}: 'ignore'}})."
            )
        start = cls(name, frozenset({kind}), len(column), most_levels=most_levels)
        if asked == AS_IGNORED or kind == EMPTY_TYPE or len(column) == 0:
            return replace(start, n_missing=len(column), families=start.families if len(column) else frozenset())
        if kind == TEXT_TYPE or pa.types.is_dictionary(column.type) or asked in (AS_CATEGORY,) or _is_order(asked):
            return start._with_levels(column)
        return start.with_numbers(column, kind)

    def _with_levels(self, column: Any) -> "ColumnFacts":
        found = LevelCounts.of(column)
        n_missing = self.n_rows - int(pc.sum(found.counts).as_py() or 0)
        order = None
        if pa.types.is_dictionary(column.type) and column.type.ordered:
            order = tuple(value for value in texts(column.dictionary).to_pylist() if value is not None)
        if len(found.values) > self.most_levels:
            found = LevelCounts(None, None)
        return replace(self, n_missing=n_missing, levels=found, order=order)

    def with_numbers(self, column: Any, kind: str) -> "ColumnFacts":
        zones: frozenset[str | None] = frozenset()
        if kind == DATE_TYPE:
            found = timestamps(column, self.name)
            zones = frozenset({zone_of(found)})
            whole = found.cast(pa.int64()).drop_null().to_numpy(zero_copy_only=False)
            values, has_clock = whole / DAY_US, bool((whole % DAY_US != 0).any())
        elif kind == TIME_TYPE:
            values, has_clock = np.zeros(len(column) - column.null_count), True
        else:
            every = numbers(column, self.name)
            values, has_clock = every[~np.isnan(every)], False
        n_missing = self.n_rows - len(values)
        if not len(values):
            return replace(self, n_missing=n_missing, zones=zones)
        ends = float(values.min()), float(values.max())
        return replace(
            self, n_missing=n_missing, mean=float(values.mean()), low=ends[0], high=ends[1], has_clock=has_clock,
            zones=zones,
        )  # fmt: skip

    @property
    def n_present(self) -> int:
        return self.n_rows - self.n_missing

    def __add__(self, other: "ColumnFacts") -> "ColumnFacts":
        mine, theirs = self._alike(other), other._alike(self)
        n = mine.n_present + theirs.n_present
        mean = mine.mean if not n else mine.mean + (theirs.mean - mine.mean) * theirs.n_present / n
        levels = theirs.levels if mine.levels is None else mine.levels
        if mine.levels is not None and theirs.levels is not None:
            levels = mine.levels.plus(theirs.levels, self.most_levels)
        return replace(
            mine,
            families=mine.families | theirs.families,
            n_rows=mine.n_rows + theirs.n_rows,
            n_missing=mine.n_missing + theirs.n_missing,
            mean=mean,
            low=min(mine.low, theirs.low),
            high=max(mine.high, theirs.high),
            has_clock=mine.has_clock or theirs.has_clock,
            zones=mine.zones | theirs.zones,
            order=mine.order if mine.order == theirs.order or theirs.order is None else _joined(mine, theirs),
            levels=levels,
        )

    def _alike(self, other: "ColumnFacts") -> "ColumnFacts":
        """This column as what it is in the other part: numbers may be written as text there. An error if it is not."""
        here, there = (facts.families - {EMPTY_TYPE} for facts in (self, other))
        both = here | there
        if len(both) < 2 or both == {NUMBER_TYPE, BOOLEAN_TYPE} or not (here and there):
            return self
        if self.levels is not None and other.levels is not None:
            return self
        if both <= {TEXT_TYPE, NUMBER_TYPE}:
            if self.levels is None:
                return self
            if self.levels.values is not None and are_numbers(self.levels.values):
                return self.as_numbers()
        words = " and ".join(sorted(here)), " and ".join(sorted(there))
        raise InputError(
            f"Column {self.name!r} is {words[0]} in one part of the data and {words[1]} in another. Convert one of "
            f"them, or say what it is: columns={{{self.name!r}: 'category'}}, or 'ignore'."
        )

    def as_numbers(self) -> "ColumnFacts":
        """The same of numbers that are written as text."""
        assert self.levels is not None
        every, counts = numbers(self.levels.values, self.name), self.levels.counts.to_numpy()
        present = ~np.isnan(every)
        if not present.any():
            return replace(self, families=frozenset({EMPTY_TYPE}), n_missing=self.n_rows, levels=None)
        values, weights = every[present], counts[present]
        ends = float(values.min()), float(values.max())
        return replace(
            self, families=frozenset({NUMBER_TYPE}), n_missing=self.n_rows - int(weights.sum()), levels=None,
            mean=float(np.average(values, weights=weights)), low=ends[0], high=ends[1],
        )  # fmt: skip


def _joined(mine: ColumnFacts, theirs: ColumnFacts) -> tuple[str, ...] | None:
    """Categories of parts that list only some levels have the order of the longer list, if that has them all."""
    if mine.order is None or theirs.order is None:
        return mine.order or theirs.order
    short, long = sorted((mine.order, theirs.order), key=len)
    return long if set(short) <= set(long) else None


def _is_order(asked: str | tuple[str, ...] | None) -> bool:
    return isinstance(asked, tuple)


@dataclass(frozen=True)
class Survey:
    """The facts of all columns; those of parts of the rows add up."""

    facts: tuple[ColumnFacts, ...]

    @classmethod
    def of(cls, names: Sequence[str], column: Callable[[str], Any], asked: Asked, options: SurveyOptions) -> "Survey":
        """Of one piece of a table, whose columns a function gives."""
        most = options.most_levels
        return cls(tuple(ColumnFacts.of(name, column(name), asked.kinds.get(name), most) for name in names))

    def __add__(self, other: "Survey") -> "Survey":
        return Survey(tuple(a + b for a, b in zip(self.facts, other.facts, strict=True)))

    @classmethod
    def sum(cls, parts: Sequence["Survey"]) -> "Survey":
        return reduce(add, parts)

    def codes(self, asked: Asked, options: SurveyOptions | None = None) -> tuple[Code, ...]:
        """The code of each column; that of a category of many levels has no points yet."""
        chosen = options or SurveyOptions()
        return tuple(_code(facts, asked.kinds.get(facts.name), chosen) for facts in self.facts)


def _code(facts: ColumnFacts, asked: str | tuple[str, ...] | None, options: SurveyOptions) -> Code:
    name = facts.name
    if asked == AS_IGNORED:
        return Dropped(name, codes.IGNORED)
    if not facts.n_present:
        return Dropped(name, codes.EMPTY)
    if isinstance(asked, tuple):
        return _ordered(facts, asked)
    if asked == AS_CATEGORY:
        return _category(facts, options, found=False)
    if facts.levels is not None:
        return _text(facts, asked, options)
    if TIME_TYPE in facts.families:
        return Date(name, None, ("day",), None, facts.n_missing > 0)
    if DATE_TYPE in facts.families:
        return _date(facts, asked, options)
    if asked == AS_DATE:
        raise InputError(f"columns[{name!r}] is 'date', but the column has {', '.join(sorted(facts.families))}.")
    if facts.low == facts.high and not facts.n_missing:
        return Dropped(name, codes.CONSTANT)
    return Number(name, facts.mean, facts.n_missing > 0, codes.BOOLEAN if _is_boolean(facts) else codes.NUMBER)


def _is_boolean(facts: ColumnFacts) -> bool:
    return BOOLEAN_TYPE in facts.families and NUMBER_TYPE not in facts.families


def _text(facts: ColumnFacts, asked: str | None, options: SurveyOptions) -> Code:
    """Text, or a dictionary of anything: numbers and dates that are written out, or levels."""
    assert facts.levels is not None
    values = facts.levels.values
    is_text = TEXT_TYPE in facts.families
    if values is None:
        if asked in (AS_NUMBER, AS_DATE):
            raise InputError(
                f"columns[{facts.name!r}] is {asked!r}, but the column is text with more than {options.most_levels:,} "
                "values. Convert it before the fit."
            )
        return Dropped(facts.name, codes.IDENTIFIER)
    if facts.order is not None and asked is None:
        return _ordered(facts, facts.order)
    if asked == AS_NUMBER or (asked is None and is_text and are_numbers(values)):
        return _code(facts.as_numbers(), None, options)
    if asked == AS_DATE or (asked is None and is_text and are_dates(values)):
        return _date(_date_facts(facts), asked, options)
    found = _category(facts, options, found=True)
    if asked is None and is_text:
        _say_nearly(facts, found, options)
    return found


def _say_nearly(facts: ColumnFacts, found: Code, options: SurveyOptions) -> None:
    """A warning where a column is text because of a few values only, or has dates that are written in another way."""
    assert facts.levels is not None
    values, counts = facts.levels.values, facts.levels.counts
    is_number, is_date = is_number_text(values), is_date_text(values)
    n_rows = int(pc.sum(counts).as_py())
    n_numbers, n_dates = (int(pc.sum(counts.filter(kept)).as_py() or 0) for kept in (is_number, is_date))
    if len(values) > options.few_levels and options.nearly * n_rows <= n_numbers < n_rows:
        odd = next(iter(values.filter(pc.invert(is_number)).to_pylist()))
        what = f"numbers, but for {n_rows - n_numbers:,} of {n_rows:,} rows"
    elif n_dates >= options.nearly * n_rows:
        odd = no_date_among(values) or values[0].as_py()
        what = "dates, but not all are written as 2024-03-31 or 2024-03-31T18:30:00Z"
    else:
        return
    warnings.warn(
        f"Column {facts.name!r} is taken for text ({found.words}). Its values look like {what}, such as {odd!r}. "
        f"Correct these values, or say that it is a category (categorical=[{facts.name!r}]).",
        stacklevel=2,
    )


def _date_facts(facts: ColumnFacts) -> ColumnFacts:
    """The same of dates that are written as text."""
    assert facts.levels is not None
    found = timestamps(facts.levels.values, facts.name)
    counts = facts.levels.counts.filter(pc.is_valid(found)).to_numpy()
    own = ColumnFacts(facts.name, frozenset({DATE_TYPE})).with_numbers(found.drop_null(), DATE_TYPE)
    mean = float(np.average(found.drop_null().cast(pa.int64()).to_numpy() / DAY_US, weights=counts))
    return replace(own, n_rows=facts.n_rows, n_missing=facts.n_rows - int(counts.sum()), mean=mean)


def _date(facts: ColumnFacts, asked: str | None, options: SurveyOptions) -> Code:
    if asked == AS_NUMBER:
        raise InputError(
            f"columns[{facts.name!r}] is 'number', but the column has dates. Leave it to be found: a date is its time "
            "in days, too."
        )
    if facts.low == facts.high and not facts.n_missing:
        return Dropped(facts.name, codes.CONSTANT)
    span = facts.high - facts.low
    spanned = [name for name, days in CYCLES.items() if span >= options.cycles_spanned * days]
    cycles = tuple(name for name in spanned if name != "day" or facts.has_clock)
    zones = {zone for zone in facts.zones if zone is not None}
    zone = (zones.pop() if len(zones) == 1 else "UTC") if zones else None
    return Date(facts.name, facts.mean, cycles, zone, facts.n_missing > 0)


def _ordered(facts: ColumnFacts, order: tuple[str, ...]) -> Code:
    assert facts.levels is not None
    ranks = np.arange(len(order), dtype=np.float64)
    met, counts = ([], []) if facts.levels.values is None else facts.levels.sorted()
    unknown = [level for level in met if level not in set(order)]
    if unknown:
        shown = ", ".join(map(repr, unknown[:5]))
        raise InputError(
            f"Column {facts.name!r} has levels that its order does not list: {shown}. Give columns[{facts.name!r}] all "
            "levels, from the first to the last."
        )
    if len(met) < 2 and not facts.n_missing:
        return Dropped(facts.name, codes.CONSTANT)
    place = dict(zip(order, ranks.tolist(), strict=True))
    mean = float(np.average([place[level] for level in met], weights=counts))
    missing = mean if facts.n_missing else None
    return Embedding(facts.name, tuple(order), tuple(ranks.tolist()), mean, (), missing, codes.ORDERED)


def _category(facts: ColumnFacts, options: SurveyOptions, *, found: bool) -> Code:
    """Indicators, or one point a level where there are many; `found`: nobody has said that it is a category."""
    assert facts.levels is not None
    if facts.levels.values is None:
        return Dropped(facts.name, codes.IDENTIFIER)
    levels, counts = facts.levels.sorted()
    kept = [level for level, n in zip(levels, counts, strict=True) if n >= options.fewest_rows]
    rare = [level for level, n in zip(levels, counts, strict=True) if n < options.fewest_rows]
    if len(levels) == 1 and not facts.n_missing:
        return Dropped(facts.name, codes.CONSTANT)
    n_kept = sum(n for n in counts if n >= options.fewest_rows)
    is_long = facts.n_present >= options.fewest_for_identifier
    if found and is_long and n_kept < options.repeated * facts.n_present and len(levels) > options.few_levels:
        return Dropped(facts.name, codes.IDENTIFIER)
    if len(rare) == 1 or len(levels) <= options.few_levels // 2:
        kept, rare = levels, []
    most = options.few_levels if n_kept >= options.rows_for_point * len(kept) else options.most_indicators
    if len(kept) <= most:
        return Category(facts.name, tuple(kept), tuple(rare), facts.n_missing > 0)
    return _points(facts, levels, counts, options)


def _points(facts: ColumnFacts, levels: Sequence[str], counts: Sequence[int], options: SurveyOptions) -> Code:
    """Levels as points, which are found later."""
    kept = tuple(level for level, n in zip(levels, counts, strict=True) if n >= options.fewest_for_point)
    rare = tuple(level for level, n in zip(levels, counts, strict=True) if n < options.fewest_for_point)
    if not kept:
        return Dropped(facts.name, codes.IDENTIFIER)
    missing = 0.0 if facts.n_missing else None
    return Embedding(facts.name, kept, (0.0,) * len(kept), 0.0, rare[: options.most_rare_names], missing)
