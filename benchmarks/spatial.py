"""Maps with whole blocks left out: ours, GPBoost and LightGBM, scored as in the comparison of Heaton et al. (2019).

A fifth of the blocks of longitude and latitude is left out, so most test rows are far from every training row. Each
(map, method) is a cell of results/spatial.json and is written as soon as it is known: a run can be stopped and resumed.
`python -m benchmarks.run spatial --only '*:default' --only '*:great-circle'` measures ours again, in three minutes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
from benchmarks.cells import Cell, is_wanted, run_method, store, stored_cells
from benchmarks.honesty import default_scores
from benchmarks.honesty_peers import COVERAGES, CPU_LIMIT, KEPT, PEERS, peer_scores
from benchmarks.jobs import Arrays, peers_python
from benchmarks.markdown import machine_line, markdown_table
from benchmarks.methods import Method
from benchmarks.real_data import data_folder
from benchmarks.results import console, number, read_results

NAME = "spatial"
HELD_BLOCKS, SEED = 0.2, 1
IN_UNITS = ("mae", "rmse", "crps", "interval_score_95", "width_95")
SCORES = (*IN_UNITS, "coverage_95", "seconds")
BUDGET = 30.0
QUICK_THINNING = 6


@dataclass(frozen=True)
class Map:
    """One value for each place; `month` of those sets that have one, every `thinning`-th column and row of the grid."""

    name: str
    source: str
    title: str
    unit: str
    block_degrees: float
    month: int | None = None
    thinning: int = 1


MAPS = (
    Map("coads_january", "coads_slp", "Pressure at sea level in January, whole earth", "hPa", 10.0, month=1),
    Map("etopo5_europe", "etopo5_europe", "Height of land and sea floor, Europe", "m", 4.0, thinning=4),
)
OURS = (
    Method(
        "default",
        "benchmarks.own.default",
        {"time_budget": BUDGET, "coverages": list(COVERAGES)},
        quick={"time_budget": 3.0},
    ),
    Method(
        "great-circle",
        "benchmarks.own.default",
        {"time_budget": BUDGET, "coverages": list(COVERAGES), "kernel": "great_circle"},
        quick={"time_budget": 3.0},
    ),
)
BY_NAME = {peer.name: peer for peer in PEERS}
SPHERE = "sphere"
METHODS = (
    *OURS,
    BY_NAME["gpboost"],
    Method(
        "gpboost-sphere",
        BY_NAME["gpboost"].module,
        {**BY_NAME["gpboost"].options, "coordinates": SPHERE},
        peer=True,
    ),
    BY_NAME["lightgbm"],
)


def run(quick: bool = False, only: Sequence[str] = ()) -> dict[str, Any]:
    os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    cells = stored_cells(NAME, quick)
    for place in MAPS:
        for method in METHODS:
            if (method.peer and peers_python() is None) or not is_wanted(cells, place.name, method, quick, only):
                continue
            cell = _cell(place, method, quick)
            store(NAME, place.name, method.name, cell, quick)
            shown = "  ".join(f"{score} {number(cell.get(score))}" for score in SCORES)
            console.print(f"{place.name}:{method.name} {cell.get('error') or shown}")
    return read_results(NAME, quick)


def load_blocks(place: Map, thinning: int) -> tuple[Arrays, float]:
    """Training rows with the number of their block, rows of blocks left out, and the unit of the standardised y."""
    table = parquet.read_table(data_folder() / f"{place.source}.parquet")
    columns = {name: table[name].to_numpy().astype(np.float64) for name in table.column_names}
    shown = np.ones(len(table), dtype=bool) if place.month is None else columns["month"] == place.month
    for name in ("lon", "lat"):
        shown &= np.isin(columns[name], np.unique(columns[name])[::thinning])
    X = np.column_stack([columns["lon"], columns["lat"]])[shown]
    y = columns["y"][shown]
    _, block = np.unique(np.floor(X / place.block_degrees), axis=0, return_inverse=True)
    rng = np.random.default_rng(SEED)
    held = np.isin(block, rng.permutation(block.max() + 1)[: round(HELD_BLOCKS * (block.max() + 1))])
    order = rng.permutation(np.flatnonzero(~held))
    mean, std = y[order].mean(), y[order].std()
    _, groups = np.unique(block[order], return_inverse=True)
    arrays = {"X": X[order], "y": (y[order] - mean) / std, "X_test": X[held], "y_test": (y[held] - mean) / std}
    return {**arrays, "groups": groups}, float(std)


def on_sphere(X: np.ndarray) -> np.ndarray:
    """Longitude and latitude in degrees as points of the unit sphere, which has no seam."""
    longitude, latitude = np.radians(X).T
    return np.column_stack(
        [np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)]
    )


def _cell(place: Map, method: Method, quick: bool) -> Cell:
    problem, unit = load_blocks(place, place.thinning * (QUICK_THINNING if quick else 1))
    options = method.options_for(place.name, quick)
    if options.get("coordinates") == SPHERE:
        problem |= {name: on_sphere(problem[name]) for name in ("X", "X_test")}
    cell, result = run_method(method, options, problem, len(problem["y"]), CPU_LIMIT if method.peer else None)
    y, arrays = problem["y_test"], result.arrays
    cell |= {"n_test": len(y), "unit": unit}
    if result.error is not None:
        return cell
    scores = peer_scores(y, arrays, options) if method.peer else default_scores(y, arrays)
    scores["mae"] = float(np.abs(arrays["mean"] - y).mean())
    in_units = {score: unit * scores[score] for score in IN_UNITS}
    facts = {name: result.facts[name] for name in KEPT if name in result.facts} if method.peer else result.facts
    return {**cell, **scores, **in_units, **facts}


def table(document: dict[str, Any]) -> str:
    parts = []
    for place in MAPS:
        found = {m.name: c for m in METHODS if (c := document["cells"].get(place.name, {}).get(m.name))}
        if not found:
            continue
        first = next(iter(found.values()))
        heading = (
            f"**{place.title}** ({first['n_train']:,} training rows, {first['n_test']:,} in blocks of "
            f"{place.block_degrees:.0f} degrees left out; {machine_line(first['machine']).strip()})\n\n"
        )
        columns = ["", *(f"{c}, {place.unit}" for c in ("MAE", "RMSE", "CRPS", "interval score", "width"))]
        rows = [
            [name, *(number(_seen(cell, score), _digits(score, cell)) for score in SCORES)]
            for name, cell in found.items()
        ]
        parts.append(heading + markdown_table([*columns, "95 % coverage", "seconds"], rows))
    return "\n".join(parts)


def _seen(cell: Cell, score: str) -> float | None:
    """Peers run beside other programs: the processor's seconds of theirs."""
    beside_others = score == "seconds" and "time_budget" not in cell["options"]
    return cell.get("cpu_seconds" if beside_others else score)


def _digits(score: str, cell: Cell) -> int:
    if score == "seconds":
        return 0
    return 3 if score not in IN_UNITS or cell["unit"] < 100.0 else 0


if __name__ == "__main__":
    run()
