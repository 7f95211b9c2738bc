"""Worker: the default estimator within a time budget, and what its forecasts say of the test rows."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from benchmarks.jobs import Arrays, read_job, write_result

from sparsegp import SparseGPRegressor


def fit_and_predict(arrays: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    started = time.perf_counter()
    model = SparseGPRegressor(time_budget=options["time_budget"], random_state=0).fit(arrays["X"], arrays["y"])
    seconds = time.perf_counter() - started
    forecast = model.forecast(arrays["X_test"])
    y = arrays["y_test"]
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
    found = {"mean": forecast.mean, "log_density": forecast.log_density(y), "crps": forecast.crps(y), "ends": ends}
    return facts, found


if __name__ == "__main__":
    write_result(sys.argv[1], *fit_and_predict(*read_job(sys.argv[1])))
