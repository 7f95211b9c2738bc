"""What a person hands to an estimator: checked, named and turned into numbers, still in the user's units.

Messages say which row and column to look at.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from sparsegp.checked import as_array, as_numbers, require_unmasked
from sparsegp.data import (
    Asked,
    Batch,
    Files,
    Place,
    Source,
    is_read_in_batches,
    open_inputs,
    open_source,
    read_encoded,
    whole_batch,
    with_encoding,
)
from sparsegp.data.arrays import ArraySource
from sparsegp.data.batches import USABLE_WEIGHTS, usable_weights
from sparsegp.data.columns import LIKELY_REASON
from sparsegp.data.inputs import InputColumns, is_named_table
from sparsegp.data.open import is_source
from sparsegp.data.scan import say_without_target, with_target
from sparsegp.errors import InputError, InputTypeError
from sparsegp.estimators.fitted import Columns
from sparsegp.estimators.given import Given

Array = NDArray[np.float64]
ARGUMENTS = Place("the arguments of fit")
NEVER_MISSING = (
    "In the fit no value was missing, so the model cannot tell here what a missing one means: drop those rows, give "
    "numbers in their place, or fit with rows in which it is missing, too."
)
AS_NUMBERS = "Convert them first, for example to days since the first date."
NO_TARGET = "fit requires y to be passed, but the target y is None. Give y, or target='column' when X is a table."
MANY_ROWS = 10
HINTS = {
    "Sparse data": "X.toarray() needs 8 bytes for each entry; with many columns of zeros, choose some of them first.",
    "string names": "Or give X.to_numpy(), without names.",
    "at least one array or dtype": "X has no columns: give one at least.",
    "unique column names": "Rename the columns: no two may have the same name.",
    "Input contains NaN": "A target of type object is missing or NaN: leave its row out, or give y as floats.",
    "Complex data": "Give real numbers, as in X.real.",
    "could not convert string": "Give a DataFrame: its columns may be text, dates or numbers.",
    "not 'dict'": "Give a DataFrame or an array: pandas.DataFrame(X) makes one of a dictionary of columns.",
    "not 'generator'": "Give an array or a table. For batches of rows, see the page on big files of the documentation.",
}
"""What to do, by what scikit-learn says."""


def training_batch(estimator: Any, given: Given) -> tuple[Batch, Columns]:
    """The rows of a first fit that are held in memory, and their columns. Rows without a target are left out."""
    asked = asked_of(estimator)
    source = source_of(given)
    if source is None:
        # scikit-learn keeps the columns in the estimator; a fit that fails must not have touched it
        scratch = copy(estimator)
        X, y = _validated(scratch, *split_target(given))
        columns = Columns.of_numbers(scratch)
        require_no_infinity(X, columns.names)
        batch = batch_of(X, y, given)
        names = None if columns.names is None else tuple(map(str, columns.names))
        source = ArraySource(X, y, batch.noise_var, batch.weight, names, ARGUMENTS.name)
        if not asked.kinds and np.isfinite(X).all() and np.isfinite(y).all():
            return _ready(estimator, batch, columns), columns
    source, batch = read_encoded(source, asked, whole_batch)
    columns = Columns.of_source(source)
    return _ready(estimator, batch, columns), columns


def _ready(estimator: Any, batch: Batch, columns: Columns) -> Batch:
    if batch.weight is not None and not batch.weight.any():
        raise InputError("Every sample_weight is zero: there is nothing to learn from.")
    if estimator.optimizer is not None:
        warn_of_constant_target(batch.y)
    warn_of_target_among(batch.X, batch.y, columns)
    return batch


def asked_of(estimator: Any) -> Asked:
    """What the user says of columns."""
    return Asked.of(estimator.categorical, estimator.columns)


def validated(estimator: Any, X: Any, *given: Any, **options: Any) -> Any:
    """scikit-learn's checks of X and y, whose errors become ours."""
    with errors_of_ours(X):
        return validate_data(estimator, X, *given, **options)


@contextmanager
def errors_of_ours(given: Any = None) -> Iterator[None]:
    """Errors of scikit-learn and numpy about what was given, with a hint where there is one."""
    try:
        yield
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        text = _without_values(str(error).rstrip(), given)
        hints = (hint for said, hint in HINTS.items() if said in text)
        kind = InputTypeError if isinstance(error, TypeError) else InputError
        said = text if text.endswith((".", "!", "?", "]")) else f"{text}."
        raise kind(f"{said} {next(hints, '')}".rstrip()) from error


