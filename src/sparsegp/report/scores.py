"""Headline scores of a model on rows with known targets, by its own predictive distribution."""

import math
from typing import Any

import numpy as np
from scipy.special import ndtr

from sparsegp import metrics
from sparsegp.estimators.predicting.mixture import CHUNK_ROWS, MixturePredictions, NoiseMixture
from sparsegp.estimators.predicting.predictions import Array


def scores(model: Any, X: Array, y: Array) -> dict[str, float]:
    """RMSE, R^2, NLPD, CRPS, and coverage and mean width of the 95 % interval."""
    mean, std = model.predict(X, return_std=True)
    lower, upper = model.predict_interval(X, 0.95)
    model = model.plain()
    is_mixture = isinstance(model, MixturePredictions)
    rmse = metrics.rmse(y, mean)
    return {
        "rmse": rmse,
        "r2": 1.0 - rmse**2 / float(y.var()) if y.var() > 0 else math.nan,
        "nlpd": -float(np.mean(model.log_density(X, y))),
        "crps": mixture_crps(model._mixture(X, None), y) if is_mixture else metrics.crps(y, mean, std),
        "coverage_95": metrics.interval_coverage(y, lower, upper),
        "width_95": metrics.interval_width(lower, upper),
    }


def mixture_crps(mixture: NoiseMixture, y: Array) -> float:
    """E|Y - y| - E|Y - Y'|/2 of a mixture sum_j w_j N(m, v_j), in closed form.

    E|N(a, v)| = a (2 Phi(a/s) - 1) + 2 s phi(a/s) with s^2 = v; Y - Y' has the parts N(0, v_i + v_j).
    """
    total = 0.0
    for start in range(0, len(y), CHUNK_ROWS // 16):
        index = slice(start, start + CHUNK_ROWS // 16)
        var, log_weight = mixture.parts(index)
        weight, std = np.exp(log_weight), np.sqrt(var)
        gap = (y[index] - mixture.f_mean[index])[:, None]
        density = np.exp(-0.5 * (gap / std) ** 2) / math.sqrt(2.0 * math.pi)
        distance = (gap * (2.0 * ndtr(gap / std) - 1.0) + 2.0 * std * density) @ weight
        pairs = np.sqrt(var[:, :, None] + var[:, None, :]) @ weight @ weight
        total += float((distance - pairs / math.sqrt(2.0 * math.pi)).sum())
    return total / len(y)
