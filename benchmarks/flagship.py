"""Real data, learned noise: NLPD of the mixture and of one Gaussian, RMSE, CRPS, 95 % coverage, CPU seconds.

Beside the homoscedastic model and LightGBM of the datasets benchmark, with the same split. Cells are kept and run
again as there (`--only dataset:method`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.cells import Cell, is_wanted, run_method, store, stored_cells
from benchmarks.jobs import Arrays
from benchmarks.methods import QUICK_ROWS, Method
from benchmarks.real_data import is_available, load_split, not_available_message
from benchmarks.results import console, number, print_table, read_results
from benchmarks.scores import mixture_scores

NAME = "flagship"
SCORES = ("nlpd", "gaussian_nlpd", "rmse", "crps", "coverage_95", "cpu_seconds")
COLUMNS = ("NLPD", "Gaussian NLPD", "RMSE", "CRPS", "95 % coverage", "CPU seconds")
BESIDE = ("pic", "lightgbm")  # methods of the datasets benchmark to compare with

SMALL = ("yacht", "concrete", "kin8nm", "sarcos_test4449", "bike_noleak", "pol", "wine_red")
LARGE = ("protein", "coads_slp", "flights_nyc2013")
QUICK = ("yacht", "concrete")
LEVELS = [k / 40 for k in range(1, 40)]  # 0.025 ... 0.975


def _method(name: str, **options: Any) -> Method:
    return Method(
        name,
        "benchmarks.own.noise",
        {"kernel": "auto", **options, "levels": LEVELS},
        quick={"n_inducing": 50, "n_noise_inducing": 20, "rows_each": 200},
    )


METHODS = (
    _method(
        "heteroscedastic pic",
        estimator="heteroscedastic",
        approximation="pic",
        n_inducing=300,
        n_noise_inducing=300,
        rows_each=500,
    ),
    _method("vhgp committee", estimator="committee", expert="vhgp", rows_each=500, most_asked=64),
)


def run(quick: bool = False, only: Sequence[str] = ()) -> dict[str, Any]:
    for dataset in QUICK if quick else (*SMALL, *LARGE):
        methods = [m for m in METHODS if is_wanted(stored_cells(NAME, quick), dataset, m, quick, only)]
        if methods and not is_available(dataset):
            console.print(not_available_message(dataset))
            continue
        problem = load_split(dataset, QUICK_ROWS if quick else None) if methods else {}
        for method in methods:
            cell = run_cell(method, method.options_for(dataset, quick), problem)
            store(NAME, dataset, method.name, cell, quick)
            console.print(f"{dataset}:{method.name} {_summary(cell)}")
    document = read_results(NAME, quick)
    for dataset, rows in tables(document.get("cells", {})).items():
        print_table(dataset, ["", *COLUMNS], rows)
    return document


def run_cell(method: Method, options: dict[str, Any], problem: Arrays) -> Cell:
    cell, result = run_method(method, options, problem, len(problem["y"]))
    if result.error is not None:
        return cell
    return {**cell, **mixture_scores(problem["y_test"], result.arrays, options["levels"]), **result.facts}


def _summary(cell: Cell) -> str:
    if "error" in cell:
        return f"failed: {cell['error']}"
    return "  ".join(f"{title} {number(cell[key])}" for title, key in zip(COLUMNS, SCORES, strict=True))


def tables(cells: dict[str, dict[str, Cell]]) -> dict[str, list[list[str]]]:
    """Rows of the table of each dataset: ours, then those of the datasets benchmark."""
    others = stored_cells("datasets", False)
    found = {}
    for dataset in (*SMALL, *LARGE):
        known = {m.name: cells[dataset][m.name] for m in METHODS if m.name in cells.get(dataset, {})}
        if known:
            known |= {name: others[dataset][name] for name in BESIDE if name in others.get(dataset, {})}
            found[dataset] = [[name, *_figures(cell)] for name, cell in known.items()]
    return found


def _figures(cell: Cell) -> list[str]:
    return [number(cell.get(score), 0 if score == "cpu_seconds" else 3) for score in SCORES]
