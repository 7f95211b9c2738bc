"""The stirred tank (003 section 5.3): one-step prediction, learned from the last 1,000 to 1,000,000 samples."""

from __future__ import annotations

from typing import Any

from benchmarks import srgp_plots
from benchmarks.jobs import Arrays
from benchmarks.results import console, machine_facts, number, print_table, write_results
from benchmarks.simulations import TANK_NOISE_STD, plant_regression, stirred_tank
from benchmarks.srgp_race import errors, race, standardised

NAME = "srgp_plant"
FULL = {"n_samples": 1_200_000, "n_train": 1_000_000, "horizons": [1_000, 10_000, 100_000, 1_000_000]}
QUICK = {"n_samples": 6_000, "n_train": 5_000, "horizons": [500, 2_000]}
N_INDUCING, BATCH = 100, 1_000
ROW_VISITS, FEWEST_EPOCHS, MOST_EPOCHS = 1_000_000, 1, 60
SHOWN = ("rmse", "rmse_to_truth", "median_error_to_truth", "nlpd", "seconds")


def run(quick: bool = False, plot: bool = False) -> dict[str, Any]:
    size = QUICK if quick else FULL
    everything = plant_regression(stirred_tank(size["n_samples"]))
    document: dict[str, Any] = {
        "machine": machine_facts(),
        "problem": {**size, "n_inducing": N_INDUCING, "batch": BATCH, "noise_std": TANK_NOISE_STD},
        "cells": {},
    }
    for horizon in size["horizons"]:
        problem = standardised(_horizon(everything, size["n_train"], horizon), N_INDUCING, 0)
        epochs = 2 if quick else min(MOST_EPOCHS, max(FEWEST_EPOCHS, ROW_VISITS // horizon))
        label = f"{horizon:,}"
        batch = min(BATCH, horizon // 5)
        document["cells"][label] = race(problem, batch=batch, epochs=epochs, peer_epochs=epochs, noise_var=0.1)
        write_results(NAME, document, quick)
        for message in errors(label, document["cells"][label]):
            console.print(message, markup=False)
    _print(document)
    if plot:
        srgp_plots.horizons(NAME, document["cells"])
    return document


def _horizon(everything: Arrays, n_train: int, horizon: int) -> Arrays:
    """The last `horizon` rows before `n_train` to learn from, those after it to test; y standardised."""
    X, y, f = everything["X"], everything["y"], everything["f"]
    learn, test = slice(n_train - horizon, n_train), slice(n_train, None)
    mean, std = y[learn].mean(), y[learn].std()
    return {
        "X": X[learn],
        "y": (y[learn] - mean) / std,
        "X_test": X[test],
        "y_test": (y[test] - mean) / std,
        "f_test": (f[test] - mean) / std,
    }


def _print(document: dict[str, Any]) -> None:
    rows = [
        [f"{label} {name}", *(number(entry.get(key), 4) for key in SHOWN)]
        for label, entries in document["cells"].items()
        for name, entry in entries.items()
        if name != "goal"
    ]
    print_table("stirred tank, by training horizon", ["", *SHOWN], rows)
