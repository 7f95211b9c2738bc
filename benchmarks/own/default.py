"""Worker: the default estimator within a time budget, and what its forecasts say of the test rows."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from benchmarks.jobs import Arrays, read_job, write_result

from sparsegp import SparseGPRegressor


def fit_and_predict(arrays: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    return measured(arrays["X"], arrays["y"], arrays["X_test"], arrays["y_test"], options)


def measured(
    X: Any, y: np.ndarray, X_test: Any, y_test: np.ndarray, options: dict[str, Any]
) -> tuple[dict[str, Any], Arrays]:
    """X is a matrix or a table."""
    started = time.perf_counter()
    model = SparseGPRegressor(time_budget=options["time_budget"], random_state=0).fit(X, y)
    seconds = time.perf_counter() - started
    forecast = model.forecast(X_test)
    ends = np.stack([np.stack(forecast.interval(level)) for level in options["coverages"]])
    info = model.info_
    facts = {
        "seconds": seconds,
        "predict_seconds": time.perf_counter() - started - seconds,
        "kernel": type(model.kernel_).__name__,
        "approximation": model.model_.approx.name,
        "n_inducing": len(model.model_.inducing),
        "trend": info.get("trend"),
        "calibration": info.get("calibration", {}),
        "fraction": info["budget"]["fraction"],
        "reason": info["choice"]["reason"],
    }
    log_density, crps = forecast.log_density(y_test), forecast.crps(y_test)
    return facts, {"mean": forecast.mean, "log_density": log_density, "crps": crps, "ends": ends}


if __name__ == "__main__":
    write_result(sys.argv[1], *fit_and_predict(*read_job(sys.argv[1])))
