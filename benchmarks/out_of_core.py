"""One pass over 10,000,000 x 8 rows of Parquet at M = 512: seconds a row against memory and a tenth of the rows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.jobs import Arrays, own_python, run_job
from benchmarks.problems import synthetic
from benchmarks.results import console, machine_facts, number, print_table, ratio, write_results

NAME = "out_of_core"
N_FEATURES = 8
PART_ROWS = 250_000
LARGEST_RATIO, LARGEST_GROWTH, LARGEST_MB = 1.3, 1.15, 1500


def run(quick: bool = False) -> dict[str, Any]:
    n_rows, n_inducing = (40_000, 64) if quick else (10_000_000, 512)
    problem = synthetic(PART_ROWS if not quick else 4000, n_inducing, N_FEATURES)
    with tempfile.TemporaryDirectory(prefix="sparsegp-bench-") as name:
        write_parts(Path(name) / "all", problem, n_rows)
        write_parts(Path(name) / "tenth", problem, n_rows // 10)
        jobs = {"parquet": ("all", True), "parquet, a tenth": ("tenth", True), "memory, a tenth": ("tenth", False)}
        measured = {label: _measure(problem, Path(name) / part, streams) for label, (part, streams) in jobs.items()}
    document = {
        "machine": machine_facts(),
        "problem": {"n_rows": n_rows, "n_inducing": n_inducing, "n_features": N_FEATURES},
        "measured": measured,
        "ratios": _ratios(measured),
    }
    write_results(NAME, document, quick)
    _print(document)
    return document


def write_parts(folder: Path, problem: Arrays, n_rows: int) -> None:
    """The rows of the problem again and again, shifted by a little noise so that no two are equal."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    X, y = problem["X"], problem["y"]
    for part, start in enumerate(range(0, n_rows, len(y))):
        shifted = X + 0.01 * rng.standard_normal(X.shape)
        columns = {f"x{d}": shifted[:, d] for d in range(N_FEATURES)} | {"y": y}
        table = pa.table(columns).slice(0, min(len(y), n_rows - start))
        pq.write_table(table, folder / f"part-{part:03d}.parquet", row_group_size=100_000)


def _measure(problem: Arrays, folder: Path, streams: bool) -> dict[str, Any]:
    model = {name: problem[name] for name in ("Z", "lengthscales", "variance", "noise_var")}
    result = run_job(own_python(), "benchmarks.own.out_of_core", model, {"folder": str(folder), "streams": streams})
    return result.facts if result.error is None else {"error": result.error}


def _ratios(measured: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    per_row = {label: facts.get("microseconds_per_row") for label, facts in measured.items()}
    return {
        "parquet / memory": ratio(per_row["parquet"], per_row["memory, a tenth"]),
        "parquet / parquet, a tenth": ratio(per_row["parquet"], per_row["parquet, a tenth"]),
    }


def _print(document: dict[str, Any]) -> None:
    rows = [
        [
            label,
            number(facts.get("seconds"), 1),
            number(facts.get("microseconds_per_row"), 2),
            number(facts.get("survey_seconds"), 1),
            number(facts.get("peak_mb"), 0),
            number(facts.get("process_peak_mb"), 0),
        ]
        for label, facts in document["measured"].items()
    ]
    columns = ["", "seconds", "microseconds a row", "survey seconds", "peak MB above start", "peak MB of the process"]
    print_table(f"one pass over {document['problem']['n_rows']:,} rows", columns, rows)
    goals = zip(document["ratios"].items(), (LARGEST_RATIO, LARGEST_GROWTH), strict=True)
    table = [[label, number(value, 2), f"at most {goal}"] for (label, value), goal in goals]
    print_table(f"time a row (peak at most {LARGEST_MB} MB)", ["ratio", "measured", "goal"], table)
    for label, facts in document["measured"].items():
        if "error" in facts:
            console.print(f"{label} was not measured: {facts['error']}", markup=False)
