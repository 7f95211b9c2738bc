"""Worker: fit our regressor on one dataset and predict its test rows."""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.measure import PeakMemory

from sparsegp import SparseGPRegressor


def fit_and_predict(problem: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    block_rows = options.pop("block_rows", None)
    if block_rows is not None:
        options["n_blocks"] = max(1, round(len(problem["y"]) / block_rows))
    if options["n_inducing"] != "auto":
        options["n_inducing"] = min(options["n_inducing"], len(problem["y"]))
    memory = PeakMemory()
    start, start_cpu = time.perf_counter(), time.process_time()
    model = SparseGPRegressor(**options, random_state=0).fit(problem["X"], problem["y"])
    fitted, fitted_cpu = time.perf_counter(), time.process_time()
    mean, std = model.predict(problem["X_test"], return_std=True)
    facts = {
        "seconds": fitted - start,
        "cpu_seconds": fitted_cpu - start_cpu,
        "predict_seconds": time.perf_counter() - fitted,
        "peak_mb": memory.above_start_mb(),
        "log_evidence": float(model.log_evidence_),
    }
    arrays = {"mean": mean, "std": std}
    if "choice" in model.info_:
        facts["choice"] = model.info_["choice"]["reason"]
        arrays["log_density"] = model.log_density(problem["X_test"], problem["y_test"])
    return facts, arrays


if __name__ == "__main__":
    write_result(sys.argv[1], *fit_and_predict(*read_job(sys.argv[1])))
