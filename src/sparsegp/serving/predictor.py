"""A saved model as a few arrays: mean, standard deviation and intervals at new rows."""

import math
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsegp.calibration.mixture import Shape
from sparsegp.calibration.scale import LocalScale
from sparsegp.data.encoding import Encoding
from sparsegp.data.inputs import InputColumns
from sparsegp.errors import InputError, ModelFileError
from sparsegp.files import calibration_parts, model_file
from sparsegp.files.column_codes import restore_encoding
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
    mean, var = found._both(found._scaling.input_mean[None])
    std = found._units(found._scaling.input_mean[None], mean, var)
    if mean.shape != (1,) or not np.isfinite([mean, std]).all():
        raise ValueError(f"the prediction of one row came out as {mean}, {std}")
    return found


def _restored_scale(model: Model) -> LocalScale | None:
    if model.calibration is None or model.calibration.scale is None:
        return None
    return calibration_parts.restored_scale(model.calibration.scale, model.columns.count)


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
    y = mean + std c r, with a local scale c and a shape of r: 1 and the standard normal where there is no calibration.
    With a trend w goes on with its features where it meets m and B.
    """

    n_features_in_: int
    """Columns of the user's table."""
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
    _shape: Shape = field(repr=False)
    _scale: LocalScale | None = field(repr=False)
    _trend: Trend | None = field(repr=False)
    _encoding: Encoding | None = field(repr=False)

    @classmethod
    def _of(cls, model: Model) -> "Predictor":
        posterior = model.posterior
        if posterior is None or posterior.inducing is None:
            raise ValueError("the model lacks its inducing values")
        values, found = posterior.inducing, model.calibration
        codes = model.columns.encoding
        encoding = None if codes is None else restore_encoding(codes, model.columns.count)
        size, total = len(values.inputs), len(values.mean)
        inner = _solved(_lower(values.prior_cholesky, size), np.eye(size))
        whiten = np.eye(total)
        whiten[:size, :size] = inner
        return cls(
            n_features_in_=model.columns.count if encoding is None else len(encoding.codes),
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
            _shape=Shape.gaussian() if found is None else calibration_parts.restored_shape(found),
            _scale=_restored_scale(model),
            _trend=posterior.trend,
            _encoding=encoding,
        )

    @property
    def encoding(self) -> Encoding | None:
        """How the columns of a table become numbers; None where they are numbers."""
        return self._encoding

    def predict(self, X: Any, return_std: bool = False, latent: bool = False) -> Any:
        """Mean of y at the rows of X, with its standard deviation on request; `latent`: of the noise-free function."""
        rows = self._checked(X)
        mean, var = self._both(rows)
        if not return_std:
            return mean
        if latent:
            return mean, np.sqrt(var)
        return mean, math.sqrt(self._shape.var) * self._units(rows, mean, var)

    def predict_interval(self, X: Any, coverage: float = 0.95) -> tuple[Array, Array]:
        """Lower and upper end of the central interval that holds y with probability `coverage`."""
        if not 0.0 < coverage < 1.0:
            raise InputError(f"coverage is a probability strictly between 0 and 1; got {coverage!r}.")
        ends = self.predict_quantiles(X, [0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage])
        return ends[:, 0], ends[:, 1]

    def predict_quantiles(self, X: Any, q: Any) -> Array:
        """Quantiles of y: one column for each level in q."""
        levels = np.atleast_1d(np.asarray(q, dtype=np.float64))
        if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all():
            raise InputError(f"Quantile levels must lie strictly between 0 and 1; got {q!r}.")
        mean, unit = self._location_and_unit(X)
        quantiles: Array = mean[:, None] + unit[:, None] * self._shape.quantiles(levels)
        return quantiles

    def log_density(self, X: Any, y: Any) -> Array:
        """Log density of each target; minus its mean is the NLPD."""
        residual, unit = self._residuals(X, y)
        return self._shape.log_density(residual) - np.log(unit)

    def cdf(self, X: Any, y: Any) -> Array:
        """The probability that a target is not above each of these."""
        return self._shape.cdf(self._residuals(X, y)[0])

    def crps(self, X: Any, y: Any) -> Array:
        """Continuous ranked probability score of each target, in units of y: the smaller, the better."""
        residual, unit = self._residuals(X, y)
        return unit * self._shape.crps(residual)

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        """Draws of y [rows, n_samples], independent from row to row."""
        mean, unit = self._location_and_unit(X)
        draws = self._shape.sample((len(mean), n_samples), np.random.default_rng(random_state))
        sample: Array = mean[:, None] + unit[:, None] * draws
        return sample

    def _residuals(self, X: Any, y: Any) -> tuple[Array, Array]:
        """(y - mean)/unit and the unit of each row."""
        mean, unit = self._location_and_unit(X)
        target = np.asarray(y, dtype=np.float64).ravel()
        if target.shape != mean.shape:
            raise InputError(f"y must have one target for each of the {len(mean)} rows; got {len(target)}.")
        return (target - mean) / unit, unit

    def _location_and_unit(self, X: Any) -> tuple[Array, Array]:
        rows = self._checked(X)
        mean, var = self._both(rows)
        return mean, self._units(rows, mean, var)

    def _both(self, rows: Array) -> tuple[Array, Array]:
        """Mean and variance of f, in units of y."""
        mean, var = np.empty(len(rows)), np.empty(len(rows))
        for start in range(0, len(rows), ROWS_AT_ONCE):
            chunk = slice(start, start + ROWS_AT_ONCE)
            mean[chunk], var[chunk] = self._moments(rows[chunk])
        scale = self._scaling.target_scale
        return mean * scale + self._scaling.target_mean, var * scale**2

    def _units(self, rows: Array, mean: Array, var: Array) -> Array:
        """What r is multiplied by: the standard deviation that the posterior gives, times c."""
        std: Array = np.sqrt(var + self.noise_var_)
        if self._scale is None:
            return std
        scaling = self._scaling
        inputs = (rows - scaling.input_mean) / scaling.input_scale
        scaled = (mean - scaling.target_mean) / scaling.target_scale
        unit: Array = std * self._scale.at(inputs, scaled, std / scaling.target_scale)
        return unit

    def _moments(self, X: Array) -> tuple[Array, Array]:
        rows = (X - self._scaling.input_mean) / self._scaling.input_scale
        K, prior_var = covariance.matrix(self._kernel, rows, self._inducing), covariance.diagonal(self._kernel, rows)
        whole = K if self._trend is None else np.hstack([K, _features(self._trend, rows)])
        var = np.square(whole @ self._spread.T).sum(1)
        if not self._deterministic:
            var += prior_var - np.square(K @ self._whiten.T).sum(1)
        return whole @ self._weights, np.maximum(var, SMALLEST_VARIANCE * prior_var)

    def _checked(self, X: Any) -> Array:
        columns = InputColumns(self.feature_names_in_, self._encoding, self.target_name_in_)
        rows = columns.matrix(X) if columns.takes(X) else self._numbers(X)
        if not np.isfinite(rows).all():
            raise InputError("X has values that are not finite (NaN or infinity): fill or drop those rows first.")
        return rows

    def _numbers(self, X: Any) -> Array:
        """A matrix without names."""
        try:
            rows = np.asarray(X, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"X must be a matrix of numbers with {self.n_features_in_} columns, or a table with the columns of the "
                f"fit; got {type(X).__name__} ({error})."
            ) from None
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise InputError(f"X must be a matrix with {self.n_features_in_} columns; got the shape {rows.shape}.")
        return rows if self._encoding is None else self._encoding.of_matrix(rows)
