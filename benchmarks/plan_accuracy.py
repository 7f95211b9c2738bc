"""Plans against reality: predicted over actual seconds and peak memory of fits and predictions; and plans for 10^8 to
10^10 rows on 1 to 1,000 machines like this one, which are predictions and nothing else."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs import own_python, run_job
from benchmarks.problems import synthetic
from benchmarks.results import console, machine_facts, number, print_table, write_results

from sparsegp import plan

NAME, SCALING = "plan_accuracy", "plan_scaling"
N_FEATURES = 8
QUANTITIES = ("fit_seconds", "predict_seconds", "peak_bytes")

# (approximation, rows, inducing inputs, optimizer)
CASES = (
    ("vfe", 20_000, 128, "lbfgs"),
    ("vfe", 60_000, 256, "lbfgs"),
    ("vfe", 200_000, 128, "lbfgs"),
    ("vfe", 200_000, 512, None),
    ("fitc", 20_000, 256, "lbfgs"),
    ("fitc", 50_000, 128, "lbfgs"),
    ("fitc", 200_000, 512, None),
    ("pic", 20_000, 256, "lbfgs"),
    ("pic", 200_000, 256, "lbfgs"),
    ("pic", 100_000, 512, None),
)
QUICK_CASES = (("vfe", 3000, 32, "lbfgs"), ("fitc", 3000, 32, None), ("pic", 3000, 64, "lbfgs"))
ROWS = (10**8, 10**9, 10**10)
MACHINES = (1, 10, 100, 1000)


def run(quick: bool = False) -> dict[str, Any]:
    cells: list[dict[str, Any]] = []
    document = {"machine": machine_facts(), "problem": {"n_features": N_FEATURES}, "cells": cells}
    for case in QUICK_CASES if quick else CASES:
        cells.append(_measure(*case))
        write_results(NAME, document, quick)
    _print(cells)
    good = [cell for cell in cells if "error" not in cell]
    if good:
        write_results(SCALING, scaling(good[0]["machine"]), quick)
    return document


def _measure(approximation: str, n_rows: int, n_inducing: int, optimizer: str | None) -> dict[str, Any]:
    problem = synthetic(n_rows, 1, N_FEATURES)
    rows = {"X": problem["X"], "y": problem["y"]}
    parameters = {"approximation": approximation, "n_inducing": n_inducing, "optimizer": optimizer}
    result = run_job(own_python(), "benchmarks.own.plan_accuracy", rows, parameters)
    case = {**parameters, "n_rows": n_rows}
    if result.error is not None:
        return {**case, "error": result.error}
    predicted, actual = result.facts["predicted"], result.facts["actual"]
    return {**case, **result.facts, "ratios": {name: predicted[name] / actual[name] for name in QUANTITIES}}


def scaling(constants: dict[str, float]) -> dict[str, Any]:
    """Plans of a default vfe fit; no such fit was run."""
    plans = [
        plan(n_rows=n_rows, n_features=N_FEATURES, machines=MACHINES, machine=constants).to_dict() for n_rows in ROWS
    ]
    return {"machine": machine_facts(), "constants": constants, "plans": plans}


def _print(cells: list[dict[str, Any]]) -> None:
    rows = []
    for cell in cells:
        name = f"{cell['approximation']} {cell['n_rows']:,} M={cell['n_inducing']} {cell['optimizer']}"
        if "error" in cell:
            console.print(f"{name} was not measured: {cell['error']}", markup=False)
            continue
        predicted, actual = cell["predicted"], cell["actual"]
        ratios = [number(cell["ratios"][quantity], 2) for quantity in QUANTITIES]
        evaluations = f"{predicted['evaluations']} / {actual['evaluations']}"
        rows.append([name, number(actual["fit_seconds"], 1), evaluations, *ratios])
    columns = ["", "fit, s", "evaluations", "fit ratio", "predict ratio", "memory ratio"]
    print_table("predicted / actual", columns, rows)
