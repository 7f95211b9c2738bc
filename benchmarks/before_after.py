"""Two checkouts side by side: `python -m benchmarks.before_after PATH_OF_THE_OLDER_ONE`.

The same workers run in both, in turns, each in a fresh process, so that a machine whose speed drifts is fair to both.
Times are the least of the turns; ratios are the younger checkout's over the older one's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.committee_speed import OPTIONS as COMMITTEE
from benchmarks.jobs import ROOT, Arrays
from benchmarks.problems import synthetic
from benchmarks.real_data import is_available, load_split
from benchmarks.results import console, machine_facts, number, print_table, write_results

NAME = "before_after"
TURNS = 2


@dataclass(frozen=True)
class Work:
    """One measurement: a worker module, its arrays and options, and where in its result the figures are."""

    name: str
    module: str
    problem: Arrays
    options: dict[str, Any]
    figures: tuple[str, ...]
    turns: int = field(default=TURNS)


def works(quick: bool) -> Iterator[Work]:
    n_rows, n_inducing = (5_000, 64) if quick else (100_000, 512)
    bound = synthetic(n_rows, n_inducing, 8)
    for name, extra in (("vfe", {}), ("fitc", {}), ("pep", {}), ("pitc", {"block_rows": 512})):
        options = {"row": name, "repeats": 3, **extra}
        turns = TURNS if name in ("vfe", "fitc") else 1
        yield Work(f"bound {name}", "benchmarks.own.bound", bound, options, ("seconds", "peak_mb"), turns)
    n_test = 20_000 if quick else 300_000
    test = {**synthetic(20_000, n_inducing, 8), "X_test": synthetic(n_test, 1, 8, seed=1)["X"]}
    options = {"repeats": 3, "single_repeats": 300}
    yield Work("predict", "benchmarks.own.predict", test, options, ("seconds", "single_row_ms", "peak_mb"))
    single = {"single_rows": 20_000, "partial_fit_rows": 20_000, "single_inducing": 100, "batch_inducing": 300}
    size = {**single, "forget_rows": 10_000, "batch_rows": 1_000, "repeats": 3}
    stream = synthetic(20_000, 300, 8)
    figures = ("single_rows.updates_per_second", "partial_fit_rows.updates_per_second", "batches.seconds")
    yield Work("recursive", "benchmarks.own.recursive_speed", stream, size, figures)
    memory = synthetic(100_000 if quick else 1_000_000, 1, 8)
    first = {"approximation": "vfe", "n_inducing": n_inducing, "inference": "anytime"}
    arrays = {"X": memory["X"], "y": memory["y"]}
    yield Work("first_model", "benchmarks.own.first_model", arrays, first, ("seconds",))
    for how in ("threads", "dask"):
        options = {"how": how, "row": "vfe", "repeats": 3}
        yield Work(f"dask_speed {how}", "benchmarks.dask_speed", bound, options, ("seconds", "bytes"))
    if is_available("protein"):
        yield _committee(2_000 if quick else 8_750)


def _committee(n_rows: int) -> Work:
    data = load_split("protein")
    n_experts = max(2, n_rows // 350)
    order = np.argsort(data["X"][:n_rows, 0], kind="stable")
    labels = np.empty(n_rows, dtype=np.int64)
    labels[order] = np.arange(n_rows) * n_experts // n_rows
    shown = {**data, "X": data["X"][:n_rows], "y": data["y"][:n_rows], "blocks": labels}
    problem = {name: np.asarray(values) for name, values in shown.items()}
    options = {**COMMITTEE, "n_experts": n_experts, "n_jobs": 2}
    figures = ("seconds", "evaluations")
    return Work("committee_speed", "benchmarks.own.committee_speed", problem, options, figures, 1)


def run(older: Path, quick: bool = False) -> dict[str, Any]:
    measured: dict[str, Any] = {}
    for work in works(quick):
        found: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
        for turn in range(1 if quick else work.turns):
            trees = [("before", older), ("after", ROOT)]
            for label, tree in trees if turn % 2 == 0 else reversed(trees):
                found[label].append(_result(tree, work))
        measured[work.name] = {figure: _compared(found, figure) for figure in work.figures}
        console.print(work.name, measured[work.name], markup=False)
    document = {"machine": machine_facts(), "turns": TURNS, "measured": measured}
    write_results(NAME, document, quick)
    rows = [
        [f"{name}: {figure}", number(pair["before"]), number(pair["after"]), number(pair["ratio"], 3)]
        for name, figures in measured.items()
        for figure, pair in figures.items()
    ]
    print_table("before and after", ["", "before", "after", "after / before"], rows)
    return document


def _result(tree: Path, work: Work) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="sparsegp-bench-") as name:
        folder = Path(name)
        np.savez(folder / "problem.npz", **work.problem)
        (folder / "options.json").write_text(json.dumps(work.options))
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        command = [sys.executable, "-m", work.module, str(folder)]
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            console.print(done.stderr[-2000:], markup=False)
            return {}
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return result


def _compared(found: dict[str, list[dict[str, Any]]], figure: str) -> dict[str, float | None]:
    """The best of the turns; for rates the largest is the best."""
    best = max if "per_second" in figure else min
    values = {}
    for label, results in found.items():
        numbers = [value for result in results if (value := _at(result, figure)) is not None]
        values[label] = best(numbers) if numbers else None
    before, after = values["before"], values["after"]
    return {**values, "ratio": None if not before or after is None else after / before}


def _at(result: dict[str, Any], figure: str) -> float | None:
    value: Any = result
    for name in figure.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.before_after", description=__doc__)
    parser.add_argument("older", type=Path, help="an older checkout of the project")
    parser.add_argument("--quick", action="store_true", help="small sizes, to exercise the harness; not kept")
    arguments = parser.parse_args()
    run(arguments.older.resolve(), arguments.quick)
