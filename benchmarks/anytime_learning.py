"""Progressive L-BFGS, natural gradients with Adam, and SRGP (points only): test scores after equal seconds."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs import own_python, run_job
from benchmarks.real_data import is_available, load_split, not_available_message
from benchmarks.results import console, machine_facts, number, print_table, write_results

from sparsegp.core.approximations import get

NAME = "anytime_learning"
WAYS = {"lbfgs": "progressive L-BFGS", "ngd": "NGD + Adam", "srgp": "SRGP"}
DATASETS = {"kin40k": None, "protein": None}
ROWS = {"vfe": "se", "fitc": "se", "pic": "matern32"}
FULL = {"n_inducing": 300, "block_rows": 800, "budgets": {"vfe": [5.0, 15.0], "fitc": [15.0], "pic": [15.0]}}
QUICK = {"n_inducing": 20, "block_rows": 200, "budgets": {"vfe": [1.0], "fitc": [1.0], "pic": [1.0]}}


def run(quick: bool = False) -> dict[str, Any]:
    size = QUICK if quick else FULL
    cells: dict[str, dict[str, Any]] = {}
    document = {"machine": machine_facts(), "problem": {**size, "datasets": DATASETS}, "cells": cells}
    for name, most_rows in DATASETS.items():
        if not is_available(name):
            console.print(not_available_message(name))
            continue
        split = load_split(name, 2_000 if quick else most_rows)
        cells[name] = {row: _measured(split, row, size) for row in ROWS}
        write_results(NAME, document, quick)
    print_table("learning", ["", *COLUMNS], table_rows(document))
    return document


def _measured(split: Any, row: str, size: dict[str, Any]) -> dict[str, Any]:
    options = {
        "row": row,
        "kernel": ROWS[row],
        "n_inducing": size["n_inducing"],
        "block_rows": size["block_rows"],
        "budgets": size["budgets"][row],
        "ways": [way for way in WAYS if way != "srgp" or not get(row).by_block],
    }
    result = run_job(own_python(), "benchmarks.own.anytime_learning", split, options)
    return result.facts if result.error is None else {"error": result.error}


COLUMNS = ("seconds asked", *(f"{what}, {way}" for what in ("NLPD", "RMSE") for way in WAYS.values()))


def table_rows(document: dict[str, Any]) -> list[list[str]]:
    """A row for each data set, approximation and budget, all ways side by side."""
    rows = []
    for name, by_row in document["cells"].items():
        for row, facts in by_row.items():
            for seconds in document["problem"]["budgets"][row]:
                entries = [facts.get(f"{way} {seconds:g}", {}) for way in WAYS]
                scores = [number(entry.get(score)) for score in ("nlpd", "rmse") for entry in entries]
                rows.append([f"{name} {row}", f"{seconds:g}", *scores])
    return rows
