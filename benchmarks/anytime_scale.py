"""An anytime step costs the same for 10^5 and 10^7 rows on disk, and a first model of 10^6 rows is there at once."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.jobs import Arrays, own_python, run_job
from benchmarks.problems import synthetic
from benchmarks.results import console, machine_facts, number, print_table, ratio, write_results

NAME = "anytime_scale"
N_FEATURES = 8
APPROXIMATIONS = ("pic", "fitc", "dtc")
FIRST_MODELS = ("vfe", "pic")
LARGEST_GROWTH, LARGEST_MB, LONGEST_SECONDS = 1.25, 2000, 3.0

FULL = {"sizes": [100_000, 1_000_000, 10_000_000], "n_inducing": 512, "block_rows": 1200, "steps": 249}
QUICK = {"sizes": [4_000, 8_000, 16_000], "n_inducing": 32, "block_rows": 200, "steps": 8}
STEPS_FOR_MEMORY = 5


def run(quick: bool = False) -> dict[str, Any]:
    size = QUICK if quick else FULL
    problem = synthetic(20_000, size["n_inducing"], N_FEATURES)
    model = {name: problem[name] for name in ("Z", "lengthscales", "variance", "noise_var")}
    in_memory = synthetic(size["sizes"][1], size["n_inducing"], N_FEATURES)
    document = {
        "machine": machine_facts(),
        "problem": {**size, "n_features": N_FEATURES},
        "on_disk": _on_disk(model, size),
        "first_model": {
            name: _facts("benchmarks.own.first_model", {"X": in_memory["X"], "y": in_memory["y"]}, _fit(name, size))
            for name in FIRST_MODELS
        },
    }
    document["growth"] = {name: _growth(document["on_disk"], name) for name in APPROXIMATIONS}
    write_results(NAME, document, quick)
    _print(document)
    return document


def _on_disk(model: Arrays, size: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Blocks of every number of rows are written in a process of their own; then one process takes steps in turns."""
    with tempfile.TemporaryDirectory(prefix="sparsegp-bench-") as parent:
        folders = {str(n): str(Path(parent) / str(n)) for n in size["sizes"]}
        shared = {"approximations": APPROXIMATIONS, "block_rows": size["block_rows"], "steps": STEPS_FOR_MEMORY}
        found = {
            n: _facts("benchmarks.own.anytime_scale", model, {**shared, "n_rows": int(n), "folder": folder})
            for n, folder in folders.items()
        }
        written = {n: folders[n] for n, facts in found.items() if "error" not in facts}
        turns = {"approximations": APPROXIMATIONS, "folders": written, "steps": size["steps"]}
        steps = _facts("benchmarks.own.anytime_turns", model, turns)
    if "error" in steps:
        return {n: {**facts, "error": steps["error"]} for n, facts in found.items()}
    return {n: facts | steps.get(n, {}) for n, facts in found.items()}


def _fit(approximation: str, size: dict[str, Any]) -> dict[str, Any]:
    return {"approximation": approximation, "n_inducing": size["n_inducing"], "inference": "anytime"}


def _facts(module: str, problem: Arrays, options: dict[str, Any]) -> dict[str, Any]:
    result = run_job(own_python(), module, problem, options)
    return result.facts if result.error is None else {"error": result.error}


def _growth(on_disk: dict[str, dict[str, Any]], name: str) -> float | None:
    """The longest mean step over the shortest, over the numbers of rows."""
    seconds = [facts[name]["seconds"] for facts in on_disk.values() if name in facts]
    return ratio(max(seconds), min(seconds)) if len(seconds) == len(on_disk) else None


def _print(document: dict[str, Any]) -> None:
    rows = [
        [
            f"{int(n):,}",
            *(number(facts.get(name, {}).get("seconds"), 4) for name in APPROXIMATIONS),
            number(facts.get("write_seconds"), 1),
            number(facts.get("process_peak_mb"), 0),
        ]
        for n, facts in document["on_disk"].items()
    ]
    growth = [f"longest/shortest (at most {LARGEST_GROWTH})"]
    rows.append([*growth, *(number(value, 2) for value in document["growth"].values()), "", f"at most {LARGEST_MB}"])
    columns = ["rows", *(f"{name} step" for name in APPROXIMATIONS), "blocks written, s", "peak MB of the process"]
    print_table("steps from blocks on disk", columns, rows)
    first = [
        [name, *(number(facts.get(key), 3) for key in ("seconds", "rmse", "std_of_y"))]
        for name, facts in document["first_model"].items()
    ]
    print_table(f"first model (under {LONGEST_SECONDS:g} s)", ["", "seconds", "RMSE", "std of y"], first)
    for label, facts in (document["on_disk"] | document["first_model"]).items():
        if "error" in facts:
            console.print(f"{label} was not measured: {facts['error']}", markup=False)
