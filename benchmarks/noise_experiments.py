"""The comparison of 001 section VI: SMSE and MSLL with learned noise beside constant noise, on synthetic and real data.

MSLL is that of the Gaussian with the predictive moments, as in the paper; "mixture" that of the density itself.
Sizes are the paper's where the data are; larger sets are cut to `rows` (said in the table).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import psutil
from benchmarks.cells import Cell, is_wanted, run_method, store, stored_cells
from benchmarks.jobs import Arrays
from benchmarks.methods import Method
from benchmarks.noise_data import sinc2d
from benchmarks.real_data import SPLIT_SEED, is_available, load_values, not_available_message
from benchmarks.results import console, number, print_table, read_results

from sparsegp.metrics import interval_coverage, msll, nlpd, smse

NAME = "noise_experiments"
SCORES = ("smse", "msll", "mixture_msll", "coverage_95", "seconds")
NOISE_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
BUSY = 0.25  # fraction of the cores at work before a cell starts, from which its seconds say little
COLUMNS = ("SMSE", "MSLL", "MSLL, mixture", "95 % coverage", "seconds")


@dataclass(frozen=True)
class Setting:
    """Training and test rows, rows of an expert, inducing inputs of an expert and of a global model."""

    n_train: int
    n_test: int
    rows_each: int
    own_inducing: int
    n_inducing: int
    learn_own_inducing: bool = True
    n_subset: int = 1000  # of EHSoD, whose cost is cubic
    batch_size: int = 1000  # of SVSHGP
    n_steps: int = 500
    has_gpvc: bool = True  # "unaffordable" in the paper for houseelectric
    file: str | None = None  # of the rows; None: that of the name


# Rows and experts are the paper's for sinc2d and protein; what is smaller is stated on the page of the experiments.
SETTINGS = {
    "sinc2d": Setting(10_000, 4900, 200, 100, 200),
    "protein": Setting(35_000, 10_730, 350, 175, 300),
    "road3d_excerpt": Setting(4_500, 500, 450, 250, 300),
    "sarcos_test4449": Setting(4_000, 449, 333, 175, 300),
    "etopo5_europe": Setting(40_000, 10_000, 487, 150, 300, learn_own_inducing=False),
    "houseelectric": Setting(500_000, 10_000, 1000, 300, 300, learn_own_inducing=False, has_gpvc=False),
}
# Table I of the paper, on all of its rows: half an hour or more and 15 GB, so only when it is named by --only.
ON_REQUEST = {
    "electric": Setting(
        2_000_000, 10_000, 1000, 300, 300, learn_own_inducing=False, has_gpvc=False, file="houseelectric"
    ),
}
QUICK = {"sinc2d": Setting(400, 100, 200, 20, 30, n_subset=100, batch_size=100, n_steps=20)}


def methods(setting: Setting) -> list[Method]:
    """The models of the comparison with the counts of one setting; all with the squared exponential."""
    s = setting
    share = {"rows_each": s.rows_each}
    noisy = {"n_inducing": s.n_inducing, "n_noise_inducing": s.n_inducing}
    plain = {"n_inducing": s.n_inducing}
    own = {"n_inducing": s.own_inducing, "n_noise_inducing": s.own_inducing, "learn_inducing": s.learn_own_inducing}
    stochastic = {"inference": "stochastic", "batch_size": s.batch_size, "n_steps": s.n_steps}
    rows: dict[str, dict[str, Any]] = {
        "dvshgp": {"estimator": "committee", "expert": "vshgp", "aggregation": "rbcm", **share, **own},
        "dvshgp by tpoe": {"estimator": "committee", "expert": "vshgp", "aggregation": "tpoe", **share, **own},
        "svshgp": {"estimator": "heteroscedastic", **noisy, **stochastic},
        "vsgp": {"estimator": "sparse", "approximation": "vfe", **plain},
        "rbcm": {"estimator": "committee", "expert": "exact", "aggregation": "rbcm", **share},
        "fitc": {"estimator": "sparse", "approximation": "fitc", **plain},
        "pic": {"estimator": "sparse", "approximation": "pic", **share, **plain},
        "ehsod": {"estimator": "ehsod", "n_subset": s.n_subset},
        "heteroscedastic pic": {"estimator": "heteroscedastic", "approximation": "pic", **share, **plain},
    }
    if s.has_gpvc:
        rows["gpvc"] = {"estimator": "gpvc", "n_basis": s.n_inducing}
    return [Method(name, "benchmarks.own.noise", options) for name, options in rows.items()]


def run(quick: bool = False, only: Sequence[str] = ()) -> dict[str, Any]:
    named = {pattern.split(":")[0] for pattern in only}
    on_request = {name: setting for name, setting in ON_REQUEST.items() if name in named}
    for dataset, setting in (QUICK if quick else SETTINGS | on_request).items():
        cells = stored_cells(NAME, quick)
        wanted = [m for m in methods(setting) if is_wanted(cells, dataset, m, quick, only)]
        file = setting.file or dataset
        if wanted and dataset != "sinc2d" and not is_available(file):
            console.print(not_available_message(file))
            continue
        data = problem(dataset, setting) if wanted else {}
        for method in wanted:
            cell = run_cell(method, method.options_for(dataset, quick), data)
            store(NAME, dataset, method.name, cell, quick)
            console.print(f"{dataset}:{method.name} {'  '.join(figures(cell))} {cell.get('error', '')}")
    document = read_results(NAME, quick)
    for dataset, by_method in document.get("cells", {}).items():
        print_table(dataset, ["", *COLUMNS], [[name, *figures(cell)] for name, cell in by_method.items()])
    return document


def problem(dataset: str, setting: Setting) -> Arrays:
    if dataset == "sinc2d":
        return sinc2d(setting.n_train, round(setting.n_test**0.5), seed=0)
    values = load_values(setting.file or dataset)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(values))[: setting.n_train + setting.n_test]
    train, test = np.split(values[order], [setting.n_train])
    return {"X": train[:, :-1], "y": train[:, -1], "X_test": test[:, :-1], "y_test": test[:, -1]}


def run_cell(method: Method, options: dict[str, Any], data: Arrays) -> Cell:
    busy = psutil.cpu_percent(interval=1.0) / 100.0
    cell, result = run_method(method, options, data, len(data["y"]))
    cell["busy_before"] = round(busy, 2)
    if result.error is not None:
        return cell
    return {**cell, **scores(data, result.arrays), **result.facts}


def scores(data: Arrays, arrays: Arrays) -> dict[str, Any]:
    """MSLL of the Gaussian with the predictive moments and of the model's own density; spread of the log noise."""
    y, mean, std = data["y_test"], arrays["mean"], arrays["std"]
    train_mean, train_std = data["y"].mean(), data["y"].std()
    half_width = NormalDist().inv_cdf(0.975) * std
    found: dict[str, Any] = {
        "smse": smse(y, mean, y_train=data["y"]),
        "msll": msll(y, mean, std, y_train=data["y"]),
        "coverage_95": interval_coverage(y, mean - half_width, mean + half_width),
    }
    if "true_noise_std" in data:
        found["std_map"] = coarse(std)
    if "log_density" in arrays:
        trivial = nlpd(y, np.full(len(y), train_mean), np.full(len(y), train_std))
        found["mixture_msll"] = -float(arrays["log_density"].mean()) - trivial
        log_noise = 2.0 * np.log(arrays["noise_std"] / train_std)
        found["log_noise_quantiles"] = np.quantile(log_noise, NOISE_LEVELS).round(3).tolist()
    return found


def coarse(values: np.ndarray) -> list[float]:
    """Every second point of a square grid in both directions."""
    side = round(len(values) ** 0.5)
    thinned: list[float] = values.reshape(side, side)[::2, ::2].ravel().round(3).tolist()
    return thinned


def figures(cell: Cell) -> list[str]:
    """Seconds beside which other programs ran carry a star."""
    mark = "*" if cell.get("busy_before", 0.0) > BUSY else ""
    return [
        *(number(cell.get(score), 3) for score in SCORES[:-1]),
        number(cell.get("seconds"), 0) + mark,
    ]
