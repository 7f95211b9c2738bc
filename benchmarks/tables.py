"""The default estimator within 60 s on tables as they come, with text, dates and missing values, beside the peers.

Every target is a cell of results/tables.json; those of the peers are of `tables_peers`, with the same split. Run it
alone on the machine: scores within a time budget depend on its load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from benchmarks.cells import Cell, Cells, is_wanted, run_method, store, stored_cells
from benchmarks.honesty_peers import COVERAGES
from benchmarks.markdown import machine_line, markdown_table
from benchmarks.methods import Method
from benchmarks.results import console, number, read_results
from benchmarks.table_data import TARGETS, is_available, load_split
from benchmarks.tables_peers import NAME as PEERS
from benchmarks.tables_peers import QUICK_ROWS, summary

from sparsegp.metrics import interval_coverage

NAME = "tables"
SHOWN = ("lightgbm", "catboost")
DEFAULT = Method(
    "default",
    "benchmarks.own.table",
    {"time_budget": 60.0, "coverages": list(COVERAGES)},
    quick={"time_budget": 3.0},
)


def run(quick: bool = False, only: Sequence[str] = ()) -> dict[str, Any]:
    cells = stored_cells(NAME, quick)
    for name in filter(is_available, reversed(TARGETS)):
        if is_wanted(cells, name, DEFAULT, quick, only):
            cell = _cell(name, quick)
            store(NAME, name, DEFAULT.name, cell, quick)
            console.print(f"{name} {summary(cell)}", markup=False)
    document = read_results(NAME, quick)
    for line in shortfalls(document.get("cells", {}), read_results(PEERS, quick).get("cells", {})):
        console.print(f"short: {line}")
    return document


def _cell(name: str, quick: bool) -> Cell:
    options, rows = DEFAULT.options_for(name, quick), QUICK_ROWS if quick else None
    split = load_split(name, rows)
    cell, result = run_method(DEFAULT, {**options, "target": name, "max_rows": rows}, {}, len(split.y))
    cell |= {"options": options, "n_test": len(split.y_test)}
    if result.error is not None:
        return cell
    arrays, y = result.arrays, split.y_test
    held = [interval_coverage(y, *ends) for ends in arrays["ends"]]
    rmse = float(np.sqrt(((arrays["mean"] - y) ** 2).mean()))
    return {
        **cell,
        "nlpd": -float(arrays["log_density"].mean()),
        "rmse": rmse,
        "rmse_in_units": rmse * split.unit,
        "crps": float(arrays["crps"].mean()),
        **{f"coverage_{100 * level:.0f}": share for level, share in zip(COVERAGES, held, strict=True)},
        **result.facts,
    }


def shortfalls(cells: Cells, peers: Cells) -> list[str]:
    """What is wanted of the default and does not hold."""
    short, ahead = [], 0
    for name, by_method in cells.items():
        cell, others = by_method[DEFAULT.name], peers.get(name, {})
        if "error" in cell:
            short.append(f"{name}: {cell['error']}")
            continue
        known = [others[peer] for peer in SHOWN if "nlpd" in others.get(peer, {})]
        ahead += bool(known) and cell["nlpd"] < min(peer["nlpd"] for peer in known)
        best = min((peer["rmse"] for peer in known), default=np.inf)
        if cell["rmse"] > 1.05 * best:
            short.append(
                f"{name}: RMSE is {cell['rmse'] / best:.3f} times that of the better peer, not 1.05 at the most"
            )
        if not 0.94 <= cell["coverage_95"] <= 0.96:
            short.append(f"{name}: coverage of 95 % is {cell['coverage_95']:.3f}, not between 0.94 and 0.96")
    if peers and ahead < 5:
        short.append(f"NLPD is better than that of both peers on {ahead} of {len(cells)} targets, not on 5")
    return short


def table(document: dict[str, Any]) -> str:
    """For the docs: ours beside the peers, with what was chosen and what does not hold."""
    cells, peers = document["cells"], read_results(PEERS).get("cells", {})
    rows, machine = [], {}
    for name in (name for name in TARGETS if name in cells):
        cell, others = cells[name][DEFAULT.name], peers.get(name, {})
        machine = cell["machine"]
        if "error" in cell:
            rows.append([name, cell["error"][:60], *([""] * 12)])
            continue
        scored = [cell, *(others.get(peer, {}) for peer in SHOWN)]
        rows.append(
            [
                name,
                f"{cell['approximation']}, {cell['kernel']}",
                *(
                    number(one.get(score), digits)
                    for score, digits in (("nlpd", 3), ("rmse_in_units", 3), ("coverage_95", 3), ("seconds", 0))
                    for one in scored
                ),
            ]
        )
    methods = ["", *(f" {peer}" for peer in SHOWN)]
    columns = [f"{score}{method}" for score in ("NLPD", "RMSE", "95 % coverage", "seconds") for method in methods]
    short = "".join(f"- {line}\n" for line in shortfalls(cells, peers))
    below = f"\nWhat was wanted and does not hold:\n\n{short}" if short else ""
    return machine_line(machine) + "\n" + markdown_table(["target", "chosen", *columns], rows) + below


if __name__ == "__main__":
    run()
