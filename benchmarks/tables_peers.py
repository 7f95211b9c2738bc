"""LightGBM and CatBoost on the tables as they come, with their native categories.

Every (target, peer) is a cell of results/tables_peers.json and is written as soon as it is known: a run can be stopped
and resumed. The peers get all rows, two threads and no limit of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.cells import Cell, is_wanted, run_method, store, stored_cells
from benchmarks.honesty_peers import KEPT, peer_scores
from benchmarks.jobs import NO_PEERS, peers_python
from benchmarks.methods import LIGHTGBM_OPTIONS, Method
from benchmarks.results import console, number, read_results
from benchmarks.table_data import TARGETS, coded, is_available, load_split

NAME = "tables_peers"
QUICK_ROWS = 400
THREADS = 2
SCORES = ("nlpd", "rmse", "coverage_95", "seconds")
PEERS = (
    Method(
        "lightgbm",
        "benchmarks.peers.lightgbm_quantiles",
        {**LIGHTGBM_OPTIONS, "trees": {**LIGHTGBM_OPTIONS["trees"], "num_threads": THREADS}},
        peer=True,
        quick={"max_rounds": 20},
    ),
    Method(
        "catboost",
        "benchmarks.peers.catboost_uncertainty",
        {"held_fraction": 0.1, "patience": 50, "max_rounds": 1000, "threads": THREADS},
        peer=True,
        quick={"max_rounds": 20},
    ),
)


def run(quick: bool = False, only: Sequence[str] = ()) -> dict[str, Any]:
    if peers_python() is None:
        console.print(f"skipped: {NO_PEERS}")
        return {}
    cells = stored_cells(NAME, quick)
    for name in filter(is_available, reversed(TARGETS)):
        for peer in PEERS:
            if is_wanted(cells, name, peer, quick, only):
                cell = _cell(name, peer, quick)
                store(NAME, name, peer.name, cell, quick)
                shown = cell.get("error") or "  ".join(
                    f"{s} {number(cell[s])}" for s in ("nlpd", "rmse", "coverage_95")
                )
                console.print(f"{name}:{peer.name} {shown}")
    return read_results(NAME, quick)


def summary(cell: Cell) -> str:
    return cell.get("error") or "  ".join(f"{score} {number(cell[score])}" for score in SCORES)


def _cell(name: str, peer: Method, quick: bool) -> Cell:
    options, split = peer.options_for(name, quick), load_split(name, QUICK_ROWS if quick else None)
    cell, result = run_method(peer, options, coded(split), len(split.y))
    cell |= {"n_test": len(split.y_test)}
    if result.error is not None:
        return cell
    scores = peer_scores(split.y_test, result.arrays, options)
    kept = {fact: result.facts[fact] for fact in KEPT if fact in result.facts}
    return {**cell, **scores, **kept, "rmse_in_units": scores["rmse"] * split.unit}


if __name__ == "__main__":
    run()
