"""Worker: the default estimator within a time budget, and what its forecasts say of the test rows.

With `kernel` "great_circle" X has longitude and latitude, and the rest is chosen as ever.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from benchmarks.jobs import Arrays, read_job, write_result

from sparsegp import SparseGPRegressor, kernels


def fit_and_predict(arrays: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    return measured(arrays["X"], arrays["y"], arrays["X_test"], arrays["y_test"], options)


def measured(
    X: Any, y: np.ndarray, X_test: Any, y_test: np.ndarray, options: dict[str, Any]
) -> tuple[dict[str, Any], Arrays]:
    """X is a matrix or a table."""
    started, started_cpu = time.perf_counter(), time.process_time()
    kernel = kernels.GreatCircle() if options.get("kernel") == "great_circle" else "auto"
    model = SparseGPRegressor(kernel, time_budget=options["time_budget"], random_state=0).fit(X, y)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - started_cpu
    forecast = model.forecast(X_test)
    ends = np.stack([np.stack(forecast.interval(level)) for level in options["coverages"]])
    info = model.info_
    facts = {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
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
