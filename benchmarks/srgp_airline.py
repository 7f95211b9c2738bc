"""Airline data (003 section 5.2): M = 500, batches of 10,000, SRGP beside batch VFE and GPflow SVGP."""

from __future__ import annotations

from typing import Any

from benchmarks import srgp_plots
from benchmarks.real_data import is_available, load_split, not_available_message
from benchmarks.results import console, machine_facts, number, print_table, write_results
from benchmarks.srgp_race import COLUMNS, errors, race, standardised, table_rows

NAME = "srgp_airline"
DATASET = "flights_airline8"
FULL = {"n_inducing": 500, "batch": 10_000, "epochs": 10, "peer_epochs": 10}
QUICK = {"n_inducing": 20, "batch": 300, "epochs": 2, "peer_epochs": 2}
MOST_TRAIN, MOST_TEST = 100_000, 50_000


def run(quick: bool = False, plot: bool = False) -> dict[str, Any]:
    if not is_available(DATASET):
        console.print(not_available_message(DATASET))
        return {}
    size = QUICK if quick else FULL
    split = load_split(DATASET, 2_000 if quick else None)
    for key, most in (("X", MOST_TRAIN), ("y", MOST_TRAIN), ("X_test", MOST_TEST), ("y_test", MOST_TEST)):
        split[key] = split[key][:most]
    epochs = {key: size[key] for key in ("batch", "epochs", "peer_epochs")}
    entries = race(standardised(split, size["n_inducing"], 0), **epochs)
    document = {"machine": machine_facts(), "problem": {**size, "n_rows": len(split["y"])}, "cells": {DATASET: entries}}
    write_results(NAME, document, quick)
    print_table("airline", ["", *COLUMNS], table_rows(DATASET, entries))
    console.print(f"peak MB above data: srgp {number(entries['srgp'].get('peak_mb'), 0)} (goal: at most 4096)")
    for message in errors(DATASET, entries):
        console.print(message, markup=False)
    if plot:
        srgp_plots.traces(NAME, {DATASET: entries})
    return document
