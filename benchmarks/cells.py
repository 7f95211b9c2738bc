"""Cells (dataset, method) of a results file: kept while their settings are the same, so that a run can be resumed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fcntl import LOCK_EX, flock
from fnmatch import fnmatch
from typing import Any

from benchmarks.jobs import Arrays, JobResult, own_python, peers_python, run_job
from benchmarks.methods import Method
from benchmarks.results import machine_facts, read_results, results_path, write_results

Cell = dict[str, Any]
Cells = dict[str, dict[str, Cell]]


def stored_cells(name: str, quick: bool) -> Cells:
    cells: Cells = read_results(name, quick).get("cells", {})
    return cells


def store(name: str, dataset: str, method: str, cell: Cell, quick: bool) -> None:
    """Put one cell into the file as it is now: another run may have added cells of its own meanwhile."""
    folder = results_path(name, quick).parent
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        flock(lock, LOCK_EX)
        document = read_results(name, quick)
        document.setdefault("cells", {}).setdefault(dataset, {})[method] = cell
        write_results(name, document, quick)
    finally:
        os.close(lock)


def is_wanted(cells: Cells, dataset: str, method: Method, quick: bool, only: Sequence[str]) -> bool:
    """A cell that is asked for (`dataset:method`, shell patterns), or else missing, failed or with other settings."""
    if only:
        return any(fnmatch(f"{dataset}:{method.name}", pattern) for pattern in only)
    cell = cells.get(dataset, {}).get(method.name, {})
    return "error" in cell or cell.get("options") != method.options_for(dataset, quick)


def run_method(
    method: Method, options: dict[str, Any], shown: Arrays, n_train: int, cpu_limit: int | None = None
) -> tuple[Cell, JobResult]:
    """Train and predict in a fresh process; the start of a cell, with the error of one that failed."""
    python = peers_python() if method.peer else own_python()
    result = run_job(python, method.module, shown, options, cpu_limit)
    cell = {"options": options, "machine": machine_facts(), "n_train": n_train}
    return (cell if result.error is None else {**cell, "error": result.error}), result
