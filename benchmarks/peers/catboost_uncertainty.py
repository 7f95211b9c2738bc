"""Peer: CatBoost with a mean and a variance for each row (RMSEWithUncertainty), stopped early on held-out rows.

`categories` are the columns of X that are codes of categories.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import catboost
import numpy as np
import pandas as pd
from benchmarks.jobs import Arrays, read_job, write_result


def columns(problem: Arrays, name: str) -> pd.DataFrame:
    """Codes as text, for missing values, too: what CatBoost takes for categories."""
    frame = pd.DataFrame(problem[name])
    for k in problem.get("categories", ()):
        frame[k] = frame[k].fillna(-1).astype(int).astype(str)
    return frame


def fit_and_predict(problem: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    start, start_cpu = time.perf_counter(), time.process_time()
    X, X_test, y = columns(problem, "X"), columns(problem, "X_test"), problem["y"]
    order = np.random.default_rng(0).permutation(len(X))
    held, rows = np.split(order, [max(1, round(options["held_fraction"] * len(X)))])
    model = catboost.CatBoostRegressor(
        loss_function="RMSEWithUncertainty",
        learning_rate=options.get("learning_rate"),
        iterations=options["max_rounds"],
        early_stopping_rounds=options["patience"],
        thread_count=options.get("threads", 1),
        cat_features=problem.get("categories", np.zeros(0, dtype=int)).tolist(),
        random_seed=0,
        verbose=False,
        allow_writing_files=False,
    )
    model.fit(X.iloc[rows], y[rows], eval_set=(X.iloc[held], y[held]))
    fitted, fitted_cpu = time.perf_counter(), time.process_time()
    mean, var = model.predict(X_test, prediction_type="RMSEWithUncertainty").T
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
