"""What every estimator is to scikit-learn, and what it can do whatever its model: predict, save, diagnose."""

from abc import abstractmethod
from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from sparsegp.errors import InputError
from sparsegp.estimators.diagnosis import DiagnosisMixin
from sparsegp.estimators.incoming import clusters
from sparsegp.estimators.predictive import Array, Joint, Predictive
from sparsegp.estimators.progress import CallbackSupportMixin
from sparsegp.estimators.saving.persistence import PersistenceMixin

Own = TypeVar("Own")
Given = ParamSpec("Given")
Result = TypeVar("Result")

ROW_BY_ROW = "Of a dask collection there are predictions row by row: no return_cov, no blocks=."


def all_or_nothing(
    method: Callable[Concatenate[Own, Given], Result],
) -> Callable[Concatenate[Own, Given], Result]:
    """A method that leaves its object as it was if an error or an interrupt ends it."""

    @wraps(method)
    def guarded(self: Own, /, *arguments: Given.args, **named: Given.kwargs) -> Result:
        before = dict(vars(self))
        try:
            return method(self, *arguments, **named)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return guarded


class Estimator(CallbackSupportMixin, PersistenceMixin, DiagnosisMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn regressor with callbacks, predictions of every kind, `save`, `diagnose` and `to_local`.

    An estimator only says how its model makes a forecast: of each row, and of all rows together.
    """

    @abstractmethod
    def _forecast(self, X: Any, blocks: ArrayLike | None) -> Predictive:
        """The forecast of y at each row of X, in the user's units."""

    @abstractmethod
    def _joint(self, X: Any, blocks: ArrayLike | None) -> Joint:
        """The forecast of y at all rows of X together, in the user's units."""

    def forecast(self, X: Any, latent: bool = False, blocks: ArrayLike | None = None) -> Predictive:
        """The distribution of y (`latent=True`: of f) at each row of X, as one object.

        It answers `mean`, `std`, `interval`, `quantiles`, `log_density`, `cdf`, `crps` and `sample`, all from a single
        pass over the rows. `blocks` is as for `predict`.
        """
        forecast = self._forecast(X, blocks)
        return forecast.latent if latent else forecast

    def joint_forecast(self, X: Any, latent: bool = False, blocks: ArrayLike | None = None) -> Joint:
        """The distribution of y (`latent=True`: of f) at all rows of X together: `mean`, `cov` and `sample`."""
        joint = self._joint(X, blocks)
        return joint.latent if latent else joint

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        latent: bool = False,
        blocks: ArrayLike | None = None,
    ) -> Any:
        """Mean of y at the rows of X, with its standard deviation or joint covariance on request.

        `latent=True` speaks of the noise-free function f instead of y. `blocks` gives the block label of each row for
        the approximations that have blocks; by default it is found from the row itself. Of a dask collection the
        answers are dask arrays, computed when asked for.
        """
        if clusters.is_dask(X):
            if return_cov:
                raise InputError(ROW_BY_ROW)
            if not return_std:
                return self._lazy(X, blocks, 1, lambda forecast: (forecast.mean,), latent)[:, 0]
            table = self._lazy(X, blocks, 2, lambda forecast: (forecast.mean, forecast.std), latent)
            return table[:, 0], table[:, 1]
        if return_std and return_cov:
            raise InputError(
                "Ask for return_std or return_cov, not both: the std is the root of the covariance's diagonal."
            )
        if return_cov:
            joint = self.joint_forecast(X, latent, blocks)
            return joint.mean, joint.cov
        forecast = self.forecast(X, latent, blocks)
        return (forecast.mean, forecast.std) if return_std else forecast.mean

    def predict_components(self, X: Any, blocks: ArrayLike | None = None) -> tuple[Array, Array, Array]:
        """Mean of y, epistemic std (what more data would remove) and aleatoric std (the noise)."""
        forecast = self.forecast(X, blocks=blocks)
        return forecast.mean, forecast.f_std, forecast.noise_std

    def predict_quantiles(self, X: Any, q: ArrayLike, blocks: ArrayLike | None = None) -> Any:
        """Quantiles of y: one column for each level in q."""
        if clusters.is_dask(X):
            return self._lazy(X, blocks, np.size(q), lambda forecast: (forecast.quantiles(q),))
        return self.forecast(X, blocks=blocks).quantiles(q)

    def predict_interval(self, X: Any, coverage: float = 0.95, blocks: ArrayLike | None = None) -> tuple[Any, Any]:
        """Lower and upper end of the central interval that holds y with probability `coverage`."""
        if clusters.is_dask(X):
            table = self._lazy(X, blocks, 2, lambda forecast: forecast.interval(coverage))
            return table[:, 0], table[:, 1]
        return self.forecast(X, blocks=blocks).interval(coverage)

    def log_density(self, X: Any, y: ArrayLike, blocks: ArrayLike | None = None) -> Array:
        """Log density of each target under its prediction; minus its mean is the NLPD."""
        return self.forecast(X, blocks=blocks).log_density(y)

    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: Any = None,
        latent: bool = False,
        blocks: ArrayLike | None = None,
    ) -> Array:
        """Joint samples of y (or f) at the rows of X: an array [rows, n_samples]."""
        return self.joint_forecast(X, latent, blocks).sample(n_samples, np.random.default_rng(random_state))

    def _lazy(
        self,
        X: Any,
        blocks: ArrayLike | None,
        n_columns: int,
        ask: Callable[[Predictive], tuple[Array, ...]],
        latent: bool = False,
    ) -> Any:
        """What is asked of the forecast of a dask collection, as a dask array with a line for each row."""
        if blocks is not None:
            raise InputError(ROW_BY_ROW)
        return clusters.distributed().lazy_predictions(self, X, latent, n_columns, ask)

    def plain(self) -> Any:
        """The estimator whose fitted state this one's predictions come from: itself, unless it has chosen another."""
        return self

    def to_local(self) -> Self:
        """A fitted copy for this process alone: it needs no cluster and no dask, wherever it was fitted."""
        check_is_fitted(self)
        return deepcopy(self)
