"""Worker: a plan with the constants of this machine, then the fit and the predictions that it speaks of."""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.measure import PeakMemory, seconds_of

from sparsegp import SparseGPRegressor, plan
from sparsegp.planning import measured
from sparsegp.planning.estimate import PREDICTED_ROWS


def measure(problem: Arrays, parameters: dict[str, Any]) -> dict[str, Any]:
    X, y = problem["X"], problem["y"]
    model = SparseGPRegressor(**parameters, random_state=0)
    calibration_seconds = seconds_of(measured)
    planned = plan(X, estimator=model).estimates[0]
    memory, started = PeakMemory(), time.perf_counter()
    model.fit(X, y)
    fit_seconds = time.perf_counter() - started
    peak_bytes = 1e6 * memory.above_start_mb() * 1.048576
    predict_seconds = seconds_of(lambda: model.predict(X, return_std=True))
    return {
        "machine": measured().to_dict(),
        "calibration_seconds": calibration_seconds,
        "predicted": {
            "fit_seconds": planned.seconds,
            "predict_seconds": planned.prediction_seconds * len(y) / PREDICTED_ROWS,
            "peak_bytes": planned.memory.copies + planned.memory.workspace,
            "evaluations": planned.evaluations,
        },
        "actual": {
            "fit_seconds": fit_seconds,
            "predict_seconds": predict_seconds,
            "peak_bytes": peak_bytes,
            "evaluations": model.info_["evaluations"],
        },
    }


def main(folder: str) -> None:
    problem, parameters = read_job(folder)
    write_result(folder, measure(problem, parameters))


if __name__ == "__main__":
    main(sys.argv[1])
