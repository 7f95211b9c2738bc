"""Peer: quantile-forest, a random forest whose leaves keep targets; the size of leaves is chosen out of the bag.

All training rows grow the trees. Quantiles out of the bag of some of these rows choose the least size of a leaf (by
the pinball loss) and give the two constants of the density (benchmarks/quantile_density.py).
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import quantile_forest
from benchmarks.jobs import Arrays, read_job, write_result
from quantile_forest import RandomForestQuantileRegressor
from sklearn.ensemble import RandomForestRegressor


def pinball_loss(y: np.ndarray, quantiles: np.ndarray, levels: np.ndarray) -> float:
    gap = y[:, None] - quantiles
    return float(np.maximum(levels * gap, (levels - 1.0) * gap).mean())


def fit_and_predict(problem: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    start, start_cpu = time.perf_counter(), time.process_time()
    X, y, X_test = problem["X"], problem["y"], problem["X_test"]
    levels = options["levels"]
    held = np.random.default_rng(0).permutation(len(X))[: options["held_rows"]]
    tried = []
    for least in options["min_samples_leaf"]:
        model = RandomForestQuantileRegressor(options["n_trees"], min_samples_leaf=least, n_jobs=1, random_state=0)
        model.fit(X, y)
        quantiles = model.predict(X[held], quantiles=levels, oob_score=True, indices=held.tolist())
        known = np.isfinite(quantiles).all(axis=1)
        loss = pinball_loss(y[held[known]], quantiles[known], np.array(levels))
        tried.append((loss, least, model, held[known], quantiles[known]))
    _, least, model, held, held_quantiles = min(tried, key=lambda entry: entry[0])
    fitted, fitted_cpu = time.perf_counter(), time.process_time()
    arrays = {
        # the mean of whole leaves: that of quantile-forest has one target of each leaf
        "mean": RandomForestRegressor.predict(model, X_test),
        "quantiles": model.predict(X_test, quantiles=levels),
        "held_y": y[held],
        "held_mean": model.predict(X[held], quantiles="mean", oob_score=True, indices=held.tolist()),
        "held_quantiles": held_quantiles,
    }
    facts = {
        "seconds": fitted - start,
        "cpu_seconds": fitted_cpu - start_cpu,
        "predict_seconds": time.perf_counter() - fitted,
        "chosen": {"min_samples_leaf": least},
        "version": quantile_forest.__version__,
    }
    return facts, arrays


if __name__ == "__main__":
    write_result(sys.argv[1], *fit_and_predict(*read_job(sys.argv[1])))
