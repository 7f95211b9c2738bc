"""Value and gradient of the VFE bound (kernel, noise and inducing inputs), float64, ARD squared exponential.

Peers: GPflow SGPR and GPyTorch SGPR. Limit: the matrix products and exponentials that are needed, counted once, at the
rate of large calls (`own/limit.py`). Ours and the limit take turns in one process, and their ratios are of the best
times. Every value is compared with a direct numpy computation of the bound: all libraries are known to compute the same
thing.
"""

from __future__ import annotations

from typing import Any

from benchmarks.jobs import Arrays, JobResult, own_python, peers_python, run_job
from benchmarks.problems import reference_vfe, synthetic
from benchmarks.results import console, machine_facts, number, print_table, ratio, write_results

NAME = "bound"
BLOCK_ROWS = 512
OWN_ROWS: dict[str, dict[str, Any]] = {
    "vfe": {"row": "vfe"},
    "fitc": {"row": "fitc"},
    "pep": {"row": "pep"},
    "pitc": {"row": "pitc", "block_rows": BLOCK_ROWS},
}
PEERS = {
    "GPflow SGPR": "benchmarks.peers.gpflow_sgpr",
    "GPyTorch SGPR": "benchmarks.peers.gpytorch_sgpr",
}
PEER_JITTER = 1e-10
VALUE_TOLERANCE = 1e-6


def run(quick: bool = False) -> dict[str, Any]:
    size = {"n_rows": 5_000, "n_inducing": 64} if quick else {"n_rows": 100_000, "n_inducing": 512}
    problem = synthetic(**size, n_features=8)
    reference = reference_vfe(problem)
    measured = _measure(problem, repeats=3 if quick else 5)
    document = {
        "machine": machine_facts(),
        "problem": {**size, "n_features": 8, "block_rows": BLOCK_ROWS, "reference_value": reference},
        "measured": measured,
        "ratios": _ratios(measured),
        "relative_errors": _relative_errors(measured, reference),
    }
    write_results(NAME, document, quick)
    _print(document)
    return document


def _measure(problem: Arrays, repeats: int) -> dict[str, dict[str, Any]]:
    options = {"rows": OWN_ROWS, "repeats": repeats}
    turns = run_job(own_python(), "benchmarks.own.bound", problem, options)
    if turns.error is not None:
        raise RuntimeError(f"the objectives could not be timed: {turns.error}")
    measured: dict[str, dict[str, Any]] = turns.facts
    for name, own in OWN_ROWS.items():
        measured[name] |= _facts(run_job(own_python(), "benchmarks.own.bound", problem, own))
    for name, module in PEERS.items():
        peer_options = {"repeats": repeats, "jitter": PEER_JITTER}
        measured[name] = _facts(run_job(peers_python(), module, problem, peer_options))
    return measured


def _facts(result: JobResult) -> dict[str, Any]:
    return result.facts if result.error is None else {"error": result.error}


def _ratios(measured: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    seconds = {name: facts["best"] for name, facts in measured.items() if "best" in facts}
    peers = [min(facts["repeats"]) for name, facts in measured.items() if name in PEERS and "repeats" in facts]
    return {
        "faster peer / vfe": ratio(min(peers) if len(peers) == len(PEERS) else None, seconds["vfe"]),
        "vfe / limit": ratio(seconds["vfe"], seconds["limit"]),
        "fitc / vfe": ratio(seconds["fitc"], seconds["vfe"]),
        "pep / vfe": ratio(seconds["pep"], seconds["vfe"]),
        "pitc / vfe": ratio(seconds["pitc"], seconds["vfe"]),
    }


def _relative_errors(measured: dict[str, dict[str, Any]], reference: float) -> dict[str, float]:
    """Of each value of the VFE bound against the direct computation."""
    values = {name: measured[name].get("value") for name in ("vfe", *PEERS)}
    return {name: abs(value / reference - 1.0) for name, value in values.items() if value is not None}


def rows_of_limit(limit: dict[str, Any]) -> list[list[str]]:
    """Of each piece of work that vfe needs: multiplications and additions, or exponentials."""
    return [
        [name, number(count / 1e9, 1), number(limit["pieces"][name], 3), number(count / 1e9 / limit["pieces"][name], 1)]
        for name, count in limit["operations"].items()
    ]


def _print(document: dict[str, Any]) -> None:
    measured, errors = document["measured"], document["relative_errors"]
    rows = [
        [
            name,
            number(facts.get("seconds")),
            number(facts.get("peak_mb"), 0),
            f"{errors[name]:.0e}" if name in errors else "-",
        ]
        for name, facts in measured.items()
    ]
    print_table("value and gradient", ["", "seconds", "peak MB above data", "error of value"], rows)
    print_table("the limit", ["", "operations, 1e9", "seconds", "1e9 a second"], rows_of_limit(measured["limit"]))
    print_table("ratios", ["", "ratio"], [[name, number(r, 2)] for name, r in document["ratios"].items()])
    for name, facts in measured.items():
        if "error" in facts:
            console.print(f"{name} was not measured: {facts['error']}", markup=False)
    for name, error in errors.items():
        if error > VALUE_TOLERANCE:
            console.print(f"WARNING: the bound of {name} is off by {error:.1e} (relative)")
