"""PIC+, FITC+ and DTC+ against PIC, FITC and DTC on a million rows (000 section 5, figures 1 to 4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.parquet as parquet
from benchmarks.jobs import Arrays, own_python, run_job
from benchmarks.real_data import data_folder, is_available, not_available_message
from benchmarks.results import console, machine_facts, number, print_table, write_results

NAME = "anytime_reproduction"
ROWS = ("pic", "fitc", "dtc")
TEST_FRACTION = 0.05
ROWS_FOR_LEARNING = 40_000
LEAST_EFFICIENCY = 0.95
# `share` of the rows; era5 has 1.2 million of five features, and a full PIC with 512 inducing inputs takes its time.
FULL = {
    "flights_airline8": {"n_inducing": 100, "n_blocks": 2000, "share": 1.0, "repetitions": 3, "learn_seconds": 20.0},
    "era5_t2m_uk": {"n_inducing": 512, "n_blocks": 1000, "share": 0.25, "repetitions": 3, "learn_seconds": 25.0},
}
QUICK = {
    name: {**size, "n_inducing": 20, "n_blocks": 30, "share": 0.01, "repetitions": 2, "learn_seconds": 1.0}
    for name, size in FULL.items()
}


def run(quick: bool = False) -> dict[str, Any]:
    sizes, cells = QUICK if quick else FULL, {}
    document = {"machine": machine_facts(), "problem": sizes, "cells": cells}
    for name, size in sizes.items():
        if not is_available(name):
            console.print(not_available_message(name))
            continue
        cells[name] = measured(name, size)
        write_results(NAME, document, quick)
        print_table(name, ["", *COLUMNS], table_rows(cells[name]))
        if "error" in cells[name]:
            console.print(f"{name} was not measured: {cells[name]['error']}", markup=False)
    return document


def measured(name: str, size: dict[str, Any]) -> dict[str, Any]:
    splits = [split_of(name, size["share"], seed) for seed in range(size["repetitions"])]
    learned = run_job(own_python(), "benchmarks.own.learned_kernels", _sample(splits[0]), _learning(splits[0], size))
    if learned.error is not None:
        return {"error": learned.error}
    runs = []
    for seed, split in enumerate(splits):
        options = {"rows": ROWS, "n_blocks": size["n_blocks"], "seed": seed}
        result = run_job(own_python(), "benchmarks.own.anytime_reproduction", split | learned.arrays, options)
        if result.error is not None:
            return {"error": result.error}
        runs.append(_in_units(result.facts, float(split["y_scale"])))
    names = [(row, kind) for row in ROWS for kind in runs[0][row] if kind.startswith("anytime")]
    return {
        "n_train": len(splits[0]["y"]),
        "learned": {**learned.facts, "noise_var": {row: float(learned.arrays[f"{row}_noise_var"]) for row in ROWS}},
        "full": {row: _mean([run[row]["full"] for run in runs]) for row in ROWS},
        "full_of_each": {row: [run[row]["full"]["rmse"] for run in runs] for row in ROWS},
        "block_seconds": float(np.mean([run["block_seconds"] for run in runs])),
        "curves": {_label(row, kind): _mean_curve([run[row][kind] for run in runs]) for row, kind in names},
        "speed_ups": {_label(row, kind): [_speed_up(run[row], kind) for run in runs] for row, kind in names},
    }


def split_of(name: str, share: float, seed: int) -> Arrays:
    """A random share of the rows, 5 % of it for the test; inputs and target standardised by the training rows."""
    table = parquet.read_table(data_folder() / f"{name}.parquet")
    values = np.column_stack([column.to_numpy() for column in table.itercolumns()]).astype(np.float64)
    values = values[np.random.default_rng(seed).permutation(len(values))[: round(share * len(values))]]
    n_test = round(TEST_FRACTION * len(values))
    mean, std = values[n_test:].mean(0), values[n_test:].std(0)
    values = (values - mean) / std
    test, train = values[:n_test], values[n_test:]
    arrays = {"X": train[:, :-1], "y": train[:, -1], "X_test": test[:, :-1], "y_test": test[:, -1]}
    return {key: np.ascontiguousarray(part) for key, part in arrays.items()} | {"y_scale": std[-1]}


def _sample(split: Arrays) -> Arrays:
    return {key: split[key][:ROWS_FOR_LEARNING] for key in ("X", "y")}


def _learning(split: Arrays, size: dict[str, Any]) -> dict[str, Any]:
    block_rows = max(1, len(split["y"]) // size["n_blocks"])
    return {
        "rows": ROWS,
        "n_inducing": size["n_inducing"],
        "block_rows": block_rows,
        "seconds": size["learn_seconds"],
    }


def _in_units(facts: dict[str, Any], y_scale: float) -> dict[str, Any]:
    """Errors in the units of y."""
    models = [facts[row] for row in ROWS]
    entries = [entry for model in models for kind in model if kind.startswith("anytime") for entry in model[kind]]
    for entry in [*entries, *(model["full"] for model in models)]:
        entry["rmse"] *= y_scale
        entry["nlpd"] += float(np.log(y_scale))
    return facts


def _mean(entries: list[dict[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([entry[key] for entry in entries])) for key in entries[0]}


def _mean_curve(curves: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    """Over the steps that all repetitions show, and the last one of each: numbers of blocks differ a little."""
    common = set.intersection(*({entry["step"] for entry in curve[:-1]} for curve in curves))
    aligned = [[entry for entry in curve[:-1] if entry["step"] in common] + curve[-1:] for curve in curves]
    return [_mean(list(entries)) for entries in zip(*aligned, strict=True)]


def _speed_up(run: dict[str, Any], kind: str) -> float | None:
    """TE when PE reaches LEAST_EFFICIENCY for good; None if it never does."""
    good = [run["full"]["rmse"] / entry["rmse"] >= LEAST_EFFICIENCY for entry in run[kind]]
    stays = [k for k in range(len(good)) if all(good[k:])]
    return run["full"]["seconds"] / run[kind][stays[0]]["seconds"] if stays else None


def _label(row: str, kind: str) -> str:
    return f"{row.upper()}+{kind.removeprefix('anytime')}"


COLUMNS = (
    "RMSE, full",
    "RMSE, anytime",
    "difference, %",
    "NLPD, full",
    "NLPD, anytime",
    "full, s",
    "ms a step",
    "speed-up at PE 0.95",
)


def table_rows(cell: dict[str, Any]) -> list[list[str]]:
    return [_table_row(cell, label, curve) for label, curve in cell.get("curves", {}).items()]


def _table_row(cell: dict[str, Any], label: str, curve: list[dict[str, float]]) -> list[str]:
    full, last = cell["full"][label.split("+")[0].lower()], curve[-1]
    reached = [value for value in cell["speed_ups"][label] if value is not None]
    speed_up = float(np.mean(reached)) if len(reached) == len(cell["speed_ups"][label]) else None
    return [
        label,
        number(full["rmse"]),
        number(last["rmse"]),
        number(100.0 * abs(last["rmse"] / full["rmse"] - 1.0), 4),
        number(full["nlpd"]),
        number(last["nlpd"]),
        number(full["seconds"], 1),
        number(1000.0 * last["seconds"] / last["step"], 1),
        number(speed_up, 0),
    ]
