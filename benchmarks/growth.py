"""Seconds and peak memory of fit and predict at 1e4 to 1e7 rows on disk, for vfe and pic, and how they grow.

    python -m benchmarks.growth [--rows 10000 100000] [--again]

Every cell is a process of its own: a fit with learned hyper-parameters straight from Parquet files, then `sparsegp
predict` of the same files. Cells are written down as they end; a cell that is there already is not measured again.
The exponent is the slope of log seconds in log rows, over the sizes from 1e5 rows on where there are two of them:
below, the start of a process is a good part of the time.
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
LARGE = 100_000
GOAL = 1.05
MEASURES = {"fit_seconds": "fit, s", "fit_peak_mb": "MB", "predict_seconds": "predict, s", "predict_peak_mb": "MB"}


def run(quick: bool = False, sizes: tuple[int, ...] = SIZES, again: bool = False) -> dict[str, Any]:
    sizes = (2_000, 4_000) if quick else sizes
    document = {} if again else read_results(NAME, quick)
    document |= {
        "machine": machine_facts(),
        "problem": {"n_features": N_FEATURES, "n_inducing": N_INDUCING, "block_rows": BLOCK_ROWS},
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
        write_parts(Path(folder) / "rows", synthetic(min(n_rows, PART_ROWS), 1, N_FEATURES), n_rows)
        for name in names:
            options = {"folder": folder, "approximation": name, "n_rows": n_rows, "n_inducing": N_INDUCING}
            options["n_blocks"] = max(1, round(n_rows / BLOCK_ROWS)) if name == "pic" else None
            done = run_job(own_python(), "benchmarks.own.growth", {}, options)
            yield name, {"n_rows": n_rows, **(done.facts if done.error is None else {"error": done.error})}


def exponents(cells: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of seconds in rows, for each approximation."""
    found: dict[str, dict[str, float]] = {}
    for name in APPROXIMATIONS:
        measured = [facts for key, facts in cells.items() if key.split()[0] == name and "error" not in facts]
        large = [facts for facts in measured if facts["n_rows"] >= LARGE]
        used = large if len(large) > 1 else measured
        if len(used) > 1:
            rows = np.log([facts["n_rows"] for facts in used])
            found[name] = {
                measure: float(np.polyfit(rows, np.log([facts[measure] for facts in used]), 1)[0])
                for measure in ("fit_seconds", "predict_seconds")
            }
    return found


def rows_of_table(document: dict[str, Any]) -> list[list[str]]:
    cells = sorted(document["cells"].items(), key=lambda cell: (cell[0].split()[0], cell[1]["n_rows"]))
    table = [
        [key.split()[0], f"{facts['n_rows']:,}", *(number(facts.get(measure), 1) for measure in MEASURES)]
        for key, facts in cells
    ]
    for name, found in document.get("exponents", {}).items():
        fit, predict = number(found["fit_seconds"], 2), number(found["predict_seconds"], 2)
        table.append([name, f"exponent (goal {GOAL})", fit, "", predict, ""])
    return table


def _print(document: dict[str, Any]) -> None:
    print_table("growth with rows on disk", ["", "rows", *MEASURES.values()], rows_of_table(document))
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
