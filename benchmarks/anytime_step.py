"""Seconds of one anytime step with |U| = 512 and blocks of 1,200 rows, against its own products and factorisations."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs import own_python, run_job
from benchmarks.problems import synthetic
from benchmarks.results import console, machine_facts, number, print_table, ratio, write_results

NAME = "anytime_step"
ROWS = {"PIC+": "pic", "FITC+": "fitc", "DTC+": "dtc"}
LARGEST_RATIO = 2.0


def run(quick: bool = False) -> dict[str, Any]:
    n_inducing, block_rows, repeats = (64, 150, 3) if quick else (512, 1200, 15)
    problem = synthetic(n_rows=20 * block_rows, n_inducing=n_inducing, n_features=8)
    measured: dict[str, dict[str, Any]] = {}
    for name, row in ROWS.items():
        options = {"row": row, "block_rows": block_rows, "repeats": repeats}
        result = run_job(own_python(), "benchmarks.own.anytime_step", problem, options)
        measured[name] = result.facts if result.error is None else {"error": result.error}
    document = {
        "machine": machine_facts(),
        "problem": {"n_inducing": n_inducing, "block_rows": block_rows, "n_features": 8},
        "measured": measured,
        "ratios": {name: ratio(_seconds(facts, "step"), _seconds(facts, "limit")) for name, facts in measured.items()},
    }
    write_results(NAME, document, quick)
    _print(document)
    return document


def _seconds(facts: dict[str, Any], part: str) -> float | None:
    seconds: float | None = facts.get(part, {}).get("seconds")
    return seconds


def _print(document: dict[str, Any]) -> None:
    measured, ratios = document["measured"], document["ratios"]
    rows = [
        [name, number(_seconds(facts, "step"), 4), number(_seconds(facts, "limit"), 4), number(ratios[name], 2)]
        for name, facts in measured.items()
    ]
    print_table("one anytime step", ["", "seconds", "products alone", f"ratio (at most {LARGEST_RATIO:g})"], rows)
    for name, facts in measured.items():
        if "error" in facts:
            console.print(f"{name} was not measured: {facts['error']}", markup=False)
