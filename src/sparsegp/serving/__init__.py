"""Predictions from a saved model without torch and scikit-learn: a process that starts, predicts and ends at once.

For `SparseGPRegressor` with any approximation but Nystrom, fitted in float64, with kernels of this package.
"""

from sparsegp.serving.forecasts import Forecast
from sparsegp.serving.predictor import Predictor, load, load_if_light

__all__ = ["Forecast", "Predictor", "load", "load_if_light"]
