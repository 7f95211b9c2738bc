"""Seconds asked for and used: fits with a time budget on real data, alone and beside two busy processes.

Cells are kept in results/budgets.json; `--only dataset:approximation` (shell patterns allowed) runs some of them again.
A cell knows the load of the machine before it began: only figures of a machine without other work are those of "alone".
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any

from benchmarks.jobs import own_python, run_job
from benchmarks.real_data import is_available, load_split, not_available_message
from benchmarks.results import console, machine_facts, number, print_table, read_results, write_results

NAME = "budgets"
DATASETS = ("wine_red", "concrete", "road3d_excerpt", "keggundirected", "coads_slp", "etopo5_europe", "flights_us2001")
APPROXIMATIONS = ("vfe", "fitc", "pic", "auto")
SECONDS = (2.0, 5.0, 15.0, 60.0)
NEIGHBOURS = (0, 2)
BUSY = "while True: sum(range(10000))"


def run(quick: bool = False, only: Sequence[str] = ()) -> dict[str, Any]:
    document = {"machine": machine_facts(), "cells": read_results(NAME, quick).get("cells", {})}
    for dataset in ("wine_red",) if quick else DATASETS:
        names = [name for name in APPROXIMATIONS if not only or any(fnmatch(f"{dataset}:{name}", o) for o in only)]
        if names and not is_available(dataset):
            console.print(not_available_message(dataset))
            continue
        problem = load_split(dataset) if names else {}
        for name in names:
            for seconds in (2.0,) if quick else SECONDS:
                for neighbours in NEIGHBOURS:
                    cell = _cell(problem, name, seconds, neighbours)
                    document["cells"][f"{dataset}:{name}:{seconds:g}:{neighbours}"] = cell
                    write_results(NAME, document, quick)
                    console.print(f"{dataset}:{name} {seconds:g} s, {neighbours} neighbours: {cell}", markup=False)
    _print(document["cells"])
    return document


def is_kept(asked: float, used: float) -> bool:
    """What the documentation promises."""
    return used <= 1.1 * asked + 1.0


def _cell(problem: dict[str, Any], approximation: str, seconds: float, neighbours: int) -> dict[str, Any]:
    shown = {key: problem[key] for key in ("X", "y", "X_test", "y_test")}
    load = os.getloadavg()[0]
    with busy(neighbours):
        options = {"approximation": approximation, "time_budget": seconds}
        result = run_job(own_python(), "benchmarks.own.budgets", shown, options)
    if result.error is not None:
        return {"error": result.error}
    return {"asked": seconds, **result.facts, "is_kept": is_kept(seconds, result.facts["used"]), "load_before": load}


@contextmanager
def busy(n: int) -> Iterator[None]:
    """Other processes that compute for as long as this lasts."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(n)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _print(cells: dict[str, Any]) -> None:
    rows = [
        [name, number(cell.get("used"), 1), "yes" if cell.get("is_kept") else "no", number(cell.get("fraction"), 2)]
        for name, cell in cells.items()
    ]
    print_table("dataset:approximation:seconds asked:busy neighbours", ["", "used", "kept", "fraction of rows"], rows)
