"""A saved model as a few arrays: mean, standard deviation and intervals at new rows."""

import os
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from sparsegp.errors import InputError, ModelFileError
from sparsegp.io import container
from sparsegp.serving import covariance
from sparsegp.serving.covariance import Array, Form
from sparsegp.serving.forms import KIND, PlainDecoder

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
    description, arrays = container.read(path)
    try:
        parameters = description["parameters"]
        if description["estimator"] != "SparseGPRegressor" or parameters["dtype"] != "float64":
            return None
        decoder = PlainDecoder(arrays)
        for value in parameters.values():
            decoder.decode(value)  # what the state shares with them
        state = {name: decoder.decode(value) for name, value in description["state"].items()}
        posterior = _posterior(state["_fitted"])
        return None if posterior is None else _tried_out(Predictor._of(state, posterior))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelFileError(f"{path} cannot be used: its content is not that of a model ({error!r}).") from error


def _tried_out(found: "Predictor") -> "Predictor":
    """A file that loads predicts: one row, so that parts that do not fit together are found here."""
    mean, std = found.predict(found._units["x_mean"][None], return_std=True)
    if mean.shape != (1,) or not np.isfinite([mean, std]).all():
        raise ValueError(f"the prediction of one row came out as {mean}, {std}")
    return found


@dataclass(frozen=True)
class _Posterior:
    """The prior, and mean and chol of the precision of the whitened inducing values."""

    prior: Form
    mean: Array
    LB: Array


def _posterior(fitted: Form) -> _Posterior | None:
    """Of a fit or of a stream; None for every model that is more than inducing values under a known kernel."""
    if fitted[KIND] == "Fitted" and fitted["posterior"][KIND] == "SparsePosterior":
        prior, q = fitted["posterior"]["prior"], fitted["posterior"]["q"]
        found = _Posterior(prior, q["mean"], _lower(q["LB"]["factor"]))
    elif fitted[KIND] == "Streamed" and fitted["kept"] is None:
        prior, statistics = fitted["state"]["prior"], fitted["state"]["statistics"]
        triangle = _lower(statistics["precision"])
        B = triangle + np.tril(triangle, -1).T + np.eye(len(triangle))
        LB = np.asarray(np.linalg.cholesky(B), dtype=np.float64)
        found = _Posterior(prior, _solved(B, statistics["shift"]), LB)
    else:
        return None
    return found if covariance.knows(found.prior["kernel"]) else None


def _solved(A: Array, b: Array) -> Array:
    return np.linalg.solve(A, b).astype(np.float64, copy=False)


def _lower(packed: Array) -> Array:
    """The lower-triangular matrix whose rows are stored one after another."""
    size = round(((8 * len(packed) + 1) ** 0.5 - 1) / 2)
    if size * (size + 1) != 2 * len(packed):
        raise ValueError(f"a triangle with {len(packed)} entries does not exist")
    A: Array = np.zeros((size, size))
    A[np.tril_indices(size)] = packed
    return A


@dataclass(frozen=True, eq=False)
class Predictor:
    """What a saved model says of new rows.

    With w = L^-1 k(Z, x) the mean is w^T m and the variance k(x, x) - |w|^2 + |LB^-1 w|^2, of SoR the last term alone.
    """

    n_features_in_: int
    feature_names_in_: list[str] | None
    noise_var_: float
    n_samples_seen_: int
    _units: Form = field(repr=False)
    _kernel: Form = field(repr=False)
    _inducing: Array = field(repr=False)
    _whiten: Array = field(repr=False)
    _spread: Array = field(repr=False)
    _weights: Array = field(repr=False)
    _deterministic: bool = field(repr=False)
    _table_columns: Any = field(default=None, repr=False)

    @classmethod
    def _of(cls, state: Form, posterior: _Posterior) -> "Predictor":
        prior = posterior.prior
        L = _lower(prior["Luu"]["factor"])
        whiten = _solved(L, np.eye(len(L)))
        columns = state.get("_table_columns")
        return cls(
            n_features_in_=int(state["n_features_in_"]),
            feature_names_in_=state.get("feature_names_in_"),
            noise_var_=float(state["noise_var_"]),
            n_samples_seen_=int(state["n_samples_seen_"]),
            _units=state["_standardizer"],
            _kernel=prior["kernel"],
            _inducing=prior["inducing"],
            _whiten=whiten,
            _spread=_solved(posterior.LB, whiten),
            _weights=whiten.T @ posterior.mean,
            _deterministic=prior["row"]["test"] == "deterministic",
            _table_columns=None if columns is None else _Columns(tuple(columns["features"]), columns["target"]),
        )

    def predict(self, X: Any, return_std: bool = False, latent: bool = False) -> Any:
        """Mean of y at the rows of X, with its standard deviation on request; `latent`: of the noise-free function."""
        rows = self._checked(X)
        mean, var = np.empty(len(rows)), np.empty(len(rows))
        for start in range(0, len(rows), ROWS_AT_ONCE):
            chunk = slice(start, start + ROWS_AT_ONCE)
            mean[chunk], var[chunk] = self._moments(rows[chunk])
        mean = mean * self._units["y_scale"] + self._units["y_mean"]
        if not return_std:
            return mean
        return mean, np.sqrt(var * self._units["y_scale"] ** 2 + (0.0 if latent else self.noise_var_))

    def predict_interval(self, X: Any, coverage: float = 0.95) -> tuple[Array, Array]:
        """Lower and upper end of the central interval that holds y with probability `coverage`."""
        if not 0.0 < coverage < 1.0:
            raise InputError(f"coverage is a probability strictly between 0 and 1; got {coverage!r}.")
        mean, std = self.predict(X, return_std=True)
        half = NormalDist().inv_cdf(0.5 + 0.5 * coverage) * std
        return mean - half, mean + half

    def _moments(self, X: Array) -> tuple[Array, Array]:
        rows = (X - self._units["x_mean"]) / self._units["x_scale"]
        K, prior_var = covariance.matrix(self._kernel, rows, self._inducing), covariance.diagonal(self._kernel, rows)
        var = np.square(K @ self._spread.T).sum(1)
        if not self._deterministic:
            var += prior_var - np.square(K @ self._whiten.T).sum(1)
        return K @ self._weights, np.maximum(var, SMALLEST_VARIANCE * prior_var)

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


@dataclass(frozen=True)
class _Columns:
    """Names of the columns a model was fitted with, when the rows came from a table."""

    features: tuple[str, ...]
    target: str
