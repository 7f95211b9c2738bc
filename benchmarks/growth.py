"""Seconds and peak memory of fit and predict at 1e4 to 1e7 rows on disk, for vfe and pic, and how they grow.

    python -m benchmarks.growth [--rows 10000 100000] [--again]

Every cell is a process of its own: a fit straight from Parquet files, then `sparsegp predict` of these files, or of the
first million of their rows. Hyper-parameters are given: how many passes learning takes does not depend on rows alone,
and each of them is like those measured here. All sizes take about ten minutes on two cores, nine of them the largest.
Cells are written down as they end; a cell that is there already is not measured again. The exponent is the slope of log
seconds in log rows, over the sizes from 1e5 rows on where there are two of them: below, the start of a process is a
good part of the time. That of predict leaves out models of more rows than are predicted.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.jobs import own_python, run_job
from benchmarks.out_of_core import write_parts
from benchmarks.problems import synthetic
from benchmarks.results import console, machine_facts, number, print_table, read_results, write_results

NAME = "growth"
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
APPROXIMATIONS = ("vfe", "pic")
N_FEATURES, N_INDUCING, BLOCK_ROWS, PART_ROWS = 8, 256, 800, 250_000
LARGE, MOST_PREDICTED = 100_000, 1_000_000
GOAL = 1.05
MEASURES = {"fit_seconds": "fit, s", "fit_peak_mb": "MB", "predict_seconds": "predict, s", "predict_peak_mb": "MB"}


def run(quick: bool = False, sizes: tuple[int, ...] = SIZES, again: bool = False) -> dict[str, Any]:
    sizes = (2_000, 4_000) if quick else sizes
    document = {} if again else read_results(NAME, quick)
    document |= {
        "machine": machine_facts(),
        "problem": {
            "n_features": N_FEATURES,
            "n_inducing": N_INDUCING,
            "block_rows": BLOCK_ROWS,
            "most_predicted": MOST_PREDICTED,
            "hyper-parameters": "given",
        },
    }
    cells: dict[str, dict[str, Any]] = document.setdefault("cells", {})
    for n_rows in sizes:
        missing = [name for name in APPROXIMATIONS if "error" in cells.get(f"{name} {n_rows}", {"error": ""})]
        for name, facts in _measured(n_rows, missing):
            cells[f"{name} {n_rows}"] = facts
            document["exponents"] = exponents(cells)
            write_results(NAME, document, quick)
    _print(document)
    return document


def _measured(n_rows: int, names: list[str]) -> Any:
    if not names:
        return
    with tempfile.TemporaryDirectory(prefix="sparsegp-bench-") as folder:
        problem = synthetic(min(n_rows, PART_ROWS), 1, N_FEATURES)
        write_parts(Path(folder) / "rows", problem, n_rows)
        _link_first_parts(Path(folder), -(-min(n_rows, MOST_PREDICTED) // PART_ROWS))
        given = {name: problem[name] for name in ("lengthscales", "variance", "noise_var")}
        for name in names:
            options = {"folder": folder, "approximation": name, "n_rows": n_rows, "n_inducing": N_INDUCING}
            options["n_blocks"] = max(1, round(n_rows / BLOCK_ROWS)) if name == "pic" else None
            facts: dict[str, Any] = {"n_rows": n_rows, "n_predicted": min(n_rows, MOST_PREDICTED)}
            for work in ("fit", "predict"):
                done = run_job(own_python(), "benchmarks.own.growth", given, {**options, "work": work})
                facts |= done.facts if done.error is None else {"error": done.error}
            yield name, facts


def _link_first_parts(folder: Path, n_parts: int) -> None:
    """The rows to predict, beside those of the fit."""
    (folder / "new").mkdir()
    for part in sorted((folder / "rows").iterdir())[:n_parts]:
        (folder / "new" / part.name).hardlink_to(part)


def exponents(cells: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of seconds in rows, for each approximation."""
    found: dict[str, dict[str, float]] = {}
    for name in APPROXIMATIONS:
        measured = [facts for key, facts in cells.items() if key.split()[0] == name and "error" not in facts]
        whole = [facts for facts in measured if facts["n_predicted"] == facts["n_rows"]]
        slopes = {"fit_seconds": _slope(measured, "fit_seconds"), "predict_seconds": _slope(whole, "predict_seconds")}
        found[name] = {measure: slope for measure, slope in slopes.items() if slope is not None}
    return found


def _slope(measured: list[dict[str, Any]], measure: str) -> float | None:
    large = [facts for facts in measured if facts["n_rows"] >= LARGE]
    used = large if len(large) > 1 else measured
    if len(used) < 2:
        return None
    rows, seconds = (np.log([facts[name] for facts in used]) for name in ("n_rows", measure))
    return float(np.polyfit(rows, seconds, 1)[0])


def rows_of_table(document: dict[str, Any]) -> list[list[str]]:
    cells = sorted(document["cells"].items(), key=lambda cell: (cell[0].split()[0], cell[1]["n_rows"]))
    table = [
        [
            key.split()[0],
            *(f"{facts[count]:,}" for count in ("n_rows", "n_predicted")),
            *(number(facts.get(measure), 1) for measure in MEASURES),
        ]
        for key, facts in cells
    ]
    for name, found in document.get("exponents", {}).items():
        fit, predict = number(found.get("fit_seconds"), 2), number(found.get("predict_seconds"), 2)
        table.append([name, f"exponent (goal {GOAL})", "", fit, "", predict, ""])
    return table


def _print(document: dict[str, Any]) -> None:
    print_table("growth with rows on disk", ["", "rows", "predicted", *MEASURES.values()], rows_of_table(document))
    for key, facts in document["cells"].items():
        if "error" in facts:
            console.print(f"{key} was not measured: {facts['error']}", markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__)
    parser.add_argument("--rows", nargs="+", type=int, default=list(SIZES), help="sizes to measure")
    parser.add_argument("--again", action="store_true", help="measure again what is there already")
    given = parser.parse_args()
    run(sizes=tuple(given.rows), again=given.again)


if __name__ == "__main__":
    main()
