"""Real data: RMSE, NLPD, CRPS, 95 % coverage and seconds of every method on every dataset, y standardised.

Each (dataset, method) is a cell of results/datasets.json. A cell whose settings have not changed is kept, so
a run can be interrupted and resumed; `--only dataset:method` (shell patterns allowed) runs cells again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from benchmarks.cells import Cells, is_wanted, run_method, store, stored_cells
from benchmarks.jobs import NO_PEERS, Arrays, peers_python
from benchmarks.methods import DATASETS, METHODS, ON_REQUEST, QUICK_DATASETS, QUICK_ROWS, Method
from benchmarks.real_data import is_available, load_split, not_available_message
from benchmarks.results import console, number, print_table, read_results
from benchmarks.scores import gaussian_scores, quantile_scores

NAME = "datasets"
SCORES = ("rmse", "nlpd", "crps", "coverage_95", "seconds")
COLUMNS = ("RMSE", "NLPD", "CRPS", "95 % coverage", "seconds")


def run(quick: bool = False, only: Sequence[str] = ()) -> dict[str, Any]:
    for dataset, methods in _work(stored_cells(NAME, quick), quick, only):
        problem = load_split(dataset, QUICK_ROWS if quick else None)
        for method in methods:
            cell = run_cell(method, method.options_for(dataset, quick), problem)
            store(NAME, dataset, method.name, cell, quick)
            console.print(f"{dataset}:{method.name} {_summary(cell)}")
    document = read_results(NAME, quick)
    _print(document.get("cells", {}))
    return document


def _work(cells: Cells, quick: bool, only: Sequence[str]) -> Iterator[tuple[str, list[Method]]]:
    """The cells to run, by dataset: those asked for, or else those missing, failed or with other settings."""
    named = [dataset for dataset in ON_REQUEST if any(pattern.startswith(dataset) for pattern in only)]
    for dataset in QUICK_DATASETS if quick else (*DATASETS, *named):
        methods = [m for m in METHODS if is_wanted(cells, dataset, m, quick, only)]
        if peers_python() is None and any(m.peer for m in methods):
            console.print(f"skipped the peers on {dataset}: {NO_PEERS}")
            methods = [m for m in methods if not m.peer]
        if methods and not is_available(dataset):
            console.print(not_available_message(dataset))
        elif methods:
            yield dataset, methods


def run_cell(method: Method, options: dict[str, Any], problem: Arrays) -> dict[str, Any]:
    """Train and predict in a fresh process, score here; a failure is recorded as such."""
    # our worker also gives the density of the test targets under models with a density of their own
    shown = {key: problem[key] for key in ("X", "y", "X_test", *(() if method.peer else ("y_test",)))}
    cell, result = run_method(method, options, shown, len(problem["y"]))
    if result.error is not None:
        return cell
    return {**cell, **_scores(problem["y_test"], result.arrays, options), **result.facts}


def _scores(y: np.ndarray, arrays: Arrays, options: dict[str, Any]) -> dict[str, float]:
    if "std" in arrays:
        return gaussian_scores(y, arrays)
    return quantile_scores(y, arrays, options["levels"])


def _summary(cell: dict[str, Any]) -> str:
    if "error" in cell:
        return f"failed: {cell['error']}"
    return "  ".join(f"{title} {number(cell[key])}" for title, key in zip(COLUMNS, SCORES, strict=True))


def _print(cells: Cells) -> None:
    for dataset, by_method in cells.items():
        known = [(m.name, by_method[m.name]) for m in METHODS if m.name in by_method]
        rows = [[name, *(number(cell.get(score)) for score in SCORES)] for name, cell in known]
        print_table(dataset, ["method", *COLUMNS], rows)
