"""Two Dask workers with one thread each against one process with two threads: value and gradient of the bound.

Goals: at most 1.25 times the time, and at most 4 x workers x M^2 x 8 bytes through the scheduler an evaluation.
Both run in fresh processes on the same rows; their values are compared.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from benchmarks.jobs import Arrays, own_python, read_job, run_job, write_result
from benchmarks.measure import median_seconds
from benchmarks.problems import synthetic
from benchmarks.results import console, machine_facts, number, print_table, ratio, write_results

from sparsegp import kernels
from sparsegp.cluster import scanned
from sparsegp.core.approximations import get
from sparsegp.core.block import Block, MemoryRows
from sparsegp.data import open_source
from sparsegp.fit.scaling import Scaling
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective, Objective

NAME = "dask_speed"
APPROXIMATIONS = ("vfe", "fitc")
WORKERS = 2
GOAL_RATIO = 1.25
MATRICES_A_WORKER = 4


def run(quick: bool = False) -> dict[str, Any]:
    size = {"n_rows": 5_000, "n_inducing": 64} if quick else {"n_rows": 200_000, "n_inducing": 512}
    problem = synthetic(**size, n_features=8)
    allowed = MATRICES_A_WORKER * WORKERS * size["n_inducing"] ** 2 * 8
    measured = {name: _measure(problem, name, repeats=3 if quick else 5) for name in APPROXIMATIONS}
    document = {
        "machine": machine_facts(),
        "problem": {**size, "n_features": 8, "workers": WORKERS},
        "goals": {"time ratio": GOAL_RATIO, "bytes an evaluation": allowed},
        "measured": measured,
    }
    write_results(NAME, document, quick)
    _print(document)
    return document


def _measure(problem: Arrays, name: str, repeats: int) -> dict[str, Any]:
    facts = {}
    for how in ("threads", "dask"):
        options = {"how": how, "row": name, "repeats": repeats}
        result = run_job(own_python(), "benchmarks.dask_speed", problem, options)
        facts[how] = result.facts if result.error is None else {"error": result.error}
    seconds = {how: fact.get("seconds") for how, fact in facts.items()}
    return {**facts, "dask / threads": ratio(seconds["dask"], seconds["threads"])}


def main(folder: str) -> None:
    """A job: one way of working, in a process of its own."""
    problem, options = read_job(folder)
    write_result(folder, (_with_dask if options["how"] == "dask" else _with_threads)(problem, options))


def _with_threads(problem: Arrays, options: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(WORKERS)
    rows = MemoryRows(Block(torch.from_numpy(problem["X"]), torch.from_numpy(problem["y"])))
    return _timed(CollapsedObjective(rows, get(options["row"])), problem, options)


def _with_dask(problem: Arrays, options: dict[str, Any]) -> dict[str, Any]:
    from distributed import Client, LocalCluster

    torch.set_num_threads(1)
    cluster = LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0")
    with cluster, Client(cluster) as client:
        units = Scaling.identity(problem["X"].shape[1])
        rows = scanned(client, open_source(problem["X"], problem["y"]), seed=0).load(units)
        facts = _timed(CollapsedObjective(rows, get(options["row"])), problem, options)
        evaluations = rows.executor.traffic.rounds / 2
        return {**facts, "bytes": rows.executor.traffic.total / evaluations}


def _timed(objective: Objective, problem: Arrays, options: dict[str, Any]) -> dict[str, Any]:
    kernel = kernels.SquaredExponential(variance=float(problem["variance"]), lengthscales=problem["lengthscales"])
    hyper = Hyperparameters(kernel, float(problem["noise_var"]), torch.from_numpy(problem["Z"]))
    timing = median_seconds(lambda: objective.value_and_gradient(hyper), options["repeats"])
    return {**timing.as_facts(), "value": objective.value_and_gradient(hyper)}


def _print(document: dict[str, Any]) -> None:
    rows = []
    for name, facts in document["measured"].items():
        for how in ("threads", "dask"):
            if "error" in facts[how]:
                console.print(f"{name} with {how} was not measured: {facts[how]['error']}", markup=False)
        seconds = [number(facts[how].get("seconds")) for how in ("threads", "dask")]
        rows.append([name, *seconds, number(facts["dask / threads"], 2), number(facts["dask"].get("bytes"), 0)])
    goals = document["goals"]
    columns = ["", "2 threads", "2 workers", f"ratio (<= {GOAL_RATIO})", f"bytes (<= {goals['bytes an evaluation']:,})"]
    print_table("value and gradient", columns, rows)


if __name__ == "__main__":
    main(sys.argv[1])
