"""Peer: CatBoost with a mean and a variance for each row (RMSEWithUncertainty), stopped early on held-out rows."""

from __future__ import annotations

import sys
import time
from typing import Any

import catboost
import numpy as np
from benchmarks.jobs import Arrays, read_job, write_result


def fit_and_predict(problem: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    start, start_cpu = time.perf_counter(), time.process_time()
    X, y = problem["X"], problem["y"]
    order = np.random.default_rng(0).permutation(len(X))
    held, rows = np.split(order, [max(1, round(options["held_fraction"] * len(X)))])
    model = catboost.CatBoostRegressor(
        loss_function="RMSEWithUncertainty",
        learning_rate=options.get("learning_rate"),
        iterations=options["max_rounds"],
        early_stopping_rounds=options["patience"],
        thread_count=1,
        random_seed=0,
        verbose=False,
        allow_writing_files=False,
    )
    model.fit(X[rows], y[rows], eval_set=(X[held], y[held]))
    fitted, fitted_cpu = time.perf_counter(), time.process_time()
    mean, var = model.predict(problem["X_test"], prediction_type="RMSEWithUncertainty").T
    facts = {
        "seconds": fitted - start,
        "cpu_seconds": fitted_cpu - start_cpu,
        "predict_seconds": time.perf_counter() - fitted,
        "rounds": model.get_best_iteration(),
        "version": catboost.__version__,
    }
    return facts, {"mean": mean, "std": np.sqrt(var)}


if __name__ == "__main__":
    write_result(sys.argv[1], *fit_and_predict(*read_job(sys.argv[1])))
