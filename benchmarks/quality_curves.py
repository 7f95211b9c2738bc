"""Seconds of training against the NLPD of test rows, for our default and four other libraries, on four sets.

Each cell is one curve: runs of our default with longer and longer budgets; one run of GPflow and of GPyTorch, scored
while the clock stands still; LightGBM with more and more trees; GPBoost with more and more of the rows. A run that is
not over after `MOST_SECONDS` ends its curve. All have the cores of the machine, alone: nothing else may run.
`python -m benchmarks.render` draws the picture of the docs from the cells.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cells import Cells, is_wanted, run_method, store, stored_cells
from benchmarks.honesty import default_scores
from benchmarks.honesty_peers import COVERAGES, CQR_LEVELS, peer_scores
from benchmarks.jobs import Arrays
from benchmarks.markdown import machine_line, markdown_table
from benchmarks.methods import LIGHTGBM_OPTIONS, SVGP_OPTIONS, Method
from benchmarks.plotting import panels, save
from benchmarks.real_data import is_available, load_split, not_available_message
from benchmarks.results import console, machine_facts, number, read_results

NAME = "quality_curves"
SETS = ("kin8nm", "kin40k", "protein", "flights_nyc2013")
QUICK_SETS, QUICK_ROWS = ("kin8nm",), 600
MOST_SECONDS = 40.0
MOMENTS = [5.0, 10.0, 20.0, 40.0, 60.0]
TICKS = (5, 10, 20, 40, 80)
SVGP = {**SVGP_OPTIONS, "kernel": "matern32", "moments": MOMENTS}
QUICK = {"n_inducing": 30, "moments": [1.0]}


@dataclass(frozen=True)
class Curve:
    """A method whose option `varied` takes each of `values`, each a run; with none, one run has all points."""

    method: Method
    varied: str = ""
    values: tuple[Any, ...] = ()
    quick_values: tuple[Any, ...] = ()


OURS = Method("sparsegp", "benchmarks.own.default", {"coverages": list(COVERAGES)})
CURVES = (
    Curve(OURS, "time_budget", (5.0, 20.0, 60.0), (2.0,)),
    Curve(Method("GPflow SVGP", "benchmarks.peers.gpflow_svgp_timed", SVGP, peer=True, quick=QUICK)),
    Curve(Method("GPyTorch SVGP", "benchmarks.peers.gpytorch_svgp_timed", SVGP, peer=True, quick=QUICK)),
    Curve(
        Method(
            "GPBoost Vecchia",
            "benchmarks.peers.gpboost_vecchia",
            {"cov_function": "matern_ard", "shape": 1.5, "n_neighbours": 20, "threads": 2},
            peer=True,
        ),
        "most_rows",
        (1_000, 4_000, 16_000, 64_000, 256_000),
        (300,),
    ),
    Curve(
        Method(
            "LightGBM",
            "benchmarks.peers.lightgbm_quantiles",
            {**LIGHTGBM_OPTIONS, "levels": CQR_LEVELS},
            peer=True,
        ),
        "max_rounds",
        (25, 100, 400),
        (10,),
    ),
)


def run(quick: bool = False, only: Sequence[str] = ()) -> dict[str, Any]:
    for name in QUICK_SETS if quick else SETS:
        if not is_available(name):
            console.print(not_available_message(name))
            continue
        problem = load_split(name, QUICK_ROWS if quick else None)
        for curve in CURVES:
            if is_wanted(stored_cells(NAME, quick), name, curve.method, quick, only):
                points = list(_points(curve, name, problem, quick))
                cell = {"options": curve.method.options_for(name, quick), "machine": machine_facts(), "points": points}
                store(NAME, name, curve.method.name, cell, quick)
                console.print(f"{name}:{curve.method.name}", *_shown(points), markup=False)
    return read_results(NAME, quick)


def _points(curve: Curve, name: str, problem: Arrays, quick: bool) -> Iterator[dict[str, Any]]:
    """The points of a curve. A run that fails is a point with its error, and the last one."""
    options = curve.method.options_for(name, quick)
    for value in (curve.quick_values if quick else curve.values) or (None,):
        n_rows = min(len(problem["y"]), value if curve.varied == "most_rows" else len(problem["y"]))
        shown = problem | {"X": problem["X"][:n_rows], "y": problem["y"][:n_rows]}
        started = time.perf_counter()
        varied = options if value is None else {**options, curve.varied: value}
        _, result = run_method(curve.method, varied, shown, n_rows, cpu_limit=int(5 * MOST_SECONDS))
        if result.error is not None:
            yield {curve.varied: value, "error": result.error}
            return
        if value is None:
            yield from result.facts["trace"]
            return
        y = problem["y_test"]
        found = peer_scores(y, result.arrays, options) if curve.method.peer else default_scores(y, result.arrays)
        yield {curve.varied: value, "seconds": result.facts["seconds"], "nlpd": found["nlpd"], "rmse": found["rmse"]}
        all_rows = curve.varied == "most_rows" and n_rows == len(problem["y"])
        if all_rows or time.perf_counter() - started > MOST_SECONDS:
            return


def _shown(points: list[dict[str, Any]]) -> list[str]:
    return [p.get("error") or f"{number(p['seconds'], 1)} s: {number(p['nlpd'])}" for p in points]


def curves(document: dict[str, Any]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """For each set and method the seconds and the NLPD of the points that were reached."""
    cells: Cells = document.get("cells", {})
    return {
        name: {
            method: sorted((p["seconds"], p["nlpd"]) for p in cell["points"] if "nlpd" in p)
            for method, cell in by_method.items()
        }
        for name, by_method in cells.items()
    }


def overtaken(by_method: dict[str, list[tuple[float, float]]]) -> float | None:
    """Seconds after which ours is better than all others ever become; None if it never is."""
    best = min(nlpd for method, points in by_method.items() if method != OURS.name for _, nlpd in points)
    return next((seconds for seconds, nlpd in by_method.get(OURS.name, []) if nlpd < best), None)


def table(document: dict[str, Any]) -> str:
    found, names = curves(document), [curve.method.name for curve in CURVES]
    draw(found)
    machine = next(iter(next(iter(document["cells"].values())).values()))["machine"]
    rows = [
        [name, *(_best(by_method.get(method)) for method in names), _after(overtaken(by_method))]
        for name, by_method in found.items()
    ]
    columns = ["best NLPD (after seconds)", *names, "ours ahead of all after"]
    return machine_line(machine) + "\n" + markdown_table(columns, rows)


def _best(points: list[tuple[float, float]] | None) -> str:
    if not points:
        return "-"
    seconds, nlpd = min(points, key=lambda point: point[1])
    return f"{number(nlpd, 2)} ({number(seconds, 0)} s)"


def _after(seconds: float | None) -> str:
    return "not" if seconds is None else f"{number(seconds, 0)} s"


def draw(found: dict[str, dict[str, list[tuple[float, float]]]]) -> None:
    figure, axes = panels(1, len(found), (3.2, 3.0))
    for axis, (name, by_method) in zip(axes[0], found.items(), strict=True):
        for curve in CURVES:
            points = by_method.get(curve.method.name, [])
            width = 2.4 if curve.method is OURS else 1.2
            axis.plot([s for s, _ in points], [nlpd for _, nlpd in points], marker="o", markersize=3, linewidth=width)
        axis.set_xscale("log")
        axis.set_xticks(TICKS, [str(tick) for tick in TICKS])
        axis.minorticks_off()
        axis.set_title(name)
        axis.set_xlabel("seconds of training")
    axes[0][0].set_ylabel("NLPD of test rows")
    names = [curve.method.name for curve in CURVES]
    figure.legend(names, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=len(names), frameon=False)
    save(figure, NAME)
