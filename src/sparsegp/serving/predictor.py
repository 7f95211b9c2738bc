"""A saved model as a few arrays: mean, standard deviation and intervals at new rows."""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from sparsegp import memory
from sparsegp.calibration.mixture import Shape
from sparsegp.calibration.scale import LocalScale
from sparsegp.calibration.transform import TargetTransform, Transformed, carried, named
from sparsegp.core.interleaved import Interleaved
from sparsegp.data.completion import N_DRAWS, Completed, Completion
from sparsegp.data.encoding import Encoding
from sparsegp.data.inputs import InputColumns
from sparsegp.data.layout import FeatureLayout
from sparsegp.errors import InputError, ModelFileError
from sparsegp.files import calibration_parts, model_file
from sparsegp.files.column_codes import restore_completion, restore_encoding
from sparsegp.files.schema import COMMITTEE, LEARNED_NOISE, SPARSE, Kernel, Model, Scaling
from sparsegp.serving import covariance, posteriors
from sparsegp.serving.covariance import Array
from sparsegp.serving.forecasts import DrawnForecast, Forecast
from sparsegp.serving.posteriors import Posterior

ESTIMATORS = {
    SPARSE: "SparseGPRegressor",
    LEARNED_NOISE: "HeteroscedasticGPRegressor",
    COMMITTEE: "CommitteeGPRegressor",
}


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
            f"{path} holds a model that needs torch to predict (learned noise, experts, the Nystrom approximation, "
            "float32 or a kernel of your own): use sparsegp.load."
        )
    return found


@memory.explained
def load_if_light(path: str | os.PathLike[str]) -> "Predictor | None":
    """The same, or None where only `sparsegp.load` can read the model."""
    model = model_file.read(path)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # it is tried out
            return restored(model).tried_out(model_file.own_rows(model)) if _is_light(model) else None
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise model_file.unusable(path, error) from error


def _is_light(model: Model) -> bool:
    """One posterior, of a form and under a kernel that are known here, predicts."""
    return (
        model.kind == SPARSE
        and model.posterior is not None
        and posteriors.is_known(model.posterior)
        and model.parameters["dtype"] == "float64"
        and covariance.knows(model.kernel)
    )


def restored(model: Model) -> "Predictor":
    """The predictor of a file."""
    found, codes = model.calibration, model.columns.encoding
    encoding = None if codes is None else restore_encoding(codes, model.columns.count)
    if model.posterior is None:
        raise ValueError("the model lacks its posterior")
    return Predictor(
        n_features_in_=model.columns.count if encoding is None else len(encoding.codes),
        feature_names_in_=model.columns.names,
        noise_var_=model.noise_var,
        n_samples_seen_=model.rows_seen,
        target_name_in_=model.columns.target,
        _scaling=model.scaling,
        _kernel=model.kernel,
        _posterior=posteriors.restored(model.posterior, model.kernel),
        _shape=Shape.gaussian() if found is None else calibration_parts.restored_shape(found),
        _scale=_restored_scale(model),
        _encoding=encoding,
        _completion=restore_completion(model.columns.completion, model.columns.count),
        batches=tuple(model.seen_batches or ()),
        info_={**model.info, "stages": model.learning or []},
        _kind=ESTIMATORS[model.estimator or model.kind],
        _normalize=bool(model.parameters.get("normalize", True)),
    )


def _restored_scale(model: Model) -> LocalScale | None:
    if model.calibration is None or model.calibration.scale is None:
        return None
    return calibration_parts.restored_scale(model.calibration.scale, model.columns.count)


def _finite(values: Array) -> Array:
    if not np.isfinite(values).all():
        row = np.argwhere(~np.isfinite(values))[0][0]
        raise InputError(
            f"The prediction of row {row} is not a finite number: it is too far from the rows of the fit, or the "
            "model file was altered. Look at this row of X."
        )
    return values


def _without_gaps(rows: Array) -> Array:
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise InputError(
            f"X has values that are not finite (NaN or infinity), the first in row {row}, column {column}: "
            "fill or drop those rows first."
        )
    return rows


