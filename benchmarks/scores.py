"""Scores of one method on one dataset: the same functions for Gaussian predictions and for quantiles."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from benchmarks.jobs import Arrays
from benchmarks.quantile_density import fit_quantile_density

from sparsegp.metrics import crps, crps_from_quantiles, interval_coverage, nlpd, rmse

COVERAGE = 0.95


def gaussian_scores(y: np.ndarray, arrays: Arrays) -> dict[str, float]:
    """Scores of Gaussian predictions; the NLPD of a model that gives its own density is that of its density."""
    mean, std = arrays["mean"], arrays["std"]
    half_width = NormalDist().inv_cdf(0.5 + COVERAGE / 2.0) * std
    return {
        "rmse": rmse(y, mean),
        "nlpd": -float(arrays["log_density"].mean()) if "log_density" in arrays else nlpd(y, mean, std),
        "crps": crps(y, mean, std),
        "coverage_95": interval_coverage(y, mean - half_width, mean + half_width),
    }


def quantile_scores(y: np.ndarray, arrays: Arrays, levels: list[float]) -> dict[str, float]:
    """NLPD of the density between the quantiles; `gaussian_nlpd`: one residual deviation for all rows."""
    quantiles = np.sort(arrays["quantiles"], axis=1)
    density = fit_quantile_density(np.array(levels), arrays["held_y"], arrays["held_quantiles"])
    residual_std = np.full(len(y), rmse(arrays["held_y"], arrays["held_mean"]))
    return {
        "rmse": rmse(y, arrays["mean"]),
        "nlpd": float(-density.log_density(y, quantiles).mean()),
        "crps": crps_from_quantiles(y, quantiles, levels),
        "coverage_95": interval_coverage(y, quantiles[:, 0], quantiles[:, -1]),
        "gaussian_nlpd": nlpd(y, arrays["mean"], residual_std),
        "min_width": density.min_width,
        "tail_scale": density.tail_scale,
    }


def mixture_scores(y: np.ndarray, arrays: Arrays, levels: list[float]) -> dict[str, float]:
    """Of a density that is not Gaussian; `gaussian_nlpd`: of the Gaussian with its mean and deviation."""
    quantiles = arrays["quantiles"]
    return {
        "rmse": rmse(y, arrays["mean"]),
        "nlpd": float(-arrays["log_density"].mean()),
        "gaussian_nlpd": nlpd(y, arrays["mean"], arrays["std"]),
        "crps": crps_from_quantiles(y, quantiles, levels),
        "coverage_95": interval_coverage(y, quantiles[:, 0], quantiles[:, -1]),
    }
