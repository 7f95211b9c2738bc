"""GP simulation (003 section 5.1): 100,000 rows in 1, 2 and 5 dimensions, SRGP beside batch VFE and GPflow SVGP."""

from __future__ import annotations

from typing import Any

from benchmarks import srgp_plots
from benchmarks.results import console, machine_facts, print_table, write_results
from benchmarks.simulations import GP_LENGTHSCALES, GP_NOISE_STD, gp_samples
from benchmarks.srgp_race import COLUMNS, errors, race, standardised, table_rows

NAME = "srgp_simulation"
N_INDUCING = {1: 20, 2: 50, 5: 100}
FULL = {"n_rows": 100_000, "batch": 5_000, "epochs": 12, "peer_epochs": 50, "repetitions": 3, "n_test": 10_000}
QUICK = {"n_rows": 2_000, "batch": 200, "epochs": 2, "peer_epochs": 2, "repetitions": 1, "n_test": 500}


def run(quick: bool = False, plot: bool = False) -> dict[str, Any]:
    size = QUICK if quick else FULL
    document: dict[str, Any] = {
        "machine": machine_facts(),
        "problem": {**size, "lengthscales": GP_LENGTHSCALES, "noise_std": GP_NOISE_STD, "n_inducing": N_INDUCING},
        "cells": {},
    }
    for n_features, n_inducing in N_INDUCING.items():
        for seed in range(size["repetitions"]):
            label = f"D={n_features} #{seed}"
            problem = standardised(gp_samples(size["n_rows"], n_features, seed, size["n_test"]), n_inducing, seed)
            epochs = {key: size[key] for key in ("batch", "epochs", "peer_epochs")}
            document["cells"][label] = race(problem, **epochs, seed=seed)
            write_results(NAME, document, quick)
            for message in errors(label, document["cells"][label]):
                console.print(message, markup=False)
    rows = [row for label, entries in document["cells"].items() for row in table_rows(label, entries)]
    print_table("GP simulation", ["", *COLUMNS], rows)
    if plot:
        srgp_plots.traces(NAME, {label: document["cells"][label] for label in document["cells"] if "#0" in label})
    return document
