"""SRGP, our batch VFE and GPflow SVGP on one problem (no benchmark of its own).

SRGP and SVGP start from the same values and inducing inputs; the batch VFE is our regressor with its defaults. All
three share the training rows, the test rows and the number of inducing inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.jobs import Arrays, own_python, peers_python, run_job
from benchmarks.results import number, ratio
from benchmarks.scores import gaussian_scores

SVGP_STEPS = {"natural_step": 0.1, "adam_step": 0.03}
COLUMNS = ("bound", "RMSE", "NLPD", "95 % coverage", "seconds")
_SCORES = ("bound", "rmse", "nlpd", "coverage_95", "seconds")


def standardised(problem: Arrays, n_inducing: int, seed: int) -> Arrays:
    """Inputs in units of their deviation over the training rows; inducing inputs are random training rows (Z)."""
    mean, std = problem["X"].mean(0), problem["X"].std(0)
    std[std == 0.0] = 1.0
    X, X_test = (problem["X"] - mean) / std, (problem["X_test"] - mean) / std
    chosen = np.random.default_rng(seed).choice(len(X), min(n_inducing, len(X)), replace=False)
    return {**problem, "X": X, "X_test": X_test, "Z": X[np.sort(chosen)]}


def race(
    problem: Arrays,
    *,
    batch: int,
    epochs: int,
    peer_epochs: int,
    seed: int = 0,
    noise_var: float = 1.0,
    methods: tuple[str, ...] = ("srgp", "vfe", "gpflow-svgp"),
) -> dict[str, Any]:
    """One entry a method: final scores, seconds of learning and (but for the batch method) a trace by epochs."""
    shown = {key: problem[key] for key in ("X", "y", "X_test", "y_test", "Z")}
    common = {"batch": batch, "noise_var": noise_var, "seed": seed}
    jobs = {
        "srgp": (own_python(), "benchmarks.own.srgp", {**common, "row": "vfe", "epochs": epochs}),
        "vfe": (own_python(), "benchmarks.own.datasets", {"approximation": "vfe", "n_inducing": len(problem["Z"])}),
        "gpflow-svgp": (
            peers_python(),
            "benchmarks.peers.gpflow_svgp_trace",
            {**common, **SVGP_STEPS, "epochs": peer_epochs},
        ),
    }
    entries = {name: _entry(problem, *jobs[name], shown) for name in methods}
    entries["goal"] = _goal(entries)
    return entries


def _entry(problem: Arrays, python: str | None, module: str, options: dict[str, Any], shown: Arrays) -> dict[str, Any]:
    result = run_job(python, module, shown, dict(options))
    if result.error is not None:
        return {"options": options, "error": result.error}
    facts = dict(result.facts)
    if "log_evidence" in facts:
        # our regressor standardises y: its density in the units of the problem
        facts["bound"] = facts["log_evidence"] - len(problem["y"]) * float(np.log(problem["y"].std()))
    extra = {}
    if "f_test" in problem:
        error = problem["f_test"] - result.arrays["mean"]
        extra = {
            "rmse_to_truth": float(np.sqrt(np.mean(error**2))),
            "median_error_to_truth": float(np.median(abs(error))),
        }
    return {"options": options, **facts, **gaussian_scores(problem["y_test"], result.arrays), **extra}


def _goal(entries: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """When SRGP first is at SVGP's final NLPD, and that time as a share of SVGP's (goal: at most 0.2)."""
    ours, peer = entries.get("srgp", {}), entries.get("gpflow-svgp", {})
    if "trace" not in ours or "trace" not in peer:
        return {"seconds_to_svgp_nlpd": None, "share_of_svgp_seconds": None}
    reached = [epoch["seconds"] for epoch in ours["trace"] if epoch["nlpd"] <= peer["nlpd"]]
    first = reached[0] if reached else None
    return {"seconds_to_svgp_nlpd": first, "share_of_svgp_seconds": ratio(first, peer["seconds"])}


def table_rows(label: str, entries: dict[str, dict[str, Any]]) -> list[list[str]]:
    rows = [
        [f"{label} {name}", *(number(entry.get(key)) for key in _SCORES)]
        for name, entry in entries.items()
        if name != "goal"
    ]
    share = entries["goal"]["share_of_svgp_seconds"]
    return [*rows, [f"{label} share of SVGP's seconds to its NLPD (goal 0.2)", "", "", "", "", number(share)]]


def errors(label: str, entries: dict[str, dict[str, Any]]) -> list[str]:
    return [f"{label} {name} was not measured: {entry['error']}" for name, entry in entries.items() if "error" in entry]
