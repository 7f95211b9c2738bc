"""Headline scores of a model on rows with known targets, by its own predictive distribution."""

import math
from typing import Any

from sparsegp import metrics
from sparsegp.core.predictive import Array


def scores(model: Any, X: Array, y: Array) -> dict[str, float]:
    """RMSE, R^2, NLPD, CRPS, and coverage and mean width of the 95% interval."""
    forecast = model.forecast(X)
    lower, upper = forecast.interval(0.95)
    rmse = metrics.rmse(y, forecast.mean)
    return {
        "rmse": rmse,
        "r2": 1.0 - rmse**2 / float(y.var()) if y.var() > 0 else math.nan,
        "nlpd": -float(forecast.log_density(y).mean()),
        "crps": float(forecast.crps(y).mean()),
        "coverage_95": metrics.interval_coverage(y, lower, upper),
        "width_95": metrics.interval_width(lower, upper),
    }