def _without_values(text: str, given: Any) -> str:
    """What scikit-learn says, with the shape of an array instead of its values, which may fill the screen."""
    text = re.sub(r"array=\s*\[.*\]\.", lambda _: f"array of shape {np.shape(given)}.", text, flags=re.DOTALL)
    return re.sub(r"(Complex data not supported)\s*\[.*\]", r"\1.", text, flags=re.DOTALL)


def source_of(given: Given, features: Any = None) -> Source | None:
    """Files, dask collections, iterables of batches, and tables with named columns; None for anything else."""
    X, y, noise_var, sample_weight = given.X, given.y, given.noise_var, given.sample_weight
    by_name = isinstance(noise_var, str) or isinstance(sample_weight, str)
    if not (by_name or is_read_in_batches(X, y) or is_named_table(X)):
        return None
    if is_source(X):
        return open_source(X)
    if is_named_table(X) and given.target is None:
        if y is None:
            raise InputError(NO_TARGET)
        noise_var, sample_weight = (
            row_vector(values, len(X), name, allow_zero=name == "sample_weight")
            for name, values in (("noise_var", noise_var), ("sample_weight", sample_weight))
        )
        given = replace(given, y=target_vector(y), noise_var=noise_var, sample_weight=sample_weight)
    return given.source(None if given.target is None else features)


def target_vector(y: Any) -> Array:
    """Targets of a table that are given apart from it."""
    require_numbers_asked(y)
    values = as_numbers(y, "The target y", LIKELY_REASON)
    with errors_of_ours(y):
        vector: Array = column_or_1d(values, warn=True)
    require_finite_target(vector)
    return vector


def require_numbers_asked(y: Any) -> None:
    """Targets are neither the name of a column nor moments, which numpy would turn into numbers of its own."""
    if isinstance(y, str):
        raise InputError(f"y is the text {y!r}; expected one number for each row. For a column of X: target={y!r}.")
    kind = as_array(y, "y").dtype.kind
    if kind in "mM":
        raise InputError(f"The target y has {'dates' if kind == 'M' else 'durations'}; expected numbers. {AS_NUMBERS}")


def _validated(estimator: Any, X: Any, y: Any, **options: Any) -> tuple[Array, Array]:
    """Arrays as scikit-learn wants them, but for missing values, of which it takes none among the targets."""
    require_numbers_asked(y)
    require_finite_target(y)
    if X is None:
        raise InputError("X is None: give the rows to learn from, as an array or a table.")
    kind = getattr(getattr(X, "dtype", None), "kind", "")
    if kind in "SU" and kind:
        raise InputError("X is an array of text. Give a DataFrame: its columns may be text, dates or numbers.")
    given = np.asarray(y)
    missing = np.isnan(given) if given.dtype.kind == "f" else np.zeros(given.shape, dtype=bool)
    X, found = validated(
        estimator, X, np.where(missing, 0.0, given) if missing.any() else y, dtype=np.float64, order="C",
        y_numeric=True, ensure_all_finite=False, **options,
    )  # fmt: skip
    found = as_numbers(found, "The target y", LIKELY_REASON)
    return X, np.where(missing.ravel(), np.nan, found) if missing.any() else found


def later_batch(estimator: Any, given: Given) -> Batch:
    """More rows for an estimator that was fitted; there may be none."""
    X, y, target = given.X, given.y, given.target
    is_ready = target is None and is_plain(estimator, X) and type(y) is np.ndarray and y.dtype == np.float64
    columns = input_columns(estimator)
    encoding = columns.encoding
    if not (is_ready and y.shape == X.shape[:1]):
        known = columns.known(X) if target is None and columns.takes(X) else X
        source = source_of(replace(given, X=known), columns.needed)
        if source is not None:
            if encoding is None:
                require_width(estimator, source.n_features)
            batch = _whole_or_none(with_encoding(source, encoding))
            columns.say_unmet(batch.X)
            return batch
        X, y = _validated(estimator, *split_target(given), reset=False, ensure_min_samples=0)
    if encoding is None:
        require_finite(X, column_names(estimator))
    else:
        X = encoding.of_matrix(X)
        columns.say_unmet(X)
    batch = batch_of(X, y, given)
    if np.isfinite(y).all():
        return batch
    say_without_target(int(np.isnan(y).sum()), len(y))
    require_finite_target(y)
    return with_target(batch)


def _whole_or_none(source: Source) -> Batch:
    """All rows; a table without rows is a batch without rows."""
    if source.n_rows == 0:
        return Batch(np.zeros((0, source.n_features)), np.zeros(0), None, None, ARGUMENTS)
    return whole_batch(source)


def input_columns(estimator: Any) -> InputColumns:
    """The columns of the fit."""
    fitted = estimator.fitted_
    names = fitted.columns.names
    return InputColumns(None if names is None else tuple(map(str, names)), fitted.columns.encoding, fitted.target)


