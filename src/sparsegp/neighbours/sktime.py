"""A forecaster of sktime: the last values of a series are the columns of a regression, one for each step ahead."""

from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from sklearn.base import clone
from sktime.forecasting.base import BaseForecaster

from sparsegp.core.predictive import Array, Predictive
from sparsegp.errors import InputError
from sparsegp.estimators.checks import positive_count
from sparsegp.estimators.estimator import Estimator
from sparsegp.estimators.sparse import SparseGPRegressor

__all__ = ["ReductionForecaster"]

FEWEST_ROWS = 2


class ReductionForecaster(BaseForecaster):  # type: ignore[misc]
    """Forecasts with intervals by direct reduction: y[t + h] from y[t], ..., y[t - window + 1], one model for each h.

    Intervals and quantiles are those of the models, so they widen with the horizon as far as the series says. Values
    between the horizons are not sampled together.

    Parameters
    ----------
    estimator : SparseGPRegressor, HeteroscedasticGPRegressor or CommitteeGPRegressor, optional
        It is cloned for each step ahead. None is `SparseGPRegressor()`.
    window_length : int, default 10
        How many values a forecast looks back on.

    Attributes
    ----------
    estimators_ : dict
        The fitted model of each step ahead.

    Examples
    --------
    >>> from sparsegp.neighbours.sktime import ReductionForecaster  # doctest: +SKIP
    >>> forecaster = ReductionForecaster(window_length=12).fit(y, fh=[1, 2, 3])  # doctest: +SKIP
    >>> forecaster.predict_interval(coverage=0.9)  # doctest: +SKIP
    """

    _tags: ClassVar[dict[str, Any]] = {
        "y_inner_mtype": "pd.Series",
        "X_inner_mtype": "pd.DataFrame",
        "capability:multivariate": False,
        "capability:exogenous": False,
        "capability:insample": False,
        "capability:pred_int": True,
        "capability:pred_int:insample": False,
        "capability:missing_values": False,
        "requires-fh-in-fit": True,
        "python_dependencies": None,
    }

    def __init__(self, estimator: Any = None, window_length: int = 10) -> None:
        self.estimator = estimator
        self.window_length = window_length
        super().__init__()

    def _fit(self, y: Any, X: Any = None, fh: Any = None) -> Self:
        own = SparseGPRegressor() if self.estimator is None else self.estimator
        if not isinstance(own, Estimator):
            raise InputError(
                "estimator must be a SparseGPRegressor, HeteroscedasticGPRegressor or CommitteeGPRegressor, or None; "
                f"got {type(own).__name__}."
            )
        values = y.to_numpy(dtype=np.float64)
        self.estimators_ = {ahead: clone(own).fit(*self._rows(values, ahead)) for ahead in self._steps(fh)}
        self._name = y.name
        self._last_values = values[-self.window_length :]
        return self

    def _rows(self, values: Array, ahead: int) -> tuple[Array, Array]:
        """The values before each time, oldest first, and the value so many steps after it."""
        window = positive_count("window_length", self.window_length)
        n_rows = len(values) - window - ahead + 1
        if n_rows < FEWEST_ROWS:
            raise InputError(
                f"A series of {len(values)} values has {max(n_rows, 0)} examples of {window} values and the one "
                f"{ahead} steps later; at least {FEWEST_ROWS} are needed. Take a smaller window_length or a nearer "
                "horizon."
            )
        before = np.lib.stride_tricks.sliding_window_view(values, window)[:n_rows]
        return np.ascontiguousarray(before), values[window + ahead - 1 :]

    def _steps(self, fh: Any) -> list[int]:
        """Steps ahead of the last value, which must be ahead of it."""
        steps = [int(step) for step in fh.to_relative(self.cutoff).to_pandas()]
        if min(steps) < 1:
            raise NotImplementedError(
                f"ReductionForecaster forecasts steps ahead of the series; got {steps}. Ask the estimators themselves "
                "about what they were fitted to: their loo() leaves rows out."
            )
        return steps

    def _forecasts(self, fh: Any) -> list[Predictive]:
        return [self.estimators_[ahead].forecast(self._last_values[None]) for ahead in self._steps(fh)]

    def _index(self, fh: Any) -> Any:
        return fh.to_absolute_index(self.cutoff)

    def _predict(self, fh: Any, X: Any = None) -> Any:
        means = [float(forecast.mean[0]) for forecast in self._forecasts(fh)]
        return pd.Series(means, index=self._index(fh), name=self._name)

    def _predict_quantiles(self, fh: Any, X: Any, alpha: Any) -> Any:
        levels = np.asarray(alpha, dtype=np.float64)
        rows = np.vstack([forecast.quantiles(levels) for forecast in self._forecasts(fh)])
        columns = self._get_columns(method="predict_quantiles", alpha=alpha)
        return pd.DataFrame(rows, index=self._index(fh), columns=columns)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> Any:
        """Parameters for the contract tests of sktime, which are fitted in a moment."""
        quick: dict[str, Any] = {"kernel": "se", "optimizer": None, "noise_var": 0.1}
        return [
            {"estimator": SparseGPRegressor(approximation="exact", **quick), "window_length": 3},
            {"estimator": SparseGPRegressor(approximation="vfe", n_inducing=5, **quick), "window_length": 2},
        ]
