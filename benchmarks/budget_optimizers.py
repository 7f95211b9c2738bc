"""`fit(time_budget=...)` with one optimiser or another: test scores after equal seconds of the whole call."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs import own_python, run_job
from benchmarks.real_data import is_available, load_split, not_available_message
from benchmarks.results import console, machine_facts, number, print_table, write_results
from benchmarks.scores import gaussian_scores

NAME = "budget_optimizers"
OPTIMIZERS = ("lbfgs", "ngd", "srgp")
ROWS = {"vfe": ("se", OPTIMIZERS), "pic": ("matern32", OPTIMIZERS[:2])}
DATASETS = ("flights_nyc2013", "coads_slp", "kin40k")
FULL = {"n_inducing": 300, "time_budget": 20.0}
QUICK = {"n_inducing": 30, "time_budget": 2.0}
COLUMNS = ("NLPD", "RMSE", "95 % coverage", "seconds")
SCORES = ("nlpd", "rmse", "coverage_95", "seconds")


def run(quick: bool = False) -> dict[str, Any]:
    size = QUICK if quick else FULL
    cells: dict[str, dict[str, Any]] = {}
    document = {"machine": machine_facts(), "problem": size, "cells": cells}
    for name in DATASETS[1:2] if quick else DATASETS:
        if not is_available(name):
            console.print(not_available_message(name))
            continue
        split = load_split(name, 2_000 if quick else None)
        for row, (kernel, optimizers) in ROWS.items():
            for optimizer in optimizers:
                options = {**size, "approximation": row, "kernel": kernel, "optimizer": optimizer}
                cells.setdefault(name, {})[f"{row} {optimizer}"] = _measured(split, options)
                write_results(NAME, document, quick)
    print_table("within one budget", ["", "", *COLUMNS], table_rows(document))
    return document


def _measured(split: Any, options: dict[str, Any]) -> dict[str, Any]:
    result = run_job(own_python(), "benchmarks.own.datasets", split, options)
    if result.error is not None:
        return {"error": result.error}
    return {**gaussian_scores(split["y_test"], result.arrays), **result.facts}


def table_rows(document: dict[str, Any]) -> list[list[str]]:
    return [
        [name if k == 0 else "", label, *(number(cell.get(score), 1 if score == "seconds" else 3) for score in SCORES)]
        for name, by_label in document["cells"].items()
        for k, (label, cell) in enumerate(by_label.items())
    ]
