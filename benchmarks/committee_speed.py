"""DVSHGP on protein (35,000 rows, 100 experts, 175 inducing inputs for f and for g each), and two workers against one.

Experts are shared out among threads with one BLAS thread in each, among two processes, or among two Dask workers of one
thread; "one" is one process with one thread in all. Processes are started within the time that is measured, the Dask
cluster before it. They are given the same experts, and all of them do the same evaluations; "full" divides the rows
itself. The speed of the machine drifts by a tenth within minutes, so what is compared with the goal is measured twice,
the second time in reverse, and times are means. The limit is what the machine itself gives: products and factorisations
of the size of an expert's in one process, and in two side by side that share nothing but the processor.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from benchmarks.jobs import Arrays, own_python, run_job
from benchmarks.real_data import is_available, load_split, not_available_message
from benchmarks.results import console, machine_facts, number, print_table, ratio, write_results

from sparsegp.core.partition import kmeans_partition

NAME = "committee_speed"
WORKER = "benchmarks.own.committee_speed"
LIMIT, LIMIT_SECONDS = "benchmarks.own.parallel_limit", 10.0
OPTIONS: dict[str, Any] = {"expert": "vshgp", "n_inducing": 175, "n_noise_inducing": 175}
ROWS, EXPERTS = 35_000, 100
QUICK_SHARE = 4  # a quick run: a quarter of the rows, with a quarter of the experts
CREWS: dict[str, dict[str, Any]] = {
    "one": {"n_jobs": 1},
    "two threads": {"n_jobs": 2},
    "two processes": {"n_jobs": 2, "backend": "processes"},
    "two Dask workers": {"n_jobs": 2, "n_workers": 2},
}
AGAIN = ("two processes", "one")


def run(quick: bool = False) -> dict[str, Any]:
    if not is_available("protein"):
        console.print(not_available_message("protein"))
        return {}
    data = load_split("protein")
    share = QUICK_SHARE if quick else 1
    rows, experts = ROWS // share, EXPERTS // share
    labels = {"blocks": _labels(data["X"][:rows], experts)}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CREWS}
    for name in (*CREWS, *(() if quick else AGAIN)):
        found[name].append(_job({**data, **labels}, rows, experts, CREWS[name]))
    measured: dict[str, Any] = {name: _mean(runs) for name, runs in found.items()}
    if not quick:
        measured["full"] = _job(data, ROWS, EXPERTS, CREWS["two threads"])
    seconds = {name: facts.get("seconds") for name, facts in measured.items()}
    ratios = {name: ratio(seconds["one"], seconds[name]) for name in CREWS if name != "one"}
    document = {
        "machine": machine_facts(),
        "problem": {"rows": rows, "experts": experts, **OPTIONS},
        "measured": measured,
        "ratios": ratios,
        "limit": _limit(),
    }
    write_results(NAME, document, quick)
    rows = [[name, number(facts.get("seconds"), 1), facts.get("error", "")] for name, facts in measured.items()]
    print_table("DVSHGP on protein", ["", "seconds", ""], rows)
    return document


def _limit() -> float:
    """How much more two processes do in the same time than one."""
    rows = {"rows": np.random.default_rng(0).standard_normal((ROWS // EXPERTS, OPTIONS["n_inducing"]))}

    def a_second(_: int) -> float:
        return float(run_job(own_python(), LIMIT, rows, {"seconds": LIMIT_SECONDS}).facts["a_second"])

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(a_second, range(2))) / a_second(0)


def _labels(X: np.ndarray, n_experts: int) -> np.ndarray:
    scaled = torch.from_numpy((X - X.mean(0)) / X.std(0))
    labels: np.ndarray = kmeans_partition(scaled, n_experts, np.random.default_rng(0)).assign(scaled).numpy()
    return labels


def _mean(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of the first round with the mean of the seconds, and the seconds of each round."""
    failed = next((facts for facts in found if "error" in facts), None)
    if failed is not None:
        return failed
    seconds = [facts["seconds"] for facts in found]
    return {**found[0], "seconds": float(np.mean(seconds)), "rounds": seconds}


def _job(data: Arrays, n_rows: int, n_experts: int, crew: dict[str, Any]) -> dict[str, Any]:
    shown = {**data, "X": data["X"][:n_rows], "y": data["y"][:n_rows]}
    options = {**OPTIONS, "n_experts": n_experts, **crew}
    result = run_job(own_python(), WORKER, {key: np.asarray(value) for key, value in shown.items()}, options)
    return {"error": result.error} if result.error is not None else result.facts
