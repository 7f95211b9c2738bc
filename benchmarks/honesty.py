"""Honesty of the default: coverage, NLPD, CRPS, RMSE and seconds of `SparseGPRegressor(time_budget=60)` on every set.

All sets of the data folder with at least 1,000 rows, each in a fresh process, alone on the machine. Each is a cell of
results/honesty.json. `make honesty` ends with an error where a limit is broken; it compares with the cells of
honesty_peers, which has the same split.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from benchmarks.cells import Cell, Cells, is_wanted, run_method, store, stored_cells
from benchmarks.honesty_peers import COVERAGES, PEERS, interval_scores, set_sizes
from benchmarks.honesty_peers import NAME as PEERS_NAME
from benchmarks.jobs import Arrays
from benchmarks.markdown import machine_line, markdown_table
from benchmarks.methods import Method
from benchmarks.real_data import load_split
from benchmarks.results import console, number, print_table, read_results

from sparsegp.metrics import TargetValues

NAME = "honesty"
SCORES = ("nlpd", "rmse", "crps", *(f"coverage_{100 * level:.0f}" for level in COVERAGES), "seconds")
DEVELOPMENT = (
    "protein",
    "coads_slp",
    "bike_noleak",
    "kin40k",
    "flights_nyc2013",
    "concrete",
    "wine_red",
    "sarcos_test4449",
    "kin8nm",
    "pol",
    "road3d_excerpt",
    "keggundirected",
)
"""Sets on which settings were chosen, on rows cut from their training rows. The others were only looked at."""
LIMITS = {"protein": 0.05, "coads_slp": -0.90, "bike_noleak": -0.50, "kin40k": -1.25, "flights_nyc2013": -0.1}
"""NLPD within 60 s."""
MANY_TEST_ROWS = 2_000
OURS, SECONDS = "sparsegp", "cpu_seconds"
LOWER_IS_BETTER = ("nlpd", "crps", "rmse", "interval_score_95")
COMPARED = {
    "nlpd": "NLPD",
    "crps": "CRPS",
    "rmse": "RMSE",
    "coverage_95": "Coverage of the 95 % interval",
    "width_95": "Mean width of the 95 % interval",
    "interval_score_95": "Interval score of the 95 % interval",
    SECONDS: "Seconds of processor time to learn, one thread",
}
QUICK_SETS, QUICK_ROWS = 2, 1_200
DEFAULT = Method(
    "default",
    "benchmarks.own.default",
    {"time_budget": 60.0, "coverages": list(COVERAGES)},
    quick={"time_budget": 3.0},
)


def run(quick: bool = False, only: Sequence[str] = ()) -> dict[str, Any]:
    n_rows, cells = set_sizes(), stored_cells(NAME, quick)
    names = sorted(n_rows, key=n_rows.__getitem__)[: QUICK_SETS if quick else None]
    for name in names:
        if is_wanted(cells, name, DEFAULT, quick, only):
            cell = _cell(name, quick)
            store(NAME, name, DEFAULT.name, cell, quick)
            console.print(f"{name} {_summary(cell)}")
    document = read_results(NAME, quick)
    found = document.get("cells", {})
    rows = [[name, *(number(cell[DEFAULT.name].get(score)) for score in SCORES)] for name, cell in found.items()]
    print_table("default estimator, 60 s", ["set", *SCORES], rows)
    return document


def _cell(name: str, quick: bool) -> Cell:
    problem, options = load_split(name, QUICK_ROWS if quick else None), DEFAULT.options_for(name, quick)
    cell, result = run_method(DEFAULT, options, problem, len(problem["y"]))
    y = problem["y_test"]
    cell |= {"n_test": len(y), "discrete": TargetValues.of(problem["y"]).is_discrete}
    if result.error is not None:
        return cell
    return {**cell, **default_scores(y, result.arrays), **result.facts}


def default_scores(y: np.ndarray, arrays: Arrays) -> dict[str, float]:
    """Scores of what the worker of the default gives back."""
    return {
        "nlpd": -float(arrays["log_density"].mean()),
        "rmse": float(np.sqrt(((arrays["mean"] - y) ** 2).mean())),
        "crps": float(arrays["crps"].mean()),
        **interval_scores(y, dict(zip(COVERAGES, arrays["ends"], strict=True))),
    }


def broken_limits(cells: Cells, peers: Cells) -> list[str]:
    """What is said of the default and does not hold."""
    broken, ahead, near = [], [], []
    for name, by_method in cells.items():
        cell = by_method[DEFAULT.name]
        if "error" in cell:
            broken.append(f"{name}: {cell['error']}")
            continue
        low, high = (0.94, 0.96) if cell["n_test"] >= MANY_TEST_ROWS else (0.92, 0.98)
        if not low <= cell["coverage_95"] <= high:
            broken.append(f"{name}: coverage of 95 % is {cell['coverage_95']:.3f}, not between {low} and {high}")
        if cell["seconds"] > 1.1 * cell["options"]["time_budget"] + 1.0:
            broken.append(f"{name}: {cell['seconds']:.0f} s for a budget of {cell['options']['time_budget']:.0f} s")
        if cell["nlpd"] > LIMITS.get(name, np.inf):
            broken.append(f"{name}: NLPD {cell['nlpd']:.3f} above {LIMITS[name]}")
        others = peers.get(name, {})
        if "nlpd" in others.get("lightgbm", {}) and not cell["discrete"]:
            ahead.append(cell["nlpd"] < others["lightgbm"]["nlpd"])
        rmse = [others[peer]["rmse"] for peer in ("lightgbm", "gpboost") if "rmse" in others.get(peer, {})]
        if rmse:
            near.append(cell["rmse"] <= 1.03 * min(rmse))
    if ahead and np.mean(ahead) < 0.9:
        broken.append(f"NLPD ahead of LightGBM on {sum(ahead)} of {len(ahead)} sets, not on 90 %")
    if near and np.mean(near) < 0.8:
        broken.append(f"RMSE within 1.03 of the better of LightGBM and GPBoost on {sum(near)} of {len(near)}, not 80 %")
    return broken


def table(document: dict[str, Any]) -> str:
    """For the docs: what was chosen for each set, and its scores."""
    cells, rows, machine = document["cells"], [], {}
    for name, by_method in sorted(cells.items()):
        cell = by_method[DEFAULT.name]
        machine = cell["machine"]
        if "error" in cell:
            rows.append([_shown(name, cell), cell["error"][:60], *([""] * 6)])
            continue
        rows.append(
            [
                _shown(name, cell),
                f"{cell['approximation']}, {cell['kernel']}, {cell['calibration'].get('kind')}",
                *(number(cell.get(score)) for score in ("nlpd", "rmse", "crps", "coverage_95", "width_95")),
                number(cell["seconds"], 0),
            ]
        )
    columns = ["set", "chosen", "NLPD", "RMSE", "CRPS", "95 % coverage", "95 % width", "seconds"]
    return machine_line(machine) + "\n" + markdown_table(columns, rows) + "\n* development sets\n"


def peers_table(document: dict[str, Any]) -> str:
    """For the docs: ours against each peer in one table, then a table for each score; the best of a row is bold."""
    ours, peers = read_results(NAME).get("cells", {}), document["cells"]
    cells = {name: {OURS: ours[name][DEFAULT.name], **peers[name]} for name in sorted(peers) if name in ours}
    methods = [OURS, *(peer.name for peer in PEERS if any(peer.name in found for found in cells.values()))]
    parts = [_won(cells, methods[1:])]
    for score, title in COMPARED.items():
        measured = {name: found for name, found in cells.items() if any(score in cell for cell in found.values())}
        rows = [[_shown(name, found[OURS]), *_row(found, methods, score)] for name, found in measured.items()]
        parts.append(f"**{title}**\n\n" + markdown_table(["", *methods], rows))
    return "\n".join(parts)


def _won(cells: Cells, methods: list[str]) -> str:
    """On how many sets ours has the lower score; the density of a target with few values is not meaningful."""
    rows = []
    for method in methods:
        row = [f"against {method}"]
        for score in LOWER_IS_BETTER:
            pairs = [
                (found[OURS][score], found[method][score])
                for found in cells.values()
                if score in found[OURS] and score in found.get(method, {})
                if score != "nlpd" or not found[OURS]["discrete"]
            ]
            row.append(f"{sum(own < other for own, other in pairs)} of {len(pairs)}" if pairs else number(None))
        rows.append(row)
    return markdown_table(["sets where ours is lower", "NLPD", "CRPS", "RMSE", "interval score"], rows)


def _row(found: dict[str, Cell], methods: list[str], score: str) -> list[str]:
    """The best is bold where ours is among them; a dagger is behind what was learned from a part of the rows."""
    values = {method: found[method][score] for method in methods if score in found.get(method, {})}
    best = min(values.values()) if OURS in values and score in LOWER_IS_BETTER else None
    shown = []
    for method in methods:
        value = values.get(method)
        text = number(value, 0 if score == SECONDS else 3)
        text = f"**{text}**" if value is not None and value == best else text
        part = value is not None and found[method]["n_train"] < found[OURS]["n_train"]
        shown.append(f"{text} †" if part else text)
    return shown


def _shown(name: str, cell: Cell) -> str:
    return name + ("*" if name in DEVELOPMENT else "") + (" (few values)" if cell.get("discrete") else "")


def _summary(cell: Cell) -> str:
    if "error" in cell:
        return f"failed: {cell['error']}"
    return (
        "  ".join(f"{score} {number(cell[score])}" for score in SCORES) + f"  {cell['approximation']} {cell['kernel']}"
    )


if __name__ == "__main__":
    found = run(only=sys.argv[1:]).get("cells", {})
    broken = broken_limits(found, read_results(PEERS_NAME).get("cells", {}))
    for line in broken:
        console.print(f"broken: {line}")
    sys.exit(bool(broken))
