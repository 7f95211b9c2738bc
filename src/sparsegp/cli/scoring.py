"""Scores of a fitted model on rows with known targets, by its own predictive distribution."""

from typing import Any

import numpy as np

from sparsegp.cli.tables import Chunk

LEVELS = np.arange(1, 100) / 100


def scores(model: Any, rows: Chunk) -> dict[str, float]:
    """RMSE, NLPD, CRPS, and coverage and width of the 95 % interval; of the mixture where noise is uncertain."""
    from sparsegp import metrics
    from sparsegp.estimators.mixture import MixturePredictions

    assert rows.y is not None
    mean, std = model.predict(rows.X, return_std=True)
    lower, upper = model.predict_interval(rows.X, 0.95)
    if isinstance(model, MixturePredictions):
        crps = metrics.crps_from_quantiles(rows.y, model.predict_quantiles(rows.X, LEVELS), LEVELS)
    else:
        crps = metrics.crps(rows.y, mean, std)
    return {
        "rmse": metrics.rmse(rows.y, mean),
        "nlpd": -float(np.mean(model.log_density(rows.X, rows.y))),
        "crps": crps,
        "coverage_95": metrics.interval_coverage(rows.y, lower, upper),
        "width_95": metrics.interval_width(lower, upper),
    }