def require_width(estimator: Any, n_features: int) -> None:
    """As many columns as in the first fit."""
    if n_features != estimator.n_features_in_:
        raise InputError(
            f"X has {n_features} features, but {type(estimator).__name__} is expecting {estimator.n_features_in_} "
            "features as input: give the columns of the first fit."
        )


def batch_of(X: Array, y: Array, given: Given) -> Batch:
    """Checked rows with their noise variances and weights, where there are any."""
    weight = row_vector(given.sample_weight, len(y), "sample_weight", allow_zero=True)
    if weight is not None and not usable_weights(weight).all():
        row = int(np.flatnonzero(~usable_weights(weight))[0])
        raise InputError(
            f"sample_weight must be {USABLE_WEIGHTS}; row {row} has {weight[row]:g}. Divide all of them by one number."
        )
    noise = row_vector(given.noise_var, len(y), "noise_var", allow_zero=False)
    return Batch(X, y, noise, weight, ARGUMENTS)


def new_inputs(estimator: Any, X: Any, *, may_miss: bool = False) -> Array:
    """Inputs to predict at, which must have the columns of the fit, in any order where they have names.

    `may_miss`: NaN stays where a number is missing and the model knows what it may be.
    """
    if not hasattr(estimator, "fitted_"):  # scikit-learn takes longer to find that all is well
        check_is_fitted(estimator)
    columns, known = input_columns(estimator), estimator.fitted_.columns
    rows: Array = X if is_plain(estimator, X) else _numbers_of(estimator, columns, X)
    if np.isfinite(rows).all():
        return rows
    names = columns.needed if columns.encoding is None else columns.encoding.labels
    if may_miss and known.completion is not None:
        require_no_infinity(rows, names)
        columns.say_missing(rows)
    else:
        require_finite(rows, names)
    return rows


def _numbers_of(estimator: Any, columns: InputColumns, X: Any) -> Array:
    """Whatever holds rows as the numbers that the model sees."""
    encoding = columns.encoding
    if Files.of(X) is not None:
        source = with_encoding(open_inputs(X, columns.needed), encoding)
        if encoding is None:
            require_width(estimator, source.n_features)
        rows: Array = np.concatenate([np.zeros((0, source.n_features)), *(batch.X for batch in source)])
        require_rows(rows)
        columns.say_unmet(rows)
    elif columns.takes(X):
        rows = columns.matrix(X)
        require_rows(rows)
    else:
        rows = validated(estimator, as_frame(X), dtype=np.float64, order="C", ensure_all_finite=False, reset=False)
        if encoding is not None:
            rows = encoding.of_matrix(rows)
            columns.say_unmet(rows)
    return rows


def require_rows(rows: Array) -> None:
    if not len(rows):
        raise InputError("Found array with 0 sample(s): there are no rows to predict. A minimum of 1 is required.")


def is_plain(estimator: Any, X: Any) -> bool:
    """A float64 matrix of the right width after a fit without column names: nothing for scikit-learn to check."""
    plain = type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2 and len(X) > 0
    known = estimator.fitted_.columns
    return plain and X.shape[1] == estimator.n_features_in_ and known.names is None and known.encoding is None


def column_names(estimator: Any) -> Any:
    return getattr(estimator, "feature_names_in_", None)


def split_target(given: Given) -> tuple[Any, Any]:
    """(features, target) of a table when `target` names a column; (X, y) as given otherwise."""
    X, y, target = given.X, given.y, given.target
    if target is None:
        if y is None:
            raise InputError(NO_TARGET)
        return as_frame(X), y
    if y is not None:
        raise InputError("Give either y or target=, not both.")
    columns = _columns(X)
    if target not in columns:
        raise InputError(f"target={target!r} is not a column of the table; it has {', '.join(map(repr, columns))}.")
    features = [name for name in columns if name != target]
    if not features:
        raise InputError(f"The table has no column besides the target {target!r}.")
    return as_frame(X.select(features) if hasattr(X, "select") else X[features]), _column(X, target)


def _columns(X: Any) -> list[str]:
    names = getattr(X, "column_names", None) or getattr(X, "columns", None)
    if names is None:
        raise InputError(
            f"target= needs a table with named columns (pandas, polars or pyarrow); got {type(X).__name__}."
        )
    return list(names)


def _column(X: Any, name: str) -> Any:
    column = X[name]
    return column.to_numpy() if hasattr(column, "to_numpy") else column


def as_frame(X: Any) -> Any:
    """pyarrow tables as pandas frames, which scikit-learn reads with their column names; anything else as it is."""
    require_unmasked(X, "X")
    is_arrow = type(X).__module__.partition(".")[0] == "pyarrow"
    return X.to_pandas() if is_arrow and hasattr(X, "to_pandas") else X


