"""Honesty of the peers: NLPD, RMSE, CRPS, coverage and width of other libraries' forecasts on every numeric set.

All sets of the data folder with at least 1,000 rows, the cheapest first, one thread a peer. Each (set, peer) is a cell
of results/honesty_peers.json and is written as soon as it is known, so a run can be stopped and resumed. A peer that
cannot end within four minutes of processor time gets a part of the rows: `n_train` says how many.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
from benchmarks.cells import Cell, Cells, is_wanted, run_method, store, stored_cells
from benchmarks.jobs import NO_PEERS, Arrays, peers_python
from benchmarks.methods import LEVELS, LIGHTGBM_OPTIONS, Method
from benchmarks.quantile_density import fit_quantile_density
from benchmarks.real_data import data_folder, load_split
from benchmarks.results import console, number, print_table, read_results
from benchmarks.scores import gaussian_scores, quantile_scores

from sparsegp.metrics import TargetValues, interval_coverage, interval_width

NAME = "honesty_peers"
FEWEST_ROWS = 1000
CPU_LIMIT = 240
COVERAGES = (0.5, 0.8, 0.95, 0.99)
WIDE = 0.95
SCORES = (
    "nlpd",
    "rmse",
    "crps",
    *(f"coverage_{100 * level:.0f}" for level in COVERAGES),
    "width_95",
    "interval_score_95",
    "n_train",
    "seconds",
)
KEPT = ("seconds", "cpu_seconds", "predict_seconds", "version", "rounds", "chosen")
QUICK_SETS, QUICK_ROWS = 1, 300
COST = {
    "lightgbm": 2,
    "lightgbm-cqr": 2,
    "catboost": 1,
    "quantile-forest": 1,
    "muygps": 2,
    "gpboost": 10,
    "gpboost-vif": 30,
}

ONE_THREAD = {**LIGHTGBM_OPTIONS["trees"], "num_threads": 1}
CQR_LEVELS = [0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975]
"""Pairs around the median: central intervals of 50, 80, 90 and 95 %."""
CATBOOST_OPTIONS = {"held_fraction": 0.1, "patience": 50, "max_rounds": 1000, "most_rows": 200_000}

PEERS = (
    Method(
        "lightgbm",
        "benchmarks.peers.lightgbm_quantiles",
        {**LIGHTGBM_OPTIONS, "trees": ONE_THREAD, "most_rows": 200_000},
        peer=True,
        quick={"max_rounds": 30},
    ),
    Method(
        "lightgbm-cqr",
        "benchmarks.peers.lightgbm_conformal",
        {
            **LIGHTGBM_OPTIONS,
            "trees": ONE_THREAD,
            "levels": CQR_LEVELS,
            "conform_fraction": 0.1,
            "most_rows": 200_000,
        },
        peer=True,
        quick={"max_rounds": 30, "conform_fraction": 0.2},
    ),
    Method("catboost", "benchmarks.peers.catboost_uncertainty", CATBOOST_OPTIONS, peer=True, quick={"max_rounds": 30}),
    Method(
        "gpboost",
        "benchmarks.peers.gpboost_vecchia",
        {"cov_function": "matern_ard", "shape": 1.5, "n_neighbours": 20, "most_rows": 200_000},
        peer=True,
    ),
    Method(
        "gpboost-vif",
        "benchmarks.peers.gpboost_vecchia",
        {"cov_function": "matern_ard", "shape": 1.5, "n_neighbours": 20, "n_inducing": 200, "most_rows": 200_000},
        peer=True,
        quick={"n_inducing": 50},
    ),
    Method(
        "quantile-forest",
        "benchmarks.peers.quantile_forest_trees",
        {
            "levels": LEVELS,
            "n_trees": 100,
            "min_samples_leaf": [1, 5, 20],
            "held_rows": 4000,
            "most_rows": 200_000,
        },
        peer=True,
        quick={"n_trees": 30},
    ),
    Method(
        "muygps",
        "benchmarks.peers.muygps_local",
        {
            "smoothness": 1.5,
            "n_neighbours": 30,
            "batch": 200,
            "max_steps": 30,
            "held_fraction": 0.1,
            "most_rows": 200_000,
        },
        peer=True,
        quick={"max_steps": 3},
    ),
)


def run(quick: bool = False, only: Sequence[str] = ()) -> dict[str, Any]:
    if peers_python() is None:
        console.print(f"skipped: {NO_PEERS}")
        return {}
    os.environ["OMP_NUM_THREADS"] = "1"
    for name, peer in _work(stored_cells(NAME, quick), quick, only):
        cell = _first_that_ends(peer, peer.options_for(name, quick), load_split(name, QUICK_ROWS if quick else None))
        store(NAME, name, peer.name, cell, quick)
        console.print(f"{name}:{peer.name} {_summary(cell)}")
    document = read_results(NAME, quick)
    _print(document.get("cells", {}))
    return document


def set_sizes() -> dict[str, int]:
    """The rows of every set that has enough of them."""
    n_rows = {path.stem: parquet.read_metadata(path).num_rows for path in data_folder().glob("*.parquet")}
    return {name: n for name, n in sorted(n_rows.items()) if n >= FEWEST_ROWS}


def _work(cells: Cells, quick: bool, only: Sequence[str]) -> list[tuple[str, Method]]:
    """Cells to run, the cheapest first."""
    n_rows = set_sizes()
    names = sorted(n_rows, key=n_rows.__getitem__)[: QUICK_SETS if quick else None]
    wanted = [(name, peer) for name in names for peer in PEERS if is_wanted(cells, name, peer, quick, only)]
    return sorted(wanted, key=lambda cell: n_rows[cell[0]] * COST[cell[1].name])


def _first_that_ends(peer: Method, options: dict[str, Any], problem: Arrays) -> Cell:
    """With as many rows as allowed, and once more with a quarter of those that took too long."""
    n_rows = min(len(problem["y"]), options["most_rows"])
    cell = _cell(peer, options, problem, n_rows)
    if "did not end" in cell.get("error", ""):
        tried = {"too_slow_with": n_rows, "cpu_limit": CPU_LIMIT}
        cell = {**_cell(peer, options, problem, n_rows // 4), **tried}
    return cell


def _cell(peer: Method, options: dict[str, Any], problem: Arrays, n_rows: int) -> Cell:
    shown = {"X": problem["X"][:n_rows], "y": problem["y"][:n_rows], "X_test": problem["X_test"]}
    cell, result = run_method(peer, options, shown, n_rows, CPU_LIMIT)
    y = problem["y_test"]
    cell |= {"n_test": len(y), "discrete": TargetValues.of(problem["y"]).is_discrete}
    if result.error is not None:
        return cell
    return {
        **cell,
        **peer_scores(y, result.arrays, options),
        **{name: result.facts[name] for name in KEPT if name in result.facts},
    }


def peer_scores(y: np.ndarray, arrays: Arrays, options: dict[str, Any]) -> dict[str, float]:
    if "std" in arrays:
        return {**gaussian_scores(y, arrays), **_gaussian_intervals(y, arrays)}
    levels = options["levels"]
    density = fit_quantile_density(np.array(levels), arrays["held_y"], arrays["held_quantiles"])
    ends = {level: density.interval(arrays["quantiles"], level) for level in COVERAGES}
    return {**quantile_scores(y, arrays, levels), **interval_scores(y, ends)}


def _gaussian_intervals(y: np.ndarray, arrays: Arrays) -> dict[str, float]:
    half = {level: NormalDist().inv_cdf(0.5 + level / 2.0) * arrays["std"] for level in COVERAGES}
    ends = {level: (arrays["mean"] - width, arrays["mean"] + width) for level, width in half.items()}
    return interval_scores(y, ends)


def interval_scores(y: np.ndarray, ends: dict[float, tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Coverage of each interval; of that of 95 % the mean width and the interval score of Gneiting and Raftery too."""
    low, high = ends[WIDE]
    outside = np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0)
    width = interval_width(low, high)
    return {
        **{f"coverage_{100 * level:.0f}": interval_coverage(y, *pair) for level, pair in ends.items()},
        "width_95": width,
        "interval_score_95": width + 2.0 / (1.0 - WIDE) * float(outside.mean()),
    }


def _summary(cell: Cell) -> str:
    if "error" in cell:
        return f"failed: {cell['error']}"
    return "  ".join(f"{score} {number(cell[score])}" for score in SCORES)


def _print(cells: Cells) -> None:
    for name, by_peer in cells.items():
        print_table(name, ["peer", *SCORES], [[p, *(number(c.get(s)) for s in SCORES)] for p, c in by_peer.items()])


if __name__ == "__main__":
    run()
