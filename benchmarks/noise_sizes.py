"""DVSHGP on protein with more or fewer inducing inputs of an expert and more or fewer experts (001 figure 10)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks import noise_experiments
from benchmarks.real_data import is_available, not_available_message
from benchmarks.results import console, machine_facts, number, print_table, write_results

NAME = "noise_sizes"
DATASET, METHOD = "protein", "dvshgp"
BASE = replace(noise_experiments.SETTINGS[DATASET], n_train=10_000)
INDUCING = (25, 50, 100, 175)  # of f and of g in every expert, with BASE.rows_each rows
ROWS_EACH = (175, 700, 1400)  # with half as many inducing inputs as BASE has rows, at most MOST_INDUCING
MOST_INDUCING = 175
COLUMNS = ("experts", "m0 = u0", *noise_experiments.COLUMNS)
QUICK = replace(BASE, n_train=500, n_test=200)


def settings(base: noise_experiments.Setting, quick: bool) -> list[noise_experiments.Setting]:
    by_inducing = [replace(base, own_inducing=count) for count in INDUCING]
    by_experts = [replace(base, rows_each=rows, own_inducing=min(rows // 2, MOST_INDUCING)) for rows in ROWS_EACH]
    return by_inducing[:1] if quick else [*by_inducing, *by_experts]


def run(quick: bool = False) -> dict[str, Any]:
    if not is_available(DATASET):
        console.print(not_available_message(DATASET))
        return {}
    base = QUICK if quick else BASE
    cells: list[dict[str, Any]] = []
    document = {"machine": machine_facts(), "problem": {"n_train": base.n_train}, "cells": cells}
    data = noise_experiments.problem(DATASET, base)
    for setting in settings(base, quick):
        (method,) = (m for m in noise_experiments.methods(setting) if m.name == METHOD)
        cell = noise_experiments.run_cell(method, method.options_for(DATASET, quick), data)
        counts = {"experts": round(base.n_train / setting.rows_each), "own_inducing": setting.own_inducing}
        cells.append({**counts, **{key: value for key, value in cell.items() if key not in ("machine", "options")}})
        write_results(NAME, document, quick)
    print_table(f"DVSHGP on {DATASET}", list(COLUMNS), rows(document))
    return document


def rows(document: dict[str, Any]) -> list[list[str]]:
    return [
        [number(cell["experts"], 0), number(cell["own_inducing"], 0), *noise_experiments.figures(cell)]
        for cell in document["cells"]
    ]
