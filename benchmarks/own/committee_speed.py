"""Worker: seconds of a committee of experts with learned noise, at a number of threads."""

from __future__ import annotations

import sys

import torch
from benchmarks.jobs import read_job, write_result
from benchmarks.measure import PeakMemory, seconds_of

from sparsegp import CommitteeGPRegressor
from sparsegp.metrics import rmse


def main(folder: str) -> None:
    problem, options = read_job(folder)
    n_threads = options.pop("n_threads")
    torch.set_num_threads(n_threads)
    model = CommitteeGPRegressor(**options, n_jobs=n_threads, random_state=0)
    memory = PeakMemory()
    seconds = seconds_of(lambda: model.fit(problem["X"], problem["y"]))
    facts = {
        "seconds": seconds,
        "peak_mb": memory.above_start_mb(),
        "evaluations": int(model.info_["evaluations"]),
        "rmse": rmse(problem["y_test"], model.predict(problem["X_test"])),
        "nlpd": -float(model.log_density(problem["X_test"], problem["y_test"]).mean()),
    }
    write_result(folder, facts)


if __name__ == "__main__":
    main(sys.argv[1])
