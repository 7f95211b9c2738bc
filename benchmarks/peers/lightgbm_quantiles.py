"""Peer: LightGBM, a model of the mean and one of each quantile, stopped early on held-out training rows.

Gives back the mean and the quantiles of the test rows, and the same for the held-out rows, from which the
parent fits the two constants of the density (benchmarks/quantile_density.py) and the residual deviation.
`categories` are the columns of X that are codes of categories. With `groups`, one for each row, whole groups are held
out.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import lightgbm
import numpy as np
from benchmarks.jobs import Arrays, read_job, write_result


def fit(
    train: lightgbm.Dataset, held: lightgbm.Dataset, objective: dict[str, Any], options: dict[str, Any]
) -> lightgbm.Booster:
    parameters = {**options["trees"], **objective, "verbosity": -1, "seed": 0}
    stop = lightgbm.early_stopping(options["patience"], verbose=False)
    return lightgbm.train(parameters, train, options["max_rounds"], valid_sets=[held], callbacks=[stop])


def split(n_rows: int, held_fraction: float, groups: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from and rows held out."""
    if groups is not None:
        kept, held = split(int(groups.max()) + 1, held_fraction)
        return np.flatnonzero(np.isin(groups, kept)), np.flatnonzero(np.isin(groups, held))
    order = np.random.default_rng(0).permutation(n_rows)
    n_held = max(1, round(held_fraction * n_rows))
    return order[n_held:], order[:n_held]


def fit_and_predict(problem: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    start, start_cpu = time.perf_counter(), time.process_time()
    X, y, X_test = problem["X"], problem["y"], problem["X_test"]
    rows, held_rows = split(len(X), options["held_fraction"], problem.get("groups"))
    categories = problem["categories"].tolist() if "categories" in problem else "auto"
    params = {"max_bin": options["trees"]["max_bin"]}
    train = lightgbm.Dataset(X[rows], y[rows], params=params, categorical_feature=categories)
    held = lightgbm.Dataset(X[held_rows], y[held_rows], reference=train)
    mean = fit(train, held, {"objective": "l2"}, options)
    mean_seconds = time.perf_counter() - start
    quantiles = [fit(train, held, {"objective": "quantile", "alpha": q}, options) for q in options["levels"]]
    fitted, fitted_cpu = time.perf_counter(), time.process_time()
    arrays = {
        "mean": mean.predict(X_test),
        "quantiles": np.column_stack([model.predict(X_test) for model in quantiles]),
        "held_y": y[held_rows],
        "held_mean": mean.predict(X[held_rows]),
        "held_quantiles": np.column_stack([model.predict(X[held_rows]) for model in quantiles]),
    }
    facts = {
        "seconds": fitted - start,
        "cpu_seconds": fitted_cpu - start_cpu,
        "mean_seconds": mean_seconds,
        "predict_seconds": time.perf_counter() - fitted,
        "mean_rounds": mean.best_iteration,
        "quantile_rounds": [model.best_iteration for model in quantiles],
        "version": lightgbm.__version__,
    }
    return facts, arrays


if __name__ == "__main__":
    write_result(sys.argv[1], *fit_and_predict(*read_job(sys.argv[1])))
