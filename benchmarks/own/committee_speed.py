"""Worker: seconds of a committee of experts with learned noise, at a number of threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from benchmarks.jobs import read_job, write_result
from benchmarks.measure import PeakMemory, seconds_of
from distributed import LocalCluster

from sparsegp import CommitteeGPRegressor
from sparsegp.metrics import rmse


@contextmanager
def workers(n_processes: int) -> Iterator[dict[str, Any]]:
    """What `fit` needs to work in that many processes of one thread each; none: in this one."""
    if not n_processes:
        yield {}
        return
    with LocalCluster(n_processes, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        yield {"cluster": cluster}


def main(folder: str) -> None:
    problem, options = read_job(folder)
    n_threads, n_processes = options.pop("n_threads"), options.pop("n_processes", 0)
    torch.set_num_threads(n_threads)
    model = CommitteeGPRegressor(**options, n_jobs=n_threads, random_state=0)
    memory = PeakMemory()
    with workers(n_processes) as where:
        seconds = seconds_of(lambda: model.fit(problem["X"], problem["y"], blocks=problem.get("blocks"), **where))
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
