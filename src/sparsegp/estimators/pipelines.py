"""Pipelines of scikit-learn that end with an estimator of this package: their intervals, and files of them."""

import os
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from sklearn.utils.validation import check_is_fitted

from sparsegp.core.predictive import Array, Predictive
from sparsegp.errors import InputError
from sparsegp.estimators.diagnosis import Diagnosis
from sparsegp.estimators.estimator import Estimator

ChangeOfUnits = tuple[Array, Array]
"""shift and scale of every column: x' = (x - shift)/scale."""


def wrap(pipeline: Pipeline) -> "PipelineRegressor":
    """A Pipeline with the forecasts of its last step.

    A Pipeline of scikit-learn passes `predict` and `score` on to its last step and nothing else. What is wrapped also
    has `predict_interval`, `predict_quantiles`, `forecast`, `log_density`, `diagnose` and `save`.

    Parameters
    ----------
    pipeline : Pipeline
        Its last step is an estimator of this package; fitted or not.

    Returns
    -------
    PipelineRegressor

    Raises
    ------
    InputError
        If this is not a Pipeline, or its last step is another estimator.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import sparsegp
    >>> X = np.linspace(0, 6, 40)[:, None]
    >>> steps = make_pipeline(StandardScaler(), sparsegp.SparseGPRegressor(approximation="exact", kernel="se"))
    >>> lower, upper = sparsegp.wrap(steps).fit(X, np.sin(X[:, 0])).predict_interval(X)
    >>> bool((lower < upper).all())
    True
    """
    return PipelineRegressor(pipeline).checked()


class PipelineRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A Pipeline that ends with an estimator of this package, and answers what that estimator answers.

    Parameters
    ----------
    pipeline : Pipeline
        It is fitted itself, not a copy of it.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def checked(self) -> Self:
        """Itself, if there is a Pipeline with forecasts at its end."""
        if not isinstance(self.pipeline, Pipeline):
            raise InputError(
                "wrap takes a scikit-learn Pipeline whose last step is an estimator of sparsegp; got "
                f"{type(self.pipeline).__name__}. An estimator alone needs no wrapping."
            )
        last = self.pipeline[-1]
        if not isinstance(last, Estimator):
            raise InputError(
                "The last step of the Pipeline must be a SparseGPRegressor, HeteroscedasticGPRegressor or "
                f"CommitteeGPRegressor; got {type(last).__name__}."
            )
        return self

    def fit(self, X: Any, y: Any, **parameters: Any) -> Self:
        """Fit all steps; `parameters` are those of Pipeline.fit, as in gp__sample_weight=."""
        self.checked().pipeline.fit(X, y, **parameters)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self.pipeline[-1], "fitted_")

    @property
    def estimator_(self) -> Any:
        """The last step. Its columns are those that the steps before it make."""
        check_is_fitted(self)
        return self.pipeline[-1]

    def transformed(self, X: Any) -> Any:
        """Rows as the last step sees them."""
        check_is_fitted(self)
        before = self.pipeline[:-1]
        return before.transform(X) if len(before) else X

    def forecast(self, X: Any, latent: bool = False) -> Predictive:
        """The distribution of y (`latent=True`: of f) at each row of X."""
        forecast: Predictive = self.estimator_.forecast(self.transformed(X), latent)
        return forecast

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Mean of y at the rows of X, with its standard deviation on request."""
        return self.estimator_.predict(self.transformed(X), return_std)

    def predict_interval(self, X: Any, coverage: float = 0.95) -> tuple[Array, Array]:
        """Lower and upper end of the central interval that holds y with probability `coverage`."""
        return self.forecast(X).interval(coverage)

    def predict_quantiles(self, X: Any, q: ArrayLike) -> Array:
        """Quantiles of y: one column for each level in q."""
        return self.forecast(X).quantiles(q)

    def log_density(self, X: Any, y: ArrayLike) -> Array:
        """Log density of each target under its prediction."""
        return self.forecast(X).log_density(y)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        """Joint samples of y at the rows of X: an array [rows, n_samples]."""
        samples: Array = self.estimator_.sample_y(self.transformed(X), n_samples, random_state)
        return samples

    def diagnose(self, X: Any, y: Any) -> Diagnosis:
        """Findings of the last step, which speaks of the columns that it sees."""
        found: Diagnosis = self.estimator_.diagnose(self.transformed(X), y)
        return found

    def to_estimator(self) -> Any:
        """One estimator that takes the rows of the Pipeline, if all other steps only shift and scale columns.

        What they do goes into the standardisation of the model, exactly. So the copy speaks of the columns that the
        Pipeline is given, in their own units.

        Raises
        ------
        InputError
            If a step does something else. Model files hold numbers and no code, so it cannot be part of one.
        """
        last = self.estimator_
        shift, scale = np.zeros(last.n_features_in_), np.ones(last.n_features_in_)
        for name, step in self.pipeline.steps[:-1]:
            own_shift, own_scale = _change_of_units(name, step, len(shift))
            # ((x - shift)/scale - own_shift)/own_scale
            shift, scale = shift + scale * own_shift, scale * own_scale
        inner, alone = last.fitted_.scaling, copy(last)
        scaling = replace(inner, x_mean=shift + scale * inner.x_mean, x_scale=scale * inner.x_scale)
        names = getattr(self.pipeline, "feature_names_in_", None) if len(self.pipeline) > 1 else None
        columns = last.fitted_.columns if names is None else replace(last.fitted_.columns, names=names)
        alone.assign(replace(last.fitted_, scaling=scaling, columns=columns, given=None))
        return alone

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one model file for the whole Pipeline, which `sparsegp.load` reads as a plain estimator.

        Steps that shift and scale columns (StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler) become part of
        the model. Others are Python code: `joblib.dump(pipeline, path)` keeps them, in a file that only those should
        open who trust its writer.
        """
        self.to_estimator().save(path)


