"""Rows as a person hands them to an estimator: checked, named and turned into numbers, still in the user's units."""

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from sparsegp.errors import InputError
from sparsegp.estimators.incoming import validation
from sparsegp.estimators.incoming.frames import as_frame, split_target
from sparsegp.estimators.incoming.validation import Array
from sparsegp.sources import Batch, Place, Source, is_read_in_batches, open_inputs, open_source, whole_batch

ARGUMENTS = Place("the arguments of fit")


def training_batch(
    estimator: Any, X: Any, y: Any, *, target: str | None, noise_var: Any = None, sample_weight: Any = None
) -> Batch:
    """The rows of a first fit; the estimator learns the number and the names of its columns from them."""
    source = source_of(X, y, target=target, noise_var=noise_var, sample_weight=sample_weight)
    if source is not None:
        batch = whole_batch(source)
        take_columns(estimator, source)
    else:
        X, y = split_target(X, y, target)
        validation.require_finite_target(y)
        X, y = validate_data(estimator, X, y, dtype=np.float64, order="C", y_numeric=True, ensure_all_finite=False)
        validation.require_finite(X, column_names(estimator))
        batch = batch_of(X, np.asarray(y, dtype=np.float64), noise_var, sample_weight)
    if batch.weight is not None and not batch.weight.any():
        raise InputError("Every sample_weight is zero: there is nothing to learn from.")
    if estimator.optimizer is not None:
        validation.warn_of_constant_target(batch.y)
    return batch


def source_of(
    X: Any, y: Any, *, target: str | None, noise_var: Any = None, sample_weight: Any = None, features: Any = None
) -> Source | None:
    """Files, dask collections, iterables of batches, and tables whose columns are named; None for anything else."""
    by_name = isinstance(noise_var, str) or isinstance(sample_weight, str)
    if not (by_name or is_read_in_batches(X, y)):
        return None
    features = None if target is None else features
    return open_source(X, y, target=target, features=features, noise_var=noise_var, sample_weight=sample_weight)


def take_columns(estimator: Any, source: Source) -> None:
    """The number and the names of the columns, as scikit-learn would keep them."""
    estimator.n_features_in_ = source.n_features
    vars(estimator).pop("feature_names_in_", None)
    if source.feature_names is not None:
        estimator.feature_names_in_ = np.array(source.feature_names, dtype=object)


def later_batch(
    estimator: Any, X: Any, y: Any, *, target: str | None, noise_var: Any = None, sample_weight: Any = None
) -> Batch:
    """More rows for an estimator that was fitted; there may be none."""
    is_ready = target is None and is_plain(estimator, X) and type(y) is np.ndarray and y.dtype == np.float64
    if not (is_ready and y.shape == X.shape[:1]):
        names = column_names(estimator)
        given = {"target": target, "noise_var": noise_var, "sample_weight": sample_weight}
        source = source_of(X, y, **given, features=names)
        if source is not None:
            batch = whole_batch(source)
            _require_width(estimator, batch.X)
            return batch
        X, y = split_target(X, y, target)
        validation.require_finite_target(y)
        X, y = validate_data(
            estimator, X, y, dtype=np.float64, order="C", y_numeric=True, ensure_all_finite=False, reset=False,
            ensure_min_samples=0,
        )  # fmt: skip
    validation.require_finite(X, column_names(estimator))
    validation.require_finite_target(y)
    return batch_of(X, np.asarray(y, dtype=np.float64), noise_var, sample_weight)


def _require_width(estimator: Any, X: Array) -> Array:
    if X.shape[1] != estimator.n_features_in_:
        raise InputError(
            f"X has {X.shape[1]} features, but {type(estimator).__name__} is expecting {estimator.n_features_in_} "
            "features as input: give the columns of the first fit."
        )
    return X


def batch_of(X: Array, y: Array, noise_var: Any, sample_weight: Any) -> Batch:
    """Checked rows with their noise variances and weights, where there are any."""
    weight = validation.row_vector(sample_weight, len(y), "sample_weight", allow_zero=True)
    noise = validation.row_vector(noise_var, len(y), "noise_var", allow_zero=False)
    return Batch(X, y, noise, weight, ARGUMENTS)


def new_inputs(estimator: Any, X: Any) -> Array:
    """Inputs to predict at, which must have the columns of the fit."""
    check_is_fitted(estimator)
    if isinstance(X, str | Path):
        X = _require_width(estimator, whole_batch(open_inputs(Path(X), column_names(estimator))).X)
    elif not is_plain(estimator, X):
        X = validate_data(estimator, as_frame(X), dtype=np.float64, order="C", ensure_all_finite=False, reset=False)
    validation.require_finite(X, column_names(estimator))
    return X  # type: ignore[no-any-return]


def is_plain(estimator: Any, X: Any) -> bool:
    """A float64 matrix of the right width after a fit without column names: nothing for scikit-learn to check."""
    plain = type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2 and len(X) > 0
    return plain and X.shape[1] == estimator.n_features_in_ and column_names(estimator) is None


def column_names(estimator: Any) -> Any:
    return getattr(estimator, "feature_names_in_", None)
