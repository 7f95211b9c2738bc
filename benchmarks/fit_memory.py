"""Fit on 1,000,000 x 8 rows with default settings: seconds and peak memory above the data."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs import own_python, run_job
from benchmarks.problems import synthetic
from benchmarks.results import console, machine_facts, number, print_table, write_results

NAME = "fit_memory"
N_TEST = 10_000


def run(quick: bool = False) -> dict[str, Any]:
    n_rows, n_inducing = (20_000, 64) if quick else (1_000_000, 512)
    everything = synthetic(n_rows + N_TEST, 1, 8)
    X, y = everything["X"], everything["y"]
    problem = {"X": X[:n_rows], "y": y[:n_rows], "X_test": X[n_rows:], "y_test": y[n_rows:]}
    result = run_job(own_python(), "benchmarks.own.fit_memory", problem, {"n_inducing": n_inducing})
    document = {
        "machine": machine_facts(),
        "problem": {"n_rows": n_rows, "n_inducing": n_inducing, "n_features": 8, "noise_std": 0.3},
        "measured": result.facts if result.error is None else {"error": result.error},
    }
    write_results(NAME, document, quick)
    _print(document)
    return document


def _print(document: dict[str, Any]) -> None:
    measured = document["measured"]
    rows = [
        ["seconds", number(measured.get("seconds"), 1)],
        ["peak MB above data", number(measured.get("peak_mb"), 0)],
        ["RMSE (noise std 0.3)", number(measured.get("rmse"))],
    ]
    print_table(f"fit on {document['problem']['n_rows']:,} rows", ["", "value"], rows)
    if "error" in measured:
        console.print(f"ours was not measured: {measured['error']}", markup=False)
