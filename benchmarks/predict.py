"""Prediction of 1,000,000 rows (mean and std) against its matrix products; latency of one row."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs import own_python, run_job
from benchmarks.problems import synthetic
from benchmarks.results import console, machine_facts, number, print_table, ratio, write_results

NAME = "predict"
LIMITS = ["predict_products", "predict_products_and_exps"]


def run(quick: bool = False) -> dict[str, Any]:
    n_test, n_inducing = (20_000, 64) if quick else (1_000_000, 512)
    problem = synthetic(20_000, n_inducing, 8)
    X_test = synthetic(n_test, 1, 8, seed=1)["X"]
    limit = run_job(
        own_python(),
        "benchmarks.own.limit",
        {"X": X_test, "Z": problem["Z"]},
        {"limits": LIMITS, "repeats": 3},
    )
    if limit.error is not None:
        raise RuntimeError(f"the matrix products of the limit could not be timed: {limit.error}")
    options = {"repeats": 3, "single_repeats": 100 if quick else 1000}
    ours = run_job(own_python(), "benchmarks.own.predict", {**problem, "X_test": X_test}, options)
    seconds = ours.facts.get("seconds")
    document = {
        "machine": machine_facts(),
        "problem": {"n_test": n_test, "n_train": 20_000, "n_inducing": n_inducing, "n_features": 8},
        "measured": {"ours": ours.facts if ours.error is None else {"error": ours.error}, **limit.facts},
        "ratios": {
            "ours / products": ratio(seconds, limit.facts["predict_products"]["seconds"]),
            "ours / products and exps": ratio(seconds, limit.facts["predict_products_and_exps"]["seconds"]),
        },
    }
    write_results(NAME, document, quick)
    _print(document)
    return document


def _print(document: dict[str, Any]) -> None:
    measured = document["measured"]
    ours = measured["ours"]
    rows = [[name, number(facts.get("seconds"))] for name, facts in measured.items()]
    rows += [[name, number(value, 2)] for name, value in document["ratios"].items()]
    rows += [
        ["one row, ms", number(ours.get("single_row_ms"))],
        ["peak MB above data, all rows", number(ours.get("peak_mb"), 0)],
        ["peak MB above data, a tenth of the rows", number(ours.get("peak_mb_tenth_of_rows"), 0)],
    ]
    print_table(f"prediction of {document['problem']['n_test']:,} rows", ["", "value"], rows)
    if "error" in ours:
        console.print(f"ours was not measured: {ours['error']}", markup=False)
