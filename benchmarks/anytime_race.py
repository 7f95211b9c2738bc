"""flights_nyc2013: how much sooner our budgeted fits have the NLPD that GPflow's SVGP has after 160 s."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs import own_python, peers_python, run_job
from benchmarks.methods import SVGP_OPTIONS
from benchmarks.real_data import is_available, load_split, not_available_message
from benchmarks.results import console, machine_facts, number, print_table, ratio, write_results

NAME = "anytime_race"
DATASET = "flights_nyc2013"
LEAST_RATIO = 15.0
FULL = {"moments": [10.0, 20.0, 40.0, 80.0, 160.0], "budgets": [3.0, 6.0, 10.0], "watched": 15.0, "n_inducing": 300}
QUICK = {"moments": [2.0, 4.0], "budgets": [1.0], "watched": 2.0, "n_inducing": 30}
OURS = {"vfe": {"approximation": "vfe", "kernel": "se"}, "pic": {"approximation": "pic", "kernel": "matern12"}}


def run(quick: bool = False) -> dict[str, Any]:
    if not is_available(DATASET):
        console.print(not_available_message(DATASET))
        return {}
    size = QUICK if quick else FULL
    split = load_split(DATASET, 5_000 if quick else None)
    document: dict[str, Any] = {"machine": machine_facts(), "problem": {**size, "n_train": len(split["y"])}}
    measured: dict[str, dict[str, Any]] = {}
    for name, settings in OURS.items():
        options = {
            "settings": {**settings, "n_inducing": size["n_inducing"]},
            "budgets": size["budgets"],
            "watched": size["watched"],
        }
        measured[name] = _facts(run_job(own_python(), "benchmarks.own.anytime_race", split, options))
    peer = {**SVGP_OPTIONS, "kernel": "se", "n_inducing": size["n_inducing"], "moments": size["moments"]}
    measured["gpflow-svgp"] = _facts(run_job(peers_python(), "benchmarks.peers.gpflow_svgp_timed", split, peer))
    document["measured"] = measured
    document["goal"] = goal(measured)
    write_results(NAME, document, quick)
    _print(document)
    return document


def _facts(result: Any) -> dict[str, Any]:
    return result.facts if result.error is None else {"error": result.error}


def goal(measured: dict[str, dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """By method: seconds of the shortest budgeted fit that is at SVGP's last NLPD, and SVGP's seconds over them."""
    trace = measured["gpflow-svgp"].get("trace")
    if not trace:
        return {}
    last = trace[-1]
    found = {}
    for name in OURS:
        enough = [fit["seconds"] for fit in measured[name].get("fits", []) if fit["nlpd"] <= last["nlpd"]]
        first = min(enough) if enough else None
        found[name] = {"seconds": first, "times_sooner": ratio(last["seconds"], first)}
    return found


def _print(document: dict[str, Any]) -> None:
    rows = []
    for name, facts in document["measured"].items():
        if "error" in facts:
            console.print(f"{name} was not measured: {facts['error']}", markup=False)
        for entry in facts.get("fits", facts.get("trace", [])):
            scores = [number(entry[key]) for key in ("nlpd", "rmse", "coverage_95")]
            rows.append([name, number(entry["seconds"], 1), *scores, number(entry.get("fraction"), 2)])
    print_table(DATASET, ["", "seconds", "NLPD", "RMSE", "95 % coverage", "share of rows"], rows)
    sooner = [[name, *(number(v, 1) for v in entry.values())] for name, entry in document["goal"].items()]
    columns = ["", "seconds to SVGP's last NLPD", f"times sooner (at least {LEAST_RATIO:g})"]
    print_table("against GPflow SVGP", columns, sooner)
