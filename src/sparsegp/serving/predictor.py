"""A saved model as a few arrays: mean, standard deviation and intervals at new rows."""

import os
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from sparsegp.errors import InputError, ModelFileError
from sparsegp.files import model_file
from sparsegp.files.schema import INDUCING, SPARSE, Kernel, Model, Scaling, Trend
from sparsegp.serving import covariance
from sparsegp.serving.covariance import Array

ROWS_AT_ONCE = 8192
SMALLEST_VARIANCE = 1e-14


def load(path: str | os.PathLike[str]) -> "Predictor":
    """The predictor of a model file; an error where only `sparsegp.load` can read the model."""
    found = load_if_light(path)
    if found is None:
        raise ModelFileError(
            f"{path} holds a model that needs torch to predict (blocks, training rows, learned noise, experts or a "
            "kernel of your own): use sparsegp.load."
        )
    return found


def load_if_light(path: str | os.PathLike[str]) -> "Predictor | None":
    """The same, or None where only `sparsegp.load` can read the model."""
    model = model_file.read(path)
    try:
        return _tried_out(Predictor._of(model)) if _is_light(model) else None
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise model_file.unusable(path, error) from error


def _is_light(model: Model) -> bool:
    """Inducing values under a known kernel, and nothing else, predict."""
    return (
        model.kind == SPARSE
        and model.posterior is not None
        and model.posterior.form == INDUCING
        and model.parameters["dtype"] == "float64"
        and covariance.knows(model.kernel)
    )


def _tried_out(found: "Predictor") -> "Predictor":
    """A file that loads predicts: one row, so that parts that do not fit together are found here."""
    mean, std = found.predict(found._scaling.input_mean[None], return_std=True)
    if mean.shape != (1,) or not np.isfinite([mean, std]).all():
        raise ValueError(f"the prediction of one row came out as {mean}, {std}")
    return found


def _solved(A: Array, b: Array) -> Array:
    return np.linalg.solve(A, b).astype(np.float64, copy=False)


def _lower(triangle: Array, size: int) -> Array:
    """The lower-triangular matrix whose rows are stored one after another."""
    if size * (size + 1) != 2 * len(triangle):
        raise ValueError(f"a triangle of {size} rows cannot have {len(triangle)} entries")
    A: Array = np.zeros((size, size))
    A[np.tril_indices(size)] = triangle
    return A


def _features(trend: Trend, rows: Array) -> Array:
    """width (1, x_j for j in columns) of each row."""
    T: Array = np.hstack([np.ones((len(rows), 1)), rows[:, trend.columns]])
    return trend.width * T


@dataclass(frozen=True, eq=False)
class Predictor:
    """What a saved model says of new rows.

    With w = L^-1 k(Z, x) the mean is w^T m and the variance k(x, x) - |w|^2 + |B^-1 w|^2, of SoR the last term alone.
    With a trend w goes on with its features where it meets m and B.
    """

    n_features_in_: int
    feature_names_in_: list[str] | None
    noise_var_: float
    n_samples_seen_: int
    target_name_in_: str | None = field(repr=False)
    _scaling: Scaling = field(repr=False)
    _kernel: Kernel = field(repr=False)
    _inducing: Array = field(repr=False)
    _whiten: Array = field(repr=False)
    _spread: Array = field(repr=False)
    _weights: Array = field(repr=False)
    _deterministic: bool = field(repr=False)
    _trend: Trend | None = field(repr=False)

    @classmethod
    def _of(cls, model: Model) -> "Predictor":
        posterior = model.posterior
        if posterior is None or posterior.inducing is None:
            raise ValueError("the model lacks its inducing values")
        values = posterior.inducing
        size, total = len(values.inputs), len(values.mean)
        inner = _solved(_lower(values.prior_cholesky, size), np.eye(size))
        whiten = np.eye(total)
        whiten[:size, :size] = inner
        return cls(
            n_features_in_=model.columns.count,
            feature_names_in_=model.columns.names,
            noise_var_=model.noise_var,
            n_samples_seen_=model.rows_seen,
            target_name_in_=model.columns.target,
            _scaling=model.scaling,
            _kernel=model.kernel,
            _inducing=values.inputs,
            _whiten=inner,
            _spread=_solved(_lower(values.precision_cholesky, total), whiten),
            _weights=whiten.T @ values.mean,
            _deterministic=posterior.approximation.new_rows == "deterministic",
            _trend=posterior.trend,
        )

    def predict(self, X: Any, return_std: bool = False, latent: bool = False) -> Any:
        """Mean of y at the rows of X, with its standard deviation on request; `latent`: of the noise-free function."""
        rows = self._checked(X)
        mean, var = np.empty(len(rows)), np.empty(len(rows))
        for start in range(0, len(rows), ROWS_AT_ONCE):
            chunk = slice(start, start + ROWS_AT_ONCE)
            mean[chunk], var[chunk] = self._moments(rows[chunk])
        mean = mean * self._scaling.target_scale + self._scaling.target_mean
        if not return_std:
            return mean
        return mean, np.sqrt(var * self._scaling.target_scale**2 + (0.0 if latent else self.noise_var_))

    def predict_interval(self, X: Any, coverage: float = 0.95) -> tuple[Array, Array]:
        """Lower and upper end of the central interval that holds y with probability `coverage`."""
        if not 0.0 < coverage < 1.0:
            raise InputError(f"coverage is a probability strictly between 0 and 1; got {coverage!r}.")
        mean, std = self.predict(X, return_std=True)
        half = NormalDist().inv_cdf(0.5 + 0.5 * coverage) * std
        return mean - half, mean + half

    def _moments(self, X: Array) -> tuple[Array, Array]:
        rows = (X - self._scaling.input_mean) / self._scaling.input_scale
        K, prior_var = covariance.matrix(self._kernel, rows, self._inducing), covariance.diagonal(self._kernel, rows)
        whole = K if self._trend is None else np.hstack([K, _features(self._trend, rows)])
        var = np.square(whole @ self._spread.T).sum(1)
        if not self._deterministic:
            var += prior_var - np.square(K @ self._whiten.T).sum(1)
        return whole @ self._weights, np.maximum(var, SMALLEST_VARIANCE * prior_var)

    def _checked(self, X: Any) -> Array:
        names = getattr(X, "columns", None)
        if names is not None and self.feature_names_in_ is not None and list(names) != list(self.feature_names_in_):
            raise InputError(
                f"X must have the columns of the fit in their order, {', '.join(self.feature_names_in_)}; got "
                f"{', '.join(map(str, names))}."
            )
        try:
            rows = np.asarray(X, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"X must be a matrix of numbers with {self.n_features_in_} columns; got {type(X).__name__} ({error})."
            ) from None
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise InputError(f"X must be a matrix with {self.n_features_in_} columns; got the shape {rows.shape}.")
        if not np.isfinite(rows).all():
            raise InputError("X has values that are not finite (NaN or infinity): fill or drop those rows first.")
        return rows
