"""A saved model as a few arrays: mean, standard deviation and intervals at new rows."""

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsegp.calibration.mixture import Shape
from sparsegp.calibration.scale import LocalScale
from sparsegp.errors import InputError, ModelFileError
from sparsegp.files import calibration_parts, model_file
from sparsegp.files.schema import INDUCING, SPARSE, Kernel, Model, Scaling, Trend
from sparsegp.serving import covariance
from sparsegp.serving.covariance import Array
from sparsegp.serving.forecast import Forecast

ROWS_AT_ONCE = 8192
SMALLEST_VARIANCE = 1e-14


def load(path: str | os.PathLike[str]) -> "Predictor":
    """Read a model file for predictions without torch.

    Parameters
    ----------
    path : path
        The model file.

    Returns
    -------
    Predictor
        The model, as far as predictions need it.

    Raises
    ------
    ModelFileError
        If the file is no model file, is damaged, or holds a model that needs torch to predict.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from sparsegp import SparseGPRegressor, serving
    >>> X = np.linspace(0, 6, 60)[:, None]
    >>> gp = SparseGPRegressor(approximation="vfe", kernel="se", noise_var=0.01, n_inducing=20, optimizer=None)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gp.fit(X, np.sin(X[:, 0])).save(f"{folder}/model.sgp")
    ...     light = serving.load(f"{folder}/model.sgp")
    >>> bool(np.allclose(light.predict(X), gp.predict(X)))
    True
    """
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
        return _tried_out(Predictor._of(model), model_file.own_rows(model)) if _is_light(model) else None
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


def _tried_out(found: "Predictor", rows: Array) -> "Predictor":
    """A file that loads predicts: rows of its own, so that parts that do not fit together are found here."""
    mean, std = found.predict(rows, return_std=True)
    if len(mean) != len(rows) or not np.isfinite([mean, std]).all() or not (std > 0).all():
        raise ValueError(f"the prediction of rows of its own came out as {mean}, {std}")
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
    if not (A.diagonal() > 0).all():
        raise ValueError("a triangle that should be a Cholesky factor has a diagonal that is not positive")
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

    @classmethod
    def _of(cls, model: Model) -> "Predictor":
        posterior = model.posterior
        if posterior is None or posterior.inducing is None:
            raise ValueError("the model lacks its inducing values")
        values, found = posterior.inducing, model.calibration
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
            _shape=Shape.gaussian() if found is None else calibration_parts.restored_shape(found),
            _scale=_restored_scale(model),
            _trend=posterior.trend,
        )

    def predict(self, X: Any, return_std: bool = False, latent: bool = False) -> Any:
        """Mean of y at the rows of X, and its standard deviation on request.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows. A table must have the columns of the fit, in their order.
        return_std : bool, default=False
            Also return the standard deviation of each row.
        latent : bool, default=False
            Predict the noise-free function f instead of y.

        Returns
        -------
        mean : ndarray of shape (n_rows,)
            The predicted means.
        std : ndarray of shape (n_rows,)
            Only if `return_std` is True.

        Raises
        ------
        InputError
            If an argument cannot be used.
        """
        if return_std and not latent:
            forecast = self.forecast(X)
            return forecast.mean, forecast.std
        mean, var = self._both(self._checked(X))
        return (mean, np.sqrt(var)) if return_std else mean

    def forecast(self, X: Any) -> Forecast:
        """The distribution of y at each row of X, as one object.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows. A table must have the columns of the fit, in their order.

        Returns
        -------
        Forecast
            An object with `mean`, `std`, `interval`, `quantiles`, `log_density`, `cdf`, `crps` and `sample`.

        Raises
        ------
        InputError
            If X cannot be used.
        """
        rows = self._checked(X)
        mean, var = self._both(rows)
        return Forecast(mean, self._units(rows, mean, var), self._shape)

    def predict_interval(self, X: Any, coverage: float = 0.95) -> tuple[Array, Array]:
        """The central interval that holds y with a given probability.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows. A table must have the columns of the fit, in their order.
        coverage : float, default=0.95
            The probability, strictly between 0 and 1.

        Returns
        -------
        lower : ndarray of shape (n_rows,)
            Lower ends.
        upper : ndarray of shape (n_rows,)
            Upper ends.

        Raises
        ------
        InputError
            If an argument cannot be used.
        """
        return self.forecast(X).interval(coverage)

    def predict_quantiles(self, X: Any, q: Any) -> Array:
        """Quantiles of y.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows. A table must have the columns of the fit, in their order.
        q : float or sequence of float
            Levels strictly between 0 and 1.

        Returns
        -------
        ndarray of shape (n_rows, n_levels)
            One column for each level.

        Raises
        ------
        InputError
            If an argument cannot be used.
        """
        return self.forecast(X).quantiles(q)

    def log_density(self, X: Any, y: Any) -> Array:
        """Log density of each target under its forecast. Minus its mean is the NLPD.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows. A table must have the columns of the fit, in their order.
        y : array of shape (n_rows,)
            The targets.

        Returns
        -------
        ndarray of shape (n_rows,)
            The log densities.

        Raises
        ------
        InputError
            If an argument cannot be used.
        """
        return self.forecast(X).log_density(y)

    def cdf(self, X: Any, y: Any) -> Array:
        """Probability that y is not above each target.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows. A table must have the columns of the fit, in their order.
        y : array of shape (n_rows,)
            The targets.

        Returns
        -------
        ndarray of shape (n_rows,)
            The probabilities.

        Raises
        ------
        InputError
            If an argument cannot be used.
        """
        return self.forecast(X).cdf(y)

    def crps(self, X: Any, y: Any) -> Array:
        """Continuous ranked probability score of each target. Lower is better.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows. A table must have the columns of the fit, in their order.
        y : array of shape (n_rows,)
            The targets.

        Returns
        -------
        ndarray of shape (n_rows,)
            The scores, in units of y.

        Raises
        ------
        InputError
            If an argument cannot be used.
        """
        return self.forecast(X).crps(y)

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        """Draws of y, independent from row to row.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows. A table must have the columns of the fit, in their order.
        n_samples : int, default=1
            Number of draws.
        random_state : int, numpy Generator or None, default=None
            Seed of the draws.

        Returns
        -------
        ndarray of shape (n_rows, n_samples)
            One column for each draw.

        Raises
        ------
        InputError
            If an argument cannot be used.
        """
        return self.forecast(X).sample(n_samples, np.random.default_rng(random_state))

    def _both(self, rows: Array) -> tuple[Array, Array]:
        """Mean and variance of f, in units of y."""
        mean, var = np.empty(len(rows)), np.empty(len(rows))
        for start in range(0, len(rows), ROWS_AT_ONCE):
            chunk = slice(start, start + ROWS_AT_ONCE)
            mean[chunk], var[chunk] = self._moments(rows[chunk])
        scale = self._scaling.target_scale
        mean, var = mean * scale + self._scaling.target_mean, var * scale**2
        if not (np.isfinite(mean).all() and np.isfinite(var).all()):
            raise InputError(
                "A prediction is not a finite number: a row of X is too far from the rows of the fit, or the model "
                "file was altered. Look at X."
            )
        return mean, var

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
