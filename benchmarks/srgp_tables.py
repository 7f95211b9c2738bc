"""Tables of docs/experiments-recursive.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.markdown import machine_line, markdown_table
from benchmarks.results import number

SCORES = {"bound": "bound", "rmse": "RMSE", "nlpd": "NLPD", "coverage_95": "95 % coverage", "seconds": "seconds"}
PLANT_SCORES = {
    "rmse": "RMSE",
    "rmse_to_truth": "RMSE to the true response",
    "median_error_to_truth": "median error",
    "nlpd": "NLPD",
    "seconds": "seconds",
}
DIGITS = {"bound": 0, "seconds": 1}
METHODS = ("srgp", "vfe", "gpflow-svgp")


def speed(document: dict[str, Any]) -> str:
    measured = document["measured"]
    if "error" in measured:
        return f"Not measured: {measured['error']}\n"
    problem, single, forgetting = document["problem"], measured["single_rows"], measured["forgetting"]
    by_estimator = measured.get("partial_fit_rows", {}).get("updates_per_second")
    M, batch_M = problem["single_inducing"], problem["batch_inducing"]
    rows = [
        [f"single rows a second, M = {M}, engine", f"{single['updates_per_second']:,.0f}", "at least 10,000"],
        [f"single rows a second, M = {M}, `partial_fit`", number(by_estimator, 0), ""],
        [f"after {single['rows']:,} single rows: error of the mean", f"{single['mean_error']:.0e}", "at most 1e-6"],
        ["error of the covariance", f"{single['covariance_error']:.0e}", "at most 1e-6"],
        ["smallest eigenvalue of the covariance met", f"{single['smallest_eigenvalue']:.0e}", "above 0"],
        [
            f"batch of {problem['batch_rows']:,}, M = {batch_M} / its matrix products",
            number(document["ratios"]["batch / products"], 2),
            "at most 2",
        ],
        [
            f"{forgetting['rows']:,} rows added and forgotten: distance to the prior",
            f"{forgetting['distance_to_prior']:.0e}",
            "at most 1e-6",
        ],
    ]
    heading = f"D = {problem['n_features']}, VFE; errors relative to the batch result; "
    return heading + machine_line(document["machine"]) + "\n" + markdown_table(["", "measured", "goal"], rows)


def toy(document: dict[str, Any]) -> str:
    fixed = document["fixed"]
    rows = [[f"after {step['rows']} rows", *_pair(step)] for step in fixed["online"]]
    rows += [
        ["batch", *_pair(fixed["batch"])],
        [f"{fixed['distributed']['nodes']} nodes", *_pair(fixed["distributed"])],
    ]
    bounds = markdown_table(["PEP(0.5), parameters held", "bound", "its derivative by log lengthscale"], rows)
    return bounds + "\nLearned, 1,000 rows; " + _race(document)


def _pair(step: Mapping[str, Any]) -> list[str]:
    return [number(step.get("bound"), 6), number(step.get("slope"), 6)]


def race(document: dict[str, Any]) -> str:
    problem = document["problem"]
    heading = (
        f"{problem['n_rows']:,} training rows, batches of {problem['batch']:,}, {problem['epochs']} epochs of SRGP, "
    )
    return heading + f"{problem['peer_epochs']} of SVGP; " + _race(document)


def _race(document: dict[str, Any]) -> str:
    cells = document["cells"]
    rows = [row for label, entries in cells.items() for row in _scores(label, entries, SCORES)]
    shares = [[label, *_goal(entries["goal"])] for label, entries in cells.items()]
    goals = markdown_table(["", "seconds until SRGP has SVGP's final NLPD", "share of SVGP's seconds", "goal"], shares)
    return machine_line(document["machine"]) + "\n" + markdown_table(["", *SCORES.values()], rows) + "\n" + goals


def _goal(goal: Mapping[str, float | None]) -> list[str]:
    seconds, share = goal["seconds_to_svgp_nlpd"], goal["share_of_svgp_seconds"]
    return [number(seconds, 1) if seconds is not None else "not reached", number(share, 2), "at most 0.2"]


def _scores(label: str, entries: Mapping[str, Any], shown: Mapping[str, str]) -> list[list[str]]:
    return [
        [f"{label} {name}", *(number(entries[name].get(key), DIGITS.get(key, 4)) for key in shown)]
        for name in METHODS
        if name in entries
    ]


def plant(document: dict[str, Any]) -> str:
    problem = document["problem"]
    heading = f"M = {problem['n_inducing']}, batches of at most {problem['batch']:,}, y standardised; "
    rows = [row for label, entries in document["cells"].items() for row in _scores(label, entries, PLANT_SCORES)]
    table = markdown_table(["training rows", *PLANT_SCORES.values()], rows)
    return heading + machine_line(document["machine"]) + "\n" + table


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "recursive_speed": speed,
    "srgp_toy": toy,
    "srgp_simulation": race,
    "srgp_airline": race,
    "srgp_plant": plant,
}