def _change_of_units(name: str, step: Any, n_columns: int) -> ChangeOfUnits:
    if step is None or step == "passthrough":
        return np.zeros(n_columns), np.ones(n_columns)
    units = _UNITS.get(type(step))
    if units is None:
        raise InputError(
            f"The step {name!r} of the Pipeline is a {type(step).__name__}, which is code and not a number per column: "
            f"a model file cannot hold it. Files take {', '.join(cls.__name__ for cls in _UNITS)}. Leave the step "
            "out if the model can do its work, keep the whole Pipeline with joblib.dump, or save the last step alone: "
            "pipeline[-1].save(path)."
        )
    return units(step, n_columns)


def _given(values: Any, n_columns: int, otherwise: float) -> Array:
    """Numbers of a scaler, which are None where it was set to leave them out."""
    return np.full(n_columns, otherwise) if values is None else np.asarray(values, dtype=np.float64)


def _of_standard(step: Any, n: int) -> ChangeOfUnits:
    return _given(step.mean_ if step.with_mean else None, n, 0.0), _given(
        step.scale_ if step.with_std else None, n, 1.0
    )


def _of_robust(step: Any, n: int) -> ChangeOfUnits:
    return _given(step.center_, n, 0.0), _given(step.scale_, n, 1.0)


def _of_min_max(step: Any, n: int) -> ChangeOfUnits:
    if step.clip:
        raise InputError(
            "A MinMaxScaler with clip=True does more than shift and scale: a model file cannot hold it. Use clip=False."
        )
    # x' = x scale_ + min_
    scale = 1.0 / np.asarray(step.scale_, dtype=np.float64)
    return -np.asarray(step.min_, dtype=np.float64) * scale, scale


def _of_max_abs(step: Any, n: int) -> ChangeOfUnits:
    return np.zeros(n), _given(step.scale_, n, 1.0)


_UNITS: Mapping[type, Callable[[Any, int], ChangeOfUnits]] = {
    StandardScaler: _of_standard,
    MinMaxScaler: _of_min_max,
    MaxAbsScaler: _of_max_abs,
    RobustScaler: _of_robust,
}
