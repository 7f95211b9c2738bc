"""Peer: LightGBM quantiles with MAPIE's conformalised quantile regression: one correction for each central interval.

The rows that stop the trees and the rows that conformalise are two parts of the training rows. Each pair of levels
around the median is corrected by MAPIE; quantiles that cross afterwards are sorted by the parent. The rows that
conformalise also give the two constants of the density (benchmarks/quantile_density.py).
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

import lightgbm
import mapie
import numpy as np
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.peers.lightgbm_quantiles import split
from mapie.regression import ConformalizedQuantileRegressor

Rows = tuple[np.ndarray, np.ndarray]


def fit(train: Rows, stop: Rows, objective: dict[str, Any], options: dict[str, Any]) -> lightgbm.LGBMRegressor:
    model = lightgbm.LGBMRegressor(
        **options["trees"], **objective, n_estimators=options["max_rounds"], random_state=0, verbosity=-1
    )
    return model.fit(*train, eval_set=[stop], callbacks=[lightgbm.early_stopping(options["patience"], verbose=False)])


def conformal_quantiles(
    models: dict[float, lightgbm.LGBMRegressor], conform: Rows, *X: np.ndarray
) -> tuple[np.ndarray, ...]:
    """For each X the quantiles of all levels, every pair corrected."""
    found = [{0.5: models[0.5].predict(rows)} for rows in X]
    for low in (level for level in models if level < 0.5):
        high = round(1.0 - low, 6)
        pair = ConformalizedQuantileRegressor(
            [models[low], models[high], models[0.5]], confidence_level=round(high - low, 6), prefit=True
        ).conformalize(*conform)
        for quantiles, rows in zip(found, X, strict=True):
            quantiles[low], quantiles[high] = pair.predict_interval(rows)[1][:, :, 0].T
    return tuple(np.column_stack([quantiles[level] for level in models]) for quantiles in found)


def fit_and_predict(problem: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    warnings.filterwarnings("ignore", message=".*quantile predictions.*")
    start, start_cpu = time.perf_counter(), time.process_time()
    X, y, X_test = problem["X"], problem["y"], problem["X_test"]
    rest, conform_rows = split(len(X), options["conform_fraction"])
    order, stop_rows = split(len(rest), options["held_fraction"])
    train, stop, conform = ((X[rows], y[rows]) for rows in (rest[order], rest[stop_rows], conform_rows))
    mean = fit(train, stop, {"objective": "l2"}, options)
    models = {q: fit(train, stop, {"objective": "quantile", "alpha": q}, options) for q in options["levels"]}
    fitted, fitted_cpu = time.perf_counter(), time.process_time()
    quantiles, held_quantiles = conformal_quantiles(models, conform, X_test, conform[0])
    arrays = {
        "mean": mean.predict(X_test),
        "quantiles": quantiles,
        "held_y": conform[1],
        "held_mean": mean.predict(conform[0]),
        "held_quantiles": held_quantiles,
    }
    facts = {
        "seconds": fitted - start,
        "cpu_seconds": fitted_cpu - start_cpu,
        "predict_seconds": time.perf_counter() - fitted,
        "version": f"{lightgbm.__version__}, MAPIE {mapie.__version__}",
    }
    return facts, arrays


if __name__ == "__main__":
    write_result(sys.argv[1], *fit_and_predict(*read_job(sys.argv[1])))
