"""SHAP values: what each column adds to the mean of a forecast, and to its standard deviation."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import shap

from sparsegp.core.predictive import Array
from sparsegp.errors import InputError
from sparsegp.estimators.diagnosis import column_names, without_names

__all__ = ["explain"]

Answer = Callable[[Any, Any], Array]
_ANSWERS: Mapping[str, Answer] = {
    "mean": lambda model, X: model.forecast(X).mean,
    "std": lambda model, X: model.forecast(X).std,
}


def explain(model: Any, X: Any, background: Any, *, of: str = "mean", **options: Any) -> shap.Explanation:
    """SHAP values of the rows of X, for the mean of y or for its standard deviation.

    For each row they add up to what the forecast says there, less its average over the background.

    Parameters
    ----------
    model : a fitted estimator of this package
    X : array or frame of numbers
        Rows to explain.
    background : array or frame of numbers
        Rows that stand for all others, as a sample of 100 training rows. The time grows with their number.
    of : {"mean", "std"}, default "mean"
        "std" shows which columns make a row uncertain.
    **options
        For `shap.Explainer`, as algorithm="permutation" or seed=0.

    Returns
    -------
    shap.Explanation
        With `values`, `base_values`, `data` and `feature_names`, for the plots of shap.

    Raises
    ------
    InputError
        If `of` is something else, or X and background are not matrices with the columns of the fit.
    """
    if of not in _ANSWERS:
        raise InputError(f"of must be one of {', '.join(map(repr, _ANSWERS))}; got {of!r}.")
    names = column_names(model)
    rows, others = (_matrix(name, values, len(names)) for name, values in (("X", X), ("background", background)))

    def answer(at: Array) -> Array:
        with without_names():
            return _ANSWERS[of](model, at)

    masker = shap.maskers.Independent(others, max_samples=len(others))
    return shap.Explainer(answer, masker, feature_names=names, **options)(rows)


def _matrix(name: str, values: Any, n_columns: int) -> Array:
    try:
        matrix = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a matrix of numbers; got {type(values).__name__} ({error}).") from None
    if matrix.ndim != 2 or matrix.shape[1] != n_columns or not len(matrix):
        raise InputError(
            f"{name} must be a matrix with the {n_columns} columns of the fit and at least one row; got the shape "
            f"{matrix.shape}."
        )
    return matrix
