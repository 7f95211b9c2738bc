"""Worker: seconds and peak memory of a fit to a Parquet file with text columns."""

from __future__ import annotations

import sys
import time

from benchmarks.jobs import read_job, write_result
from benchmarks.measure import PeakMemory

from sparsegp import SparseGPRegressor


def main(folder: str) -> None:
    _, options = read_job(folder)
    memory = PeakMemory()
    start = time.perf_counter()
    model = SparseGPRegressor(approximation="vfe", n_inducing=options["n_inducing"], random_state=0)
    model.set_params(time_budget=options["time_budget"])
    model.fit(options["path"], target="y")
    facts = {"seconds": time.perf_counter() - start, "peak_mb": memory.above_start_mb()}
    write_result(
        folder, {**facts, "rows_seen": int(model.n_samples_seen_), "noise_std": float(model.noise_var_) ** 0.5}
    )


if __name__ == "__main__":
    main(sys.argv[1])
