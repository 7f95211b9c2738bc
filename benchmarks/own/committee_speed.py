"""Worker: seconds of a committee of experts with learned noise, in threads, processes or on Dask workers."""

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
def workers(n_workers: int) -> Iterator[dict[str, Any]]:
    """What `fit` needs for that many Dask workers of one thread each; none: no cluster."""
    if not n_workers:
        yield {}
        return
    with LocalCluster(n_workers, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        yield {"cluster": cluster}


def main(folder: str) -> None:
    problem, options = read_job(folder)
    n_workers = options.pop("n_workers", 0)
    torch.set_num_threads(options["n_jobs"])
    model = CommitteeGPRegressor(**options, random_state=0)
    memory = PeakMemory()
    with workers(n_workers) as where:
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
