"""The recursive engine: single-row updates, batches against their products, a million rows, adding and forgetting."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs import own_python, run_job
from benchmarks.problems import synthetic
from benchmarks.results import console, machine_facts, number, print_table, ratio, write_results

NAME = "recursive_speed"
FULL = {
    "single_rows": 1_000_000,
    "partial_fit_rows": 100_000,
    "single_inducing": 100,
    "batch_inducing": 500,
    "forget_rows": 100_000,
}
QUICK = {
    "single_rows": 2_000,
    "partial_fit_rows": 500,
    "single_inducing": 20,
    "batch_inducing": 50,
    "forget_rows": 4_000,
}


def run(quick: bool = False) -> dict[str, Any]:
    size = {**(QUICK if quick else FULL), "batch_rows": 100 if quick else 1_000, "repeats": 3}
    problem = synthetic(size["single_rows"], max(size["single_inducing"], size["batch_inducing"]), 8)
    result = run_job(own_python(), "benchmarks.own.recursive_speed", problem, size)
    measured = result.facts if result.error is None else {"error": result.error}
    batches = measured.get("batches", {})
    document = {
        "machine": machine_facts(),
        "problem": {**size, "n_features": 8},
        "measured": measured,
        "ratios": {"batch / products": ratio(batches.get("seconds"), batches.get("products_seconds"))},
    }
    write_results(NAME, document, quick)
    _print(document)
    return document


def _print(document: dict[str, Any]) -> None:
    measured = document["measured"]
    if "error" in measured:
        console.print(f"not measured: {measured['error']}", markup=False)
        return
    single, forgetting = measured["single_rows"], measured["forgetting"]
    rows = [
        ["single rows a second", number(single["updates_per_second"], 0), "at least 10,000"],
        ["the same by partial_fit", number(measured["partial_fit_rows"]["updates_per_second"], 0), ""],
        ["error of the mean after all", f"{single['mean_error']:.1e}", "at most 1e-6"],
        ["error of the covariance", f"{single['covariance_error']:.1e}", "at most 1e-6"],
        ["smallest eigenvalue met", f"{single['smallest_eigenvalue']:.1e}", "above 0"],
        ["batch / its products", number(document["ratios"]["batch / products"], 2), "at most 2"],
        ["distance to the prior after forgetting", f"{forgetting['distance_to_prior']:.1e}", "at most 1e-6"],
    ]
    print_table("recursive engine", ["", "measured", "goal"], rows)
