"""Worker: fit our regressor within a budget and say how long it took."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from benchmarks.jobs import Arrays, read_job, write_result

from sparsegp import SparseGPRegressor


def fit_in_time(problem: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    start = time.perf_counter()
    model = SparseGPRegressor(**options, random_state=0).fit(problem["X"], problem["y"])
    used = time.perf_counter() - start
    report, mean = model.info_["budget"], model.predict(problem["X_test"])
    facts = {
        "used": used,
        "fraction": report["fraction"],
        "reason": report["reason"],
        "n_inducing": len(model.inducing_),
        "evaluations": model.info_["evaluations"],
        "rmse": float(np.sqrt(np.mean((mean - problem["y_test"]) ** 2))),
    }
    return facts, {}


if __name__ == "__main__":
    write_result(sys.argv[1], *fit_in_time(*read_job(sys.argv[1])))
