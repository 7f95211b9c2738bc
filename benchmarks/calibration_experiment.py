"""Which local scale c(x), learned how: NLPD, coverage, CRPS and width on rows that nothing has seen.

Every candidate starts from the same fits (calibration_residuals.py). "T>H": the scale from the left-out residuals of
the fitted rows T, its strength and the shape from the held-out rows H. "H": the scale from H too, cross-fitted.
"loo": all from left-out residuals of T and H. "shifted": T>H, with the log std of new rows moved back by what absorbing
H has taken from it. "T>H>TH": strength and shape as for T>H, the scale then learned again from the left-out residuals
of T and H in the model that has absorbed H. Scores are those of V after H was absorbed. The test rows are not touched.

A cell of results/calibration_experiment.json that is there is kept, so a run can be interrupted and resumed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.calibration_residuals import KERNELS, Array, stored_residuals
from benchmarks.calibration_scales import (
    Folded,
    Learner,
    Residuals,
    Scale,
    boosting,
    gamma_boosting,
    neighbours,
    process,
    ridge,
    surface,
    with_neighbours,
)
from benchmarks.calibration_shape import GAUSSIAN, Prior, Shape, fitted_shape
from benchmarks.calibration_small import SETS, small_study
from benchmarks.calibration_trees import TreeOptions, tree_fit
from benchmarks.real_data import is_available, not_available_message
from benchmarks.results import console, machine_facts, number, print_table, read_results, write_results

NAME = "calibration_experiment"
STRENGTHS = (0.0, 0.5, 0.75, 1.0, 1.25, 1.5)
LEVELS = (50, 80, 95, 99)
EPS = 0.1
PARTS = 5
ALL_WAYS = ("T>H", "H", "loo")
QUICK_SETS = ("concrete",)


def trees(depth: int) -> Learner:
    def learn(rows: Residuals, eps: float) -> Scale:
        return Folded.of(rows, eps, tree_fit(TreeOptions(depth=depth)))

    return learn


CANDIDATES: dict[str, tuple[Learner, tuple[str, ...]]] = {
    "ridge": (ridge, ALL_WAYS),
    "knn30": (neighbours(30), ("T>H",)),
    "knn60": (neighbours(60), ("T>H",)),
    "knn60f": (neighbours(60, 0.5), ("T>H",)),
    "knn15+ridge": (neighbours(15, on_ridge=True), ("T>H",)),
    "knn30+ridge": (neighbours(30, on_ridge=True), ("T>H",)),
    "knn60+ridge": (neighbours(60, on_ridge=True), ("T>H",)),
    "boost": (boosting, ("T>H", "H")),
    "gboost": (gamma_boosting, ("T>H",)),
    "trees6": (trees(6), ("T>H",)),
    "vfe128": (process("vfe", 128, 10.0), ("T>H",)),
    "vfe512": (process("vfe", 512, 10.0), ("T>H",)),
    "surf256": (surface(256), ("T>H",)),
    "ridge~knn": (with_neighbours(ridge), ("T>H",)),
    "boost~knn": (with_neighbours(boosting), ("T>H",)),
}


def run(quick: bool = False) -> dict[str, Any]:
    document = read_results(NAME, quick) or {"cells": {}}
    document["machine"] = machine_facts()
    with tempfile.TemporaryDirectory() as folder:
        for name in QUICK_SETS if quick else KERNELS:
            if not is_available(name):
                console.print(not_available_message(name))
                continue
            cells = document["cells"].setdefault(name, {})
            _fill(cells, name, Path(folder))
            write_results(NAME, document, quick)
    if not quick and "small" not in document and all(map(is_available, SETS)):
        document["small"] = small_study()
        write_results(NAME, document, quick)
    _print(document["cells"])
    return document


def _fill(cells: dict[str, Any], name: str, folder: Path) -> None:
    wanted = [(c, way) for c, (_, ways) in CANDIDATES.items() for way in ways if f"{c} {way}" not in cells]
    if not wanted and "gauss" in cells:
        return
    found = stored_residuals(folder, name, seed=0)
    parts = {part: residuals_of(found, part) for part in ("T", "H", "TH", "V_all")}
    scored = parts["V_all"]
    cells["gauss"] = scores(scored, GAUSSIAN, np.zeros(len(scored)))
    for n_parts in (2, 5, 9):
        cells[f"shape H {n_parts}"] = calibrated_scores(parts["H"], np.zeros(len(parts["H"])), scored, None, n_parts)
    for candidate, way in wanted:
        started = time.perf_counter()
        learner = CANDIDATES[candidate][0]
        if way == "T>H":
            scale = learner(parts["T"], EPS)
            cell = calibrated_scores(parts["H"], scale.at(parts["H"]), scored, scale)
            again = learner(parts["TH"], EPS)
            cells[f"{candidate} T>H>TH"] = calibrated_scores(parts["H"], scale.at(parts["H"]), scored, again)
            there = replace(scored, log_std=scored.log_std - _shift(parts["T"], parts["TH"]))
            cells[f"{candidate} shifted"] = calibrated_scores(parts["H"], scale.at(parts["H"]), scored, scale, at=there)
        else:
            own = parts["H" if way == "H" else "TH"]
            scale = learner(own, EPS)
            cell = calibrated_scores(own, scale.left_out(), scored, scale)
        cells[f"{candidate} {way}"] = {**cell, "seconds": time.perf_counter() - started}


def _shift(fitted: Residuals, all_rows: Residuals) -> float:
    """What absorbing the held-out rows has changed in the left-out log std of the fitted ones, on average."""
    return float((all_rows.log_std[: len(fitted)] - fitted.log_std).mean())


def residuals_of(found: Mapping[str, Array], part: str) -> Residuals:
    mean, std = found[f"mean_{part}"], found[f"std_{part}"]
    inputs = [found[f"X_{piece}"] for piece in part.removesuffix("_all")]
    targets = np.concatenate([found[f"y_{piece}"] for piece in part.removesuffix("_all")])
    return Residuals(np.concatenate(inputs), mean, np.log(std), (targets - mean) / std, found["metric"])


def calibrated_scores(
    own: Residuals,
    log_scale: Array,
    scored: Residuals,
    scale: Scale | None,
    n_parts: int = PARTS,
    at: Residuals | None = None,
) -> dict[str, float]:
    """Strength and shape from `own` with its honest log scale, then the scores of other rows.

    `at` has the columns that the scale reads at those rows, if they are not the rows' own.
    """
    centre = float(log_scale.mean())
    strength, shape, estimate = strength_and_shape(own, log_scale - centre, n_parts)
    there = np.zeros(len(scored)) if scale is None else scale.at(scored if at is None else at) - centre
    return {**scores(scored, shape, strength * there), "strength": strength, "estimate": estimate}


def strength_and_shape(own: Residuals, log_scale: Array, n_parts: int) -> tuple[float, Shape, float]:
    """The strength with the best density, its shape, and that NLPD."""
    found = []
    for strength in STRENGTHS if log_scale.any() else (0.0,):
        r = own.z * np.exp(-strength * log_scale)
        shape = fitted_shape(r, n_parts, Prior())
        found.append((float((own.log_std + strength * log_scale - shape.log_density(r)).mean()), strength, shape))
    estimate, strength, shape = min(found, key=lambda item: item[0])
    return strength, shape, estimate


def scores(rows: Residuals, shape: Shape, log_scale: Array) -> dict[str, float]:
    width = np.exp(rows.log_std + log_scale)
    r = rows.z * np.exp(-log_scale)
    out = {
        "nlpd": float((rows.log_std + log_scale - shape.log_density(r)).mean()),
        "crps": float((width * shape.crps(r)).mean()),
    }
    for level in LEVELS:
        low, high = shape.quantile(0.5 - level / 200), shape.quantile(0.5 + level / 200)
        out[f"cov{level}"] = float(((r > low) & (r < high)).mean())
        if level == 95:
            out["width95"] = float(((high - low) * width).mean())
    return out


def _print(cells: Mapping[str, Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(name for by_name in cells.values() for name in by_name))
    for score in ("nlpd", "cov95"):
        rows = [[name, *(number(cells[s].get(name, {}).get(score)) for s in cells)] for name in names]
        print_table(score, ["", *cells], rows)