@dataclass(frozen=True, eq=False)
class Predictor:
    """What a saved model says of new rows.

    The posterior gives mean and variance of f. y = mean + std c r, with a local scale c and a shape of r: 1 and the
    standard normal where there is no calibration.
    """

    n_features_in_: int
    """Columns of the user's table."""
    feature_names_in_: list[str] | None
    noise_var_: float
    n_samples_seen_: int
    target_name_in_: str | None = field(repr=False)
    _scaling: Scaling = field(repr=False)
    _kernel: Kernel = field(repr=False)
    _posterior: Posterior = field(repr=False)
    _shape: Shape = field(repr=False)
    _scale: LocalScale | None = field(repr=False)
    _encoding: Encoding | None = field(repr=False)
    _completion: Completion | None = field(repr=False)
    batches: tuple[str, ...] = field(repr=False)
    """Ids of the batches of rows in the model."""
    info_: dict[str, Any] = field(repr=False)
    """How the model came about."""
    _kind: str = field(repr=False)
    _normalize: bool = field(repr=False)
    _origin: Encoding | None = field(repr=False, default=None)

    @property
    def encoding(self) -> Encoding | None:
        """How the columns of a table become numbers; None where they are numbers."""
        return self._encoding

    @property
    def judged(self) -> "JudgedPredictor":
        """What reports ask of the model besides its forecasts."""
        known, scaling = self._encoding or self._origin, self._scaling
        return JudgedPredictor(
            kind=self._kind,
            origin=self._origin,
            layout=FeatureLayout.plain(self.n_features_in_) if known is None else known.layout,
            transform=self._transform,
            standardization=(scaling.input_mean, scaling.input_scale) if self._normalize else None,
            matrix=self._matrix,
            prior_std=self._prior_std,
        )

    def tried_out(self, rows: Array) -> "Predictor":
        """The same: a file that loads predicts rows of its own, and parts that do not fit together are found here."""
        scaled = self._scaled(rows)
        mean, var = self._both(scaled)
        std = self._units(scaled, mean, var) * math.sqrt(self._shape.var)
        if len(mean) != len(rows) or not np.isfinite([mean, std]).all() or not (std > 0).all():
            raise ValueError(f"the prediction of rows of its own came out as {mean}, {std}")
        return self

    def of_numbers(self) -> "Predictor":
        """The same model, of the numbers that its columns become: what looks at it sees one column for each.

        Returns
        -------
        Predictor
            A copy whose columns are these numbers. The model itself if its columns are numbers already.
        """
        if self._encoding is None:
            return self
        labels = list(self._encoding.labels)
        return replace(
            self, n_features_in_=len(labels), feature_names_in_=labels, _encoding=None, _origin=self._encoding
        )

    @property
    def takes_missing(self) -> bool:
        """Whether rows may have gaps."""
        return self._encoding is not None or self._completion is not None

    def forecast(self, X: Any) -> "Forecast | DrawnForecast | Transformed | Interleaved":
        """The distribution of y at each row of X, as one object.

        All answers come from a single pass over the rows.

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
        found = self._carried(self._completed(X))
        if self._transform is not None:  # the exponential of a number can be none
            with np.errstate(all="ignore"):
                _finite(found.mean)
                _finite(found.std)
        return found

    def _carried(self, rows: Completed) -> Forecast | DrawnForecast | Transformed | Interleaved:
        """Of y: what was learned of the transformed target is carried back."""
        transform = self._transform
        found: Forecast | DrawnForecast | Transformed | Interleaved
        if rows.is_complete:
            found = carried(self._forecast(rows.whole), transform)
            return found
        found = carried(DrawnForecast(self._forecast(rows.drawn), N_DRAWS), transform)
        if len(rows.whole):
            found = Interleaved(carried(self._forecast(rows.whole), transform), found, rows.is_whole)
        return found

    def _forecast(self, scaled: Array) -> Forecast:
        """Of the target that the model learned, before it is carried back to y."""
        mean, var = self._both(scaled)
        unit = self._units(scaled, mean, var)
        return Forecast(mean, np.minimum(np.sqrt(var), math.sqrt(self._shape.var) * unit), unit, self._shape)

    def predict(self, X: Any, return_std: bool = False, latent: bool = False) -> Any:
        """Mean of y at the rows of X, and its standard deviation on request.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows. A table must have the columns of the fit, in their order.
        return_std : bool, default=False
            Also return the standard deviation of each row.
        latent : bool, default=False
            Predict the noise-free function f instead of y, on the transformed scale if there is a `target_transform`.

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
        rows = self._completed(X) if latent or self._transform is None else None
        if rows is not None and not return_std:
            return rows.pooled(self._mean(rows.whole), self._mean(rows.drawn))
        if rows is not None and latent:
            return self._latent(rows)
        found = self.forecast(X)
        return (found.mean, found.std) if return_std else found.mean

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

    @property
    def _transform(self) -> TargetTransform | None:
        return named(self._scaling.target_transform)

    def _latent(self, rows: Completed) -> tuple[Array, Array]:
        """Mean and standard deviation of f; what the gaps of a row leave open is of f."""
        mean, var = self._both(np.concatenate([rows.whole, rows.drawn]))
        own, drawn = mean[: len(rows.whole)], mean[len(rows.whole) :]
        pooled = rows.pooled(own, drawn)
        spread = rows.pooled(np.zeros(len(own)), drawn**2) - np.where(rows.is_whole, 0.0, pooled**2)
        return pooled, np.sqrt(rows.pooled(var[: len(own)], var[len(own) :]) + np.maximum(spread, 0.0))

    def _mean(self, scaled: Array) -> Array:
        if not len(scaled):
            return np.empty(0)
        return _finite(self._posterior.mean(scaled) * self._scaling.target_scale + self._scaling.target_mean)

    def _both(self, scaled: Array) -> tuple[Array, Array]:
        """Mean and variance of f at scaled rows, in units of y or of the transformed target."""
        scale = self._scaling.target_scale
        with np.errstate(over="ignore", invalid="ignore"):  # _finite looks at what comes of it
            mean, var = self._posterior.moments(scaled)
            return _finite(mean * scale + self._scaling.target_mean), _finite(var * np.square(scale))

    def _units(self, rows: Array, mean: Array, var: Array) -> Array:
        """What r is multiplied by: the standard deviation that the posterior gives, times c."""
        std: Array = np.sqrt(var + self.noise_var_)
        if self._scale is None:
            return std
        scaling = self._scaling
        scaled = (mean - scaling.target_mean) / scaling.target_scale
        unit: Array = std * self._scale.at(rows, scaled, std / scaling.target_scale)
        return unit

    def _scaled(self, rows: Array) -> Array:
        scaled: Array = (rows - self._scaling.input_mean) / self._scaling.input_scale
        return scaled

    def _prior_std(self, X: Array) -> Array:
        """Standard deviation of f before the fit."""
        std: Array = self._scaling.target_scale * np.sqrt(covariance.diagonal(self._kernel, self._scaled(X)))
        return std

    @property
    def _columns(self) -> InputColumns:
        return InputColumns(self.feature_names_in_, self._encoding, self.target_name_in_)

    def _completed(self, X: Any) -> Completed:
        """Scaled rows; those with gaps as what they may be."""
        rows = self._rows(X)
        if self._completion is not None and not np.isinf(rows).any():
            self._columns.say_missing(rows)
            return self._completion.completed(self._scaled(rows))
        return Completed.of_whole(self._scaled(_without_gaps(rows)))

    def _matrix(self, X: Any) -> Array:
        return _without_gaps(self._rows(X))

    def _rows(self, X: Any) -> Array:
        columns = self._columns
        return columns.matrix(X) if columns.takes(X) else self._numbers(X)

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


@dataclass(frozen=True, eq=False)
class JudgedPredictor:
    """What a model without torch says of itself to those who judge it: what its forecasts need, and no more."""

    kind: str
    origin: Encoding | None
    layout: FeatureLayout
    transform: TargetTransform | None
    standardization: tuple[Array, Array] | None
    matrix: Callable[[Any], Array]
    prior_std: Callable[[Array], Array]
    is_light: ClassVar[bool] = True
    inducing: ClassVar[None] = None
    has_blocks: ClassVar[bool] = False

    def blocks_at(self, X: Array) -> None:
        return None

    def findings(self, case: Any) -> Iterator[Any]:
        return iter(())

    def findings_of_forecasts(self, case: Any) -> Iterator[Any]:
        return iter(())
