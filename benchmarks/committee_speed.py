"""DVSHGP on protein (35,000 rows, 100 experts, 175 inducing inputs for f and for g each), and two workers against one.

Experts are shared out among threads with one BLAS thread in each; "one" is the same process with one thread in all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.jobs import Arrays, own_python, run_job
from benchmarks.real_data import is_available, load_split, not_available_message
from benchmarks.results import console, machine_facts, number, print_table, ratio, write_results

NAME = "committee_speed"
WORKER = "benchmarks.own.committee_speed"
OPTIONS = {"expert": "vshgp", "n_inducing": 175, "n_noise_inducing": 175}
ROWS, EXPERTS = 35_000, 100
SHARE = 10  # two workers against one: on a tenth of the rows, with a tenth of the experts


def run(quick: bool = False) -> dict[str, Any]:
    if not is_available("protein"):
        console.print(not_available_message("protein"))
        return {}
    data = load_split("protein")
    part = ROWS // SHARE
    measured: dict[str, Any] = {
        name: _job(data, part, EXPERTS // SHARE, n_threads) for name, n_threads in (("two", 2), ("one", 1))
    }
    if not quick:
        measured["full"] = _job(data, ROWS, EXPERTS, 2)
    document = {
        "machine": machine_facts(),
        "problem": {"rows": ROWS, "experts": EXPERTS, "share": SHARE, **OPTIONS},
        "measured": measured,
        "ratios": {"one / two": ratio(measured["one"].get("seconds"), measured["two"].get("seconds"))},
    }
    write_results(NAME, document, quick)
    rows = [[name, number(facts.get("seconds"), 1), facts.get("error", "")] for name, facts in measured.items()]
    print_table("DVSHGP on protein", ["", "seconds", ""], rows)
    return document


def _job(data: Arrays, n_rows: int, n_experts: int, n_threads: int) -> dict[str, Any]:
    shown = {"X": data["X"][:n_rows], "y": data["y"][:n_rows], "X_test": data["X_test"], "y_test": data["y_test"]}
    options = {**OPTIONS, "n_experts": n_experts, "n_threads": n_threads}
    result = run_job(own_python(), WORKER, {key: np.asarray(value) for key, value in shown.items()}, options)
    return {"error": result.error} if result.error is not None else result.facts
