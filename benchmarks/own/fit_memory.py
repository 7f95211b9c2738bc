"""Worker: seconds and peak memory of a fit with default settings."""

from __future__ import annotations

import sys
import time

from benchmarks.jobs import read_job, write_result
from benchmarks.measure import PeakMemory

from sparsegp import SparseGPRegressor
from sparsegp.metrics import nlpd, rmse


def main(folder: str) -> None:
    problem, options = read_job(folder)
    memory = PeakMemory()
    start = time.perf_counter()
    model = SparseGPRegressor(approximation="vfe", n_inducing=options["n_inducing"], random_state=0)
    model.fit(problem["X"], problem["y"])
    seconds = time.perf_counter() - start
    peak_mb = memory.above_start_mb()
    mean, std = model.predict(problem["X_test"], return_std=True)
    facts = {
        "seconds": seconds,
        "peak_mb": peak_mb,
        "rmse": rmse(problem["y_test"], mean),
        "nlpd": nlpd(problem["y_test"], mean, std),
    }
    write_result(folder, facts)


if __name__ == "__main__":
    main(sys.argv[1])
