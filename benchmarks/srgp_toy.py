"""The one-dimensional toy of 003: equal bounds by batch, recursion and nodes (figures 1, 3, 4), learning (figure 5)."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks import srgp_plots
from benchmarks.jobs import own_python, run_job
from benchmarks.results import console, machine_facts, number, print_table, write_results
from benchmarks.simulations import toy
from benchmarks.srgp_race import COLUMNS, errors, race, standardised, table_rows

NAME = "srgp_toy"
N_INDUCING, POWER, NODES = 15, 0.5, 4


def run(quick: bool = False, plot: bool = False) -> dict[str, Any]:
    small = toy(100, seed=1)
    small["Z"] = np.linspace(0.0, 1.0, N_INDUCING)[:, None]
    small["X_test"] = np.linspace(0.0, 1.0, 200)[:, None]
    shown = {key: small[key] for key in ("X", "y", "X_test", "Z")}
    fixed = run_job(own_python(), "benchmarks.own.srgp_toy", shown, {"power": POWER, "nodes": NODES})
    if fixed.error is not None:
        raise RuntimeError(f"the toy could not be computed: {fixed.error}")
    epochs = {"epochs": 3, "peer_epochs": 3} if quick else {"epochs": 40, "peer_epochs": 100}
    learned = race(standardised(toy(1000), N_INDUCING, 0), batch=100, **epochs)
    document = {
        "machine": machine_facts(),
        "problem": {"n_inducing": N_INDUCING, "power": POWER, "nodes": NODES, **epochs},
        "fixed": fixed.facts,
        "cells": {"toy": learned},
    }
    write_results(NAME, document, quick)
    _print(document)
    if plot:
        srgp_plots.bands(NAME, small, fixed.facts["online"], fixed.arrays)
        srgp_plots.traces(NAME, document["cells"])
    return document


def _print(document: dict[str, Any]) -> None:
    fixed = document["fixed"]
    rows = [["batch", number(fixed["batch"]["bound"], 6), number(fixed["batch"]["slope"], 6)]]
    rows += [
        [f"after {step['rows']} rows", number(step["bound"], 6), number(step["slope"], 6)] for step in fixed["online"]
    ]
    rows += [[f"{fixed['distributed']['nodes']} nodes", number(fixed["distributed"]["bound"], 6), ""]]
    print_table("PEP(0.5), fixed parameters", ["", "bound", "d/dlog lengthscale"], rows)
    print_table("toy, learned", ["", *COLUMNS], table_rows("toy", document["cells"]["toy"]))
    for message in errors("toy", document["cells"]["toy"]):
        console.print(message, markup=False)
