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
from benchmarks.honesty_peers import COVERAGES, set_sizes
from benchmarks.honesty_peers import NAME as PEERS
from benchmarks.markdown import machine_line, markdown_table
from benchmarks.methods import Method
from benchmarks.real_data import load_split
from benchmarks.results import console, number, print_table, read_results

from sparsegp.metrics import TargetValues, interval_coverage

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
SHOWN = ("lightgbm", "catboost", "gpboost")
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
    arrays = result.arrays
    held = [interval_coverage(y, *ends) for ends in arrays["ends"]]
    scores = {
        "nlpd": -float(arrays["log_density"].mean()),
        "rmse": float(np.sqrt(((arrays["mean"] - y) ** 2).mean())),
        "crps": float(arrays["crps"].mean()),
        **{f"coverage_{100 * level:.0f}": share for level, share in zip(COVERAGES, held, strict=True)},
    }
    return {**cell, **scores, **result.facts}


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
    """For the docs: ours beside the peers, with what was chosen and what was not met."""
    cells, peers = document["cells"], read_results(PEERS).get("cells", {})
    rows, machine = [], {}
    for name, by_method in sorted(cells.items()):
        cell, others = by_method[DEFAULT.name], peers.get(name, {})
        machine = cell["machine"]
        shown = f"{name}*" if name in DEVELOPMENT else name
        if "error" in cell:
            rows.append([shown, cell["error"][:60], *([""] * 10)])
            continue
        rows.append(
            [
                shown + (" (few values)" if cell["discrete"] else ""),
                f"{cell['approximation']}, {cell['kernel']}, {cell['calibration'].get('kind')}",
                *(number(score) for score in (cell["nlpd"], *(_of(others, peer, "nlpd") for peer in SHOWN))),
                *(
                    number(score)
                    for score in (cell["rmse"], _of(others, "lightgbm", "rmse"), _of(others, "gpboost", "rmse"))
                ),
                number(cell["crps"]),
                number(cell["coverage_95"]),
                number(cell["seconds"], 0),
            ]
        )
    columns = ["set", "chosen", "NLPD", *(f"NLPD {peer}" for peer in SHOWN), "RMSE", "RMSE lightgbm", "RMSE gpboost"]
    broken = "".join(f"- {line}\n" for line in broken_limits(cells, peers))
    shortfalls = f"\nLimits of `make honesty` that do not hold:\n\n{broken}" if broken else ""
    return (
        machine_line(machine)
        + "\n"
        + markdown_table([*columns, "CRPS", "95 % coverage", "seconds"], rows)
        + "\n* development sets\n"
        + shortfalls
    )


def _of(others: dict[str, Cell], peer: str, score: str) -> float | None:
    return others.get(peer, {}).get(score)


def _summary(cell: Cell) -> str:
    if "error" in cell:
        return f"failed: {cell['error']}"
    return (
        "  ".join(f"{score} {number(cell[score])}" for score in SCORES) + f"  {cell['approximation']} {cell['kernel']}"
    )


if __name__ == "__main__":
    found = run(only=sys.argv[1:]).get("cells", {})
    broken = broken_limits(found, read_results(PEERS).get("cells", {}))
    for line in broken:
        console.print(f"broken: {line}")
    sys.exit(bool(broken))
