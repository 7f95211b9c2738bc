"""Estimators of this package as probabilistic regressors of skpro, with forecasts as its distributions."""

from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from sklearn.base import clone
from skpro.distributions.normal_mixture import NormalMixture
from skpro.regression.base import BaseProbaRegressor

from sparsegp.core.predictive import Predictive, mean_size
from sparsegp.errors import InputError
from sparsegp.estimators.estimator import Estimator
from sparsegp.estimators.sparse import SparseGPRegressor

__all__ = ["ForecastDistribution", "ProbaRegressor"]


class ForecastDistribution(NormalMixture):  # type: ignore[misc]
    """A mixture of normal distributions at each row: the forecast itself, no approximation of it.

    Parameters
    ----------
    pi : array [rows, parts]
        Weights of the parts.
    mu, sigma : arrays [rows, parts]
        Mean and standard deviation of each part.
    index, columns : pd.Index, optional

    Examples
    --------
    >>> from sparsegp.neighbours.skpro import ForecastDistribution
    >>> parts = ForecastDistribution(pi=[[0.5, 0.5]], mu=[[0.0, 2.0]], sigma=[[1.0, 1.0]])
    >>> float(parts.mean().iloc[0, 0])
    1.0
    """

    @classmethod
    def of(cls, forecast: Predictive, index: Any, columns: Any) -> Self:
        """The distribution of a forecast."""
        parts = forecast.parts(slice(None))
        offset = np.zeros_like(parts.var) if parts.offset is None else parts.offset
        weight = np.broadcast_to(np.exp(parts.log_weight), parts.var.shape)
        return cls(weight, parts.centre[:, None] + offset, np.sqrt(parts.var), index, columns)

    def _energy_self(self) -> Any:
        """E|X - Y| of two independent draws: X - Y has the parts N(mu_i - mu_j, sigma_i^2 + sigma_j^2)."""
        mean = self._mu[:, :, None, :] - self._mu[:, None, :, :]
        std = np.sqrt(self._sigma[:, :, None, :] ** 2 + self._sigma[:, None, :, :] ** 2)
        pairs = mean_size(mean, std)
        energy = np.einsum("ni,nj,nijk->nk", self._pi, self._pi, pairs)
        return float(energy.sum()) if self.ndim == 0 else energy.sum(axis=1, keepdims=True)

    def _iloc(self, rowidx: Any = None, colidx: Any = None) -> Any:
        part = super()._iloc(rowidx, colidx)
        return part if isinstance(part, type(self)) else self._like(part)

    def _iat(self, rowidx: Any = None, colidx: Any = None) -> Any:
        return self._like(super()._iat(rowidx, colidx))

    def _like(self, part: Any) -> Self:
        return type(self)(part.pi, part.mu, part.sigma, part.index, part.columns)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> Any:
        """Distributions for the contract tests of skpro: three rows, and a single value."""
        rows = {
            "pi": np.array([[0.3, 0.7], [0.5, 0.5], [0.8, 0.2]]),
            "mu": np.array([[0.0, 3.0], [1.0, -1.0], [2.0, 2.5]]),
            "sigma": np.array([[1.0, 0.5], [2.0, 1.0], [0.3, 1.5]]),
        }
        named = {**rows, "index": pd.Index([1, 2, 5]), "columns": pd.Index(["a"])}
        return [rows, named, {"pi": np.array([0.4, 0.6]), "mu": np.array([0.0, 3.0]), "sigma": np.array([1.0, 2.0])}]


class ProbaRegressor(BaseProbaRegressor):  # type: ignore[misc]
    """A regressor of skpro that predicts with an estimator of this package.

    Parameters
    ----------
    estimator : SparseGPRegressor, HeteroscedasticGPRegressor or CommitteeGPRegressor, optional
        It is cloned before it is fitted. None is `SparseGPRegressor()`.

    Attributes
    ----------
    estimator_ : the fitted estimator.

    Examples
    --------
    >>> from sparsegp.neighbours.skpro import ProbaRegressor  # doctest: +SKIP
    >>> ProbaRegressor().fit(X, y).predict_proba(X_new).ppf(0.9)  # doctest: +SKIP
    """

    _tags: ClassVar[dict[str, Any]] = {
        "capability:multioutput": False,
        "capability:missing": False,
        "X_inner_mtype": "pd_DataFrame_Table",
        "y_inner_mtype": "pd_DataFrame_Table",
    }

    def __init__(self, estimator: Any = None) -> None:
        self.estimator = estimator
        super().__init__()

    def _fit(self, X: Any, y: Any, C: Any = None) -> Self:
        own = SparseGPRegressor() if self.estimator is None else self.estimator
        if not isinstance(own, Estimator):
            raise InputError(
                "estimator must be a SparseGPRegressor, HeteroscedasticGPRegressor or CommitteeGPRegressor, or None; "
                f"got {type(own).__name__}."
            )
        self._target_columns = y.columns
        self.estimator_ = clone(own).fit(_with_text_names(X), y.to_numpy()[:, 0])
        return self

    def _predict(self, X: Any) -> Any:
        mean = self.estimator_.predict(_with_text_names(X))
        return pd.DataFrame(mean[:, None], index=X.index, columns=self._target_columns)

    def _predict_proba(self, X: Any) -> ForecastDistribution:
        return ForecastDistribution.of(self.estimator_.forecast(_with_text_names(X)), X.index, self._target_columns)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> Any:
        """Estimators for the contract tests of skpro, which are fitted in a moment."""
        fixed: dict[str, Any] = {"kernel": "se", "optimizer": None, "noise_var": 0.1}
        exact = SparseGPRegressor(approximation="exact", **fixed)
        return [{"estimator": exact}, {"estimator": SparseGPRegressor(approximation="vfe", n_inducing=10, **fixed)}]


def _with_text_names(X: Any) -> Any:
    """scikit-learn takes names of columns that are text, or none."""
    return X.set_axis(X.columns.astype(str), axis=1)