def require_no_infinity(X: Array, names: Any) -> None:
    """Entries may be missing, but not infinite."""
    if np.isinf(X).any():
        require_finite(np.where(np.isinf(X), X, 0.0), names)


def require_finite(X: Array, names: Sequence[str] | None) -> None:
    """Every entry finite, or an error that names the first bad column and row."""
    finite = np.isfinite(X)
    if finite.all():
        return
    column = int(np.flatnonzero(~finite.all(axis=0))[0])
    rows = np.flatnonzero(~finite[:, column])
    label = f"column {column}" if names is None else f"column {column} ({names[column]!r})"
    kind = "NaN" if np.isnan(X[rows[0], column]) else "inf"
    advice = "Drop those rows, or give numbers in their place." if kind == "inf" else NEVER_MISSING
    raise InputError(
        f"Input X contains {kind}: {label}, row {rows[0]}; {int((~finite).any(axis=1).sum())} of {len(X)} rows have a "
        f"NaN or infinity. {advice}"
    )


def require_finite_target(y: Any) -> None:
    """No numeric target infinite; anything that is not a vector of numbers is left to scikit-learn's own checks."""
    require_unmasked(y, "y")
    y = np.asarray(y)
    if y.ndim != 1 or y.dtype.kind != "f":
        return
    bad = np.flatnonzero(np.isinf(y))
    if bad.size:
        raise InputError(f"Input y contains inf at row {bad[0]} ({bad.size} of {len(y)} rows). Drop those rows.")


def warn_of_constant_target(y: Array) -> None:
    """Equal targets have no scale to learn: whatever width an interval gets, the rows do not support it."""
    if len(y) and (y == y[0]).all():
        rows = "a single row" if len(y) == 1 else f"{len(y)} rows with the same target"
        warnings.warn(
            f"The model is fitted to {rows}, {y[0]:g}: it predicts this number everywhere, and the width of its "
            "intervals is arbitrary. Give rows with different targets.",
            stacklevel=4,
        )


def warn_of_target_among(X: Array, y: Array, columns: Columns) -> None:
    """A column that is the target in every row is known when a model is tried, and seldom when it is used."""
    if len(y) < MANY_ROWS or (y == y[0]).all():
        return
    same = np.flatnonzero((y[:, None] == X).all(axis=0))
    if not same.size:
        return
    labels = columns.names if columns.encoding is None else columns.encoding.labels
    label = f"column {same[0]}" if labels is None else f"column {labels[same[0]]!r}"
    warnings.warn(
        f"The target is among the columns of X: {label} has its value in every row. Leave it out, or the model only "
        "copies it (drop it from the table, or name it with target= in place of y).",
        stacklevel=4,
    )


def row_vector(values: Any, n_rows: int, name: str, *, allow_zero: bool) -> Array | None:
    """A finite, non-negative (or positive) number for each row, or None when not given."""
    if values is None:
        return None
    if isinstance(values, str):
        raise InputError(f"{name}={values!r} names a column, and y is given apart: give y as a column, too, target=...")
    array = as_numbers(values, name)
    if array.ndim == 0:
        array = np.full(n_rows, float(array))
    if array.shape != (n_rows,):
        raise InputError(
            f"{name} must have one value for each of the {n_rows} rows; got an array of shape {array.shape}."
        )
    smallest_ok = array >= 0 if allow_zero else array > 0
    bad = np.flatnonzero(~(np.isfinite(array) & smallest_ok))
    if bad.size:
        bound = ">= 0" if allow_zero else "> 0"
        raise InputError(f"{name} must be finite and {bound}; row {bad[0]} has {array[bad[0]]} ({bad.size} such rows).")
    return array


def require_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")


def positive_count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1; got {value!r}.")
    return int(value)


def positive_number(name: str, value: Any) -> float:
    if isinstance(value, bool | str):
        raise InputError(f"{name} must be a positive number; got {value!r}.")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a positive number; got {value!r}.") from None
    if not (np.isfinite(number) and number > 0):
        raise InputError(f"{name} must be a positive, finite number; got {value!r}.")
    return number


def inducing_array(inducing: Any, n_features: int) -> Array:
    """Given inducing inputs: a finite matrix [M, D]."""
    try:
        array = np.asarray(inducing, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] != n_features:
        raise InputError(
            "inducing must be 'kmeans', 'random', 'greedy' or an array [M, D] with a column for each of the "
            f"{n_features} features; got {type(inducing).__name__} of shape {np.shape(inducing)}."
        )
    require_finite(array, None)
    return array
