"""Small data of 001: the sinc toy (figures 2 to 4), solar irradiance (figure 5), and one-dimensional classics."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks import noise_plots
from benchmarks.jobs import Arrays, own_python, run_job
from benchmarks.noise_data import sinc
from benchmarks.real_data import is_available, load_values, not_available_message
from benchmarks.results import console, machine_facts, number, print_table, write_results

from sparsegp.metrics import interval_coverage, msll, nlpd, smse

NAME = "noise_toys"
COLUMNS = ("SMSE", "MSLL", "MSLL, mixture", "95 % coverage")
SCORES = ("smse", "msll", "mixture_msll", "coverage_95")

TOY = {
    "dvshgp": {"estimator": "committee", "expert": "vshgp", "n_experts": 5, "n_inducing": 10, "n_noise_inducing": 10},
    "vshgp": {"estimator": "heteroscedastic", "n_inducing": 20, "n_noise_inducing": 20},
    "vhgp": {"estimator": "heteroscedastic", "approximation": "exact", "n_noise_inducing": 100},
    "vsgp": {"estimator": "sparse", "approximation": "vfe", "n_inducing": 20},
}
SOLAR = {
    "dvshgp": {"estimator": "committee", "expert": "vshgp", "n_experts": 10, "n_inducing": 20, "n_noise_inducing": 20},
    "vshgp": {"estimator": "heteroscedastic", "n_inducing": 20, "n_noise_inducing": 20},
}
CLASSICS = ("motorcycle", "snelson1d", "solar_irradiance", "mauna_loa_co2")
CLASSIC_MODELS = {
    "heteroscedastic": {"estimator": "heteroscedastic", "n_inducing": 60, "n_noise_inducing": 20},
    "homoscedastic": {"estimator": "sparse", "approximation": "vfe", "n_inducing": 60},
}
SEASONAL = ("mauna_loa_co2",)
FOLDS, MOST_ROWS = 5, 400


def run(quick: bool = False, plot: bool = False) -> dict[str, Any]:
    toy = sinc(150 if quick else 500, seed=0)
    toy_cells, toy_arrays = _fits(TOY, toy)
    document: dict[str, Any] = {"machine": machine_facts(), "toy": toy_cells, "classics": {}}
    document["stochastic"] = _stochastic(toy, n_steps=20 if quick else 300)
    if is_available("solar_irradiance"):
        values = load_values("solar_irradiance")
        solar = {"X": values[:, :1], "y": values[:, 1], "X_test": values[:, :1], "y_test": values[:, 1]}
        document["solar"], solar_arrays = _fits(SOLAR, solar)
    for name in CLASSICS[:1] if quick else CLASSICS:
        if is_available(name):
            document["classics"][name] = {m: _folds(name, o) for m, o in _classic_models(name).items()}
        else:
            console.print(not_available_message(name))
    write_results(NAME, document, quick)
    _print(document)
    if plot:
        noise_plots.toy(toy, toy_arrays, document["stochastic"])
        if "solar" in document:
            noise_plots.solar(solar, solar_arrays)
    return document


def _fits(models: dict[str, dict[str, Any]], data: Arrays) -> tuple[dict[str, Any], dict[str, Arrays]]:
    cells, arrays = {}, {}
    for name, options in models.items():
        result = run_job(own_python(), "benchmarks.own.noise", data, options)
        if result.error is not None:
            cells[name] = {"error": result.error}
            continue
        arrays[name] = result.arrays
        cells[name] = {**_scores(data["y"], data["y_test"], result.arrays), **result.facts}
        if "true_noise_std" in data:
            log_ratio = np.log(result.arrays["noise_std"] / data["true_noise_std"])
            cells[name]["log_noise_error"] = float(np.abs(log_ratio).mean())
    return cells, arrays


def _stochastic(toy: Arrays, n_steps: int) -> dict[str, Any]:
    """The bound of SVSHGP by iteration and the final one of VSHGP (figure 4)."""
    options = {"n_inducing": 20, "n_noise_inducing": 20, "batch_size": 50, "n_steps": n_steps}
    result = run_job(own_python(), "benchmarks.own.noise_trace", {"X": toy["X"], "y": toy["y"]}, options)
    return {"error": result.error} if result.error is not None else result.facts


def _classic_models(name: str) -> dict[str, dict[str, Any]]:
    """With the squared exponential, which takes seasons for noise; where there are seasons, with their kernel too."""
    if name not in SEASONAL:
        return CLASSIC_MODELS
    seasonal = {f"{m}, trend and seasons": {**o, "kernel": "trend and seasons"} for m, o in CLASSIC_MODELS.items()}
    return CLASSIC_MODELS | seasonal


def _folds(name: str, options: dict[str, Any]) -> dict[str, Any]:
    values = load_values(name)
    values = values[np.random.default_rng(0).permutation(len(values))[:MOST_ROWS]]
    data = {"X": values[:, :1], "y": values[:, 1]}
    result = run_job(own_python(), "benchmarks.own.noise_folds", data, {"folds": FOLDS, **options})
    return {"error": result.error} if result.error is not None else _scores(data["y"], data["y"], result.arrays)


def _scores(y_train: np.ndarray, y: np.ndarray, arrays: Arrays) -> dict[str, float]:
    mean, std = arrays["mean"], arrays["std"]
    trivial = nlpd(y, np.full(len(y), y_train.mean()), np.full(len(y), y_train.std()))
    found = {
        "smse": smse(y, mean, y_train=y_train),
        "msll": msll(y, mean, std, y_train=y_train),
        "mixture_msll": -float(arrays["log_density"].mean()) - trivial,
    }
    if "lower" in arrays:
        found["coverage_95"] = interval_coverage(y, arrays["lower"], arrays["upper"])
    return found


def _print(document: dict[str, Any]) -> None:
    for title in ("toy", "solar"):
        print_table(title, ["", *COLUMNS], rows(document.get(title, {})))
    for name, cells in document["classics"].items():
        print_table(f"{name}, {FOLDS} folds", ["", *COLUMNS], rows(cells))


def rows(cells: dict[str, dict[str, Any]]) -> list[list[str]]:
    return [[name, *(number(cell.get(score)) for score in SCORES)] for name, cell in cells.items()]
