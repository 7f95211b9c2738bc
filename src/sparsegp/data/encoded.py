"""Sources whose columns are of any kind as sources of numbers: how the encoding is found, and what then has it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from sparsegp.data.batches import Array, Batch, Source, prefetched
from sparsegp.data.codes import Date, Embedding, Number
from sparsegp.data.columns import Columns, FromTable, Piece
from sparsegp.data.encoding import Encoding, matrix_table
from sparsegp.data.level_effects import EffectSums, has_effects
from sparsegp.data.scan import MissingInputError
from sparsegp.data.survey import Asked, Survey, SurveyOptions
from sparsegp.errors import InputError

Found = TypeVar("Found")


@dataclass(frozen=True)
class Numbers(FromTable):
    """Arrays with missing values or categories, as a table whose columns are x0, x1, ..."""

    source: Source
    columns: Columns

    @classmethod
    def of(cls, source: Source) -> "Numbers":
        names = source.feature_names or tuple(f"x{d}" for d in range(source.n_features))
        return cls(source, Columns(names, _free("y", names), _free("noise", names), _free("weight", names)))

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        return self.source.feature_names

    @property
    def n_rows(self) -> int | None:
        return self.source.n_rows

    def pieces(self) -> Iterator[Piece]:
        for batch in self.source:
            yield Piece(matrix_table(batch.X, self.columns.features), batch.place, {}, batch)


def _free(name: str, names: Sequence[str]) -> str:
    return name if name not in names else _free("_" + name, names)


def tabular(source: Source) -> Any:
    """The source by columns, with `pieces`, `columns` and `batch`."""
    return source if getattr(source, "columns", None) is not None else Numbers.of(source)


def with_encoding(source: Source, encoding: Encoding | None) -> Source:
    """The same rows as the numbers of an encoding; None: as they are."""
    if encoding is None:
        return source
    rows: Any = source
    found: Source
    if hasattr(rows, "sources"):
        parts = tuple(with_encoding(part, encoding) for part in rows.sources)
        found = replace(rows, sources=parts, encoding=encoding)
    else:
        table = tabular(source)
        found = replace(table, columns=replace(table.columns, encoding=encoding))
    return found


def needs_survey(source: Source, asked: Asked) -> bool:
    """Whether somebody has to look at the rows before they are numbers."""
    columns = getattr(source, "columns", None)
    if columns is not None and columns.encoding is not None:
        return False
    return bool(asked.kinds) or (columns is not None and not columns.are_numbers)


def surveyed(source: Source, asked: Asked, is_late: Callable[[], bool] = lambda: False) -> Source:
    """The source with the encoding of its columns: one pass, and one more where categories have many levels.

    Both end when it `is_late`; what comes later is then none that the fit has met.
    """
    survey = survey_of(source, asked, is_late)
    if survey is None:
        raise InputError("The data have no rows: every file, row group or partition is empty.")
    encoding = survey.encoding(asked)
    if survey.needs_effects(encoding):
        encoding = survey.with_effects(encoding, effect_sums(with_encoding(source, encoding), survey, is_late))
    return with_encoding(source, encoding)


def read_encoded(
    source: Source,
    asked: Asked,
    read: Callable[[Source], Found],
    is_late: Callable[[], bool] = lambda: False,
) -> tuple[Source, Found]:
    """What a reader makes of the source as numbers, and the source with its encoding.

    Columns of numbers are taken for numbers none of which is missing; only where that is wrong they are looked at.
    """
    if needs_survey(source, asked):
        source = surveyed(source, asked, is_late=is_late)
    try:
        return source, read(source)
    except MissingInputError:
        source = surveyed(source, asked, is_late=is_late)
        return source, read(source)


@dataclass(frozen=True)
class SurveyedColumns:
    """The facts of all columns, from which their encoding follows."""

    survey: Survey

    def __add__(self, other: "SurveyedColumns") -> "SurveyedColumns":
        return SurveyedColumns(self.survey + other.survey)

    def encoding(self, asked: Asked) -> Encoding:
        found = Encoding(self.survey.codes(asked))
        if not found.needed:
            words = ", ".join(f"{name!r} ({kind})" for name, kind in found.words.items())
            raise InputError(f"No column of X says anything about the target: {words}. Give others.")
        return found

    def needs_effects(self, encoding: Encoding) -> bool:
        return any(has_effects(code) for code in encoding.codes)

    def frame(self, encoding: Encoding) -> tuple[Array, Array]:
        """A centre and a scale for each number: sums of products of numbers far from zero have no digits left."""
        centre, scale = np.zeros(encoding.n_features), np.ones(encoding.n_features)
        place = 0
        for code, facts, width in zip(encoding.codes, self.survey.facts, encoding.widths, strict=True):
            if isinstance(code, Number | Date) and code.mean is not None and np.isfinite([facts.low, facts.high]).all():
                centre[place], scale[place] = code.mean, (facts.high - facts.low) or 1.0
            place += width
        return centre, scale

    def with_effects(self, encoding: Encoding, sums: EffectSums | None) -> Encoding:
        """The encoding with the effects of levels; without rows there are none."""
        if sums is None:
            return encoding
        found = iter(sums.effects(_embeddings(encoding)))
        return Encoding(tuple(next(found) if has_effects(code) else code for code in encoding.codes))


def survey_of(source: Source, asked: Asked, is_late: Callable[[], bool] = lambda: False) -> SurveyedColumns | None:
    """What one pass over the columns tells; None where there are no rows."""
    table, options = tabular(source), SurveyOptions()
    asked.require_known(table.columns.features)
    names = table.columns.features
    total: Survey | None = None
    for piece in prefetched(table.pieces()):
        found = Survey.of(names, piece.column, asked, options)
        total = found if total is None else total + found
        if is_late():
            break
    return SurveyedColumns(total) if total is not None and total.facts[0].n_rows else None


def effect_sums(source: Any, survey: SurveyedColumns, is_late: Callable[[], bool] = lambda: False) -> EffectSums | None:
    """What the rows say of the effects of levels; `source` has the encoding without them."""
    encoding: Encoding = source.columns.encoding
    centre, scale = survey.frame(encoding)
    codes = _embeddings(encoding)
    total: EffectSums | None = None
    for piece in prefetched(source.pieces()):
        batch = source.columns.batch(piece)
        has_target = np.isfinite(batch.y) & np.isfinite(batch.X).all(axis=1)
        found = _sums(codes, piece, batch, has_target, centre, scale)
        total = found if total is None else total + found
        if is_late():
            break
    return total


def _sums(codes: Sequence[Embedding], piece: Piece, batch: Batch, kept: Any, centre: Array, scale: Array) -> EffectSums:
    chosen = pa.array(kept)
    weight = None if batch.weight is None else batch.weight[kept]
    return EffectSums.of(
        codes,
        lambda name: piece.column(name).filter(chosen),
        (batch.X[kept] - centre) / scale,
        batch.y[kept],
        weight,
    )


def _embeddings(encoding: Encoding) -> list[Embedding]:
    return [code for code in encoding.codes if isinstance(code, Embedding) and has_effects(code)]


def sum_of(parts: Sequence[Any]) -> Any:
    """Of what several workers have found; None where none has rows."""
    found = [part for part in parts if part is not None]
    return reduce(add, found) if found else None
