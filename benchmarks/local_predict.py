"""Predictions of local models (pic, committees of exact experts) against their own products; latency of one row."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs import own_python, run_job
from benchmarks.problems import synthetic
from benchmarks.results import console, machine_facts, number, print_table, ratio, write_results

NAME = "local_predict"
MODELS = {
    "pic": {"model": "pic", "n_inducing": 500, "n_parts": 50},
    "rbcm": {"model": "rbcm", "n_parts": 80, "asked": 8},
    "grbcm": {"model": "grbcm", "n_parts": 80, "asked": 8},
}


def run(quick: bool = False) -> dict[str, Any]:
    n_train, n_test = (4_000, 2_000) if quick else (40_000, 40_000)
    problem = synthetic(n_train, 1, 8)
    problem["X_test"] = synthetic(n_test, 1, 8, seed=1)["X"]
    measured: dict[str, Any] = {}
    for name, options in MODELS.items():
        chosen = {**options, "repeats": 3, "n_single": 20 if quick else 300}
        if quick:
            chosen = {**chosen, "n_inducing": 50, "n_parts": max(2, chosen["n_parts"] // 10)}
        job = run_job(own_python(), "benchmarks.own.local_predict", problem, chosen)
        measured[name] = job.facts if job.error is None else {"error": job.error}
    document = {
        "machine": machine_facts(),
        "problem": {"n_train": n_train, "n_test": n_test, "n_features": 8},
        "models": MODELS,
        "measured": measured,
        "ratios": {name: _ratios(facts) for name, facts in measured.items()},
    }
    write_results(NAME, document, quick)
    _print(document)
    return document


def _ratios(facts: dict[str, Any]) -> dict[str, float | None]:
    return {
        "mean and std / products and exps": ratio(facts.get("seconds"), facts.get("limit_seconds")),
        "mean / products and exps": ratio(facts.get("mean_seconds"), facts.get("mean_limit_seconds")),
        "served / ours": ratio(facts.get("served_seconds"), facts.get("seconds")),
    }


def _print(document: dict[str, Any]) -> None:
    measured, ratios, n = document["measured"], document["ratios"], document["problem"]["n_test"]
    names = list(measured)
    rows = [
        ["rows a second, mean and std", *(number(ratio(n, measured[k].get("seconds")), 0) for k in names)],
        ["rows a second, mean", *(number(ratio(n, measured[k].get("mean_seconds")), 0) for k in names)],
        *([label, *(number(ratios[k][label], 2) for k in names)] for label in ratios[names[0]]),
        *(
            [label, *(number(measured[k].get(key), 2) for k in names)]
            for label, key in (
                ("one row, mean and std, ms", "single_row_ms"),
                ("one row, mean, ms", "single_row_mean_ms"),
                ("one row served, mean and std, ms", "served_single_row_ms"),
                ("first call, s", "first_seconds"),
                ("peak MB above the model, first call", "peak_mb"),
                ("model file, MB", "file_mb"),
                ("load, s", "load_seconds"),
            )
        ),
    ]
    print_table(f"predictions of {n:,} rows by local models", ["", *names], rows)
    for name in names:
        if "error" in measured[name]:
            console.print(f"{name} was not measured: {measured[name]['error']}", markup=False)
