"""How columns become numbers, as records of a model file and back. Nothing here needs torch."""

from collections.abc import Sequence

import numpy as np

from sparsegp.data.codes import Category, Code, Date, Dropped, Embedding, Number
from sparsegp.data.completion import KNOTS, Completion, is_correlation
from sparsegp.data.encoding import Encoding
from sparsegp.errors import ModelFileError
from sparsegp.files import schema
from sparsegp.files.schema import CIRCLES, INDICATORS, LEFT_OUT, POINTS, VALUE


def describe_encoding(encoding: Encoding) -> list[schema.ColumnCode]:
    """A record for each column of the user."""
    return [_described(code) for code in encoding.codes]


def restore_encoding(records: Sequence[schema.ColumnCode], n_features: int) -> Encoding:
    """The encoding, which must give the numbers that the model was fitted with."""
    found = Encoding(tuple(_restored(record) for record in records))
    if found.n_features != n_features:
        raise ModelFileError(f"the columns become {found.n_features} numbers, and the model has {n_features}")
    return found


def describe_completion(completion: Completion | None) -> schema.Completion | None:
    """The record of what a missing number may be."""
    if completion is None:
        return None
    found = completion.correlation
    triangle = None if found is None else found[np.tril_indices(len(found))]
    return schema.Completion(values=completion.values, correlation=triangle)


def restore_completion(record: schema.Completion | None, n_features: int) -> Completion | None:
    """What a missing number may be, of a model with so many columns."""
    if record is None:
        return None
    if record.values.shape != (len(KNOTS), n_features) or (np.diff(record.values, axis=0) < 0.0).any():
        raise ModelFileError(f"the values of columns are not {len(KNOTS)} of {n_features} columns, from low to high")
    if record.correlation is None:
        return Completion(record.values, None)
    lower = np.tril_indices(n_features)
    if record.correlation.shape != lower[0].shape:
        raise ModelFileError(f"the correlation is not that of {n_features} columns")
    matrix = np.zeros((n_features, n_features))
    matrix[lower] = record.correlation
    matrix = matrix + np.tril(matrix, -1).T
    if not is_correlation(matrix):
        raise ModelFileError(
            "the correlation of columns is none: it is not positive definite with ones on its diagonal"
        )
    return Completion(record.values, matrix)


def _described(code: Code) -> schema.ColumnCode:
    match code:
        case Number():
            return schema.ColumnCode(
                name=code.name, kind=code.kind, form=VALUE, was_missing=code.was_missing, mean=float(code.mean)
            )
        case Category():
            return schema.ColumnCode(
                name=code.name, kind=code.kind, form=INDICATORS, was_missing=code.was_missing,
                levels=list(code.levels), rare=list(code.rare) or None,
            )  # fmt: skip
        case Embedding():
            return schema.ColumnCode(
                name=code.name, kind=code.kind, form=POINTS, was_missing=code.missing is not None,
                levels=list(code.levels), rare=list(code.rare) or None, points=np.array(code.points, dtype=np.float64),
                centre=float(code.centre), missing_point=code.missing,
            )  # fmt: skip
        case Date():
            return schema.ColumnCode(
                name=code.name, kind=code.kind, form=CIRCLES, was_missing=code.was_missing, mean=code.mean,
                cycles=list(code.cycles), zone=code.zone,
            )  # fmt: skip
        case _:
            return schema.ColumnCode(name=code.name, kind=code.kind, form=LEFT_OUT, was_missing=False)


def _restored(record: schema.ColumnCode) -> Code:
    name, kind = record.name, record.kind
    levels, rare = tuple(record.levels or ()), tuple(record.rare or ())
    if record.form == LEFT_OUT:
        return Dropped(name, kind)
    if record.form == INDICATORS:
        return Category(name, levels, rare, record.was_missing, kind)
    if record.form == CIRCLES:
        return Date(name, record.mean, tuple(record.cycles or ()), record.zone, record.was_missing)
    if record.form == POINTS:
        if record.points is None or record.centre is None or len(record.points) != len(levels):
            raise ModelFileError(f"column {name!r} has {len(levels)} levels and not a point for each")
        missing = record.missing_point if record.was_missing else None
        return Embedding(name, levels, tuple(record.points.tolist()), record.centre, rare, missing, kind)
    if record.mean is None:
        raise ModelFileError(f"column {name!r} lacks its mean")
    return Number(name, record.mean, record.was_missing, kind)
