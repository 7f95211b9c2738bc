"""Worker: seconds from the call of fit_iter to the first model that predicts, with all rows in memory."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from benchmarks.jobs import Arrays, read_job, write_result

from sparsegp import SparseGPRegressor
from sparsegp.metrics import rmse


def measure(problem: Arrays, options: dict[str, Any]) -> dict[str, Any]:
    X, y = problem["X"], problem["y"]
    rng = np.random.default_rng(3)
    test = rng.choice(len(y), 2_000, replace=False)
    gp = SparseGPRegressor(**options, random_state=0)
    started = time.perf_counter()
    first = next(steps := gp.fit_iter(X, y))
    seconds = time.perf_counter() - started
    mean = gp.predict(X[test])
    steps.close()
    return {"seconds": seconds, "rows_seen": first.rows_seen, "rmse": rmse(y[test], mean), "std_of_y": float(y.std())}


if __name__ == "__main__":
    write_result(sys.argv[1], measure(*read_job(sys.argv[1])))
