"""Worker: value and gradient of objectives by sparsegp, in turns with the products they cannot do without.

Turns, because the speed of a machine drifts: ratios are of what was measured side by side, best of all rounds.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.measure import PeakMemory, seconds_of
from benchmarks.ours import Gradients, vfe_value_and_gradient
from benchmarks.own.limit import BoundLimit

Evaluate = Callable[[], tuple[float, Gradients]]


def evaluation(problem: Arrays, options: dict[str, Any]) -> Evaluate:
    block_rows = options.get("block_rows")
    return vfe_value_and_gradient(
        problem["X"],
        problem["y"],
        problem["Z"],
        problem["lengthscales"],
        float(problem["variance"]),
        float(problem["noise_var"]),
        options["row"],
        None if block_rows is None else np.arange(len(problem["y"])) // block_rows,
    )


def in_turns(problem: Arrays, rows: dict[str, dict[str, Any]], repeats: int) -> dict[str, dict[str, Any]]:
    limit = BoundLimit(*problem["X"].shape[:1], *problem["Z"].shape)
    evaluations = {name: evaluation(problem, options) for name, options in rows.items()}
    limit.measure()
    facts = {name: _first(evaluate) for name, evaluate in evaluations.items()}
    times: dict[str, list[float]] = {name: [] for name in evaluations}
    pieces: dict[str, float] = {}
    for _ in range(repeats):
        for name, seconds in limit.measure().items():
            pieces[name] = min(seconds, pieces.get(name, seconds))
        for name, evaluate in evaluations.items():
            times[name].append(seconds_of(evaluate))
    found = {name: {**facts[name], **_timing(times[name])} for name in evaluations}
    seconds = sum(pieces.values())
    needed = {"seconds": seconds, "best": seconds, "pieces": pieces, "operations": limit.operations}
    return {"limit": needed, **found}


def _first(evaluate: Evaluate) -> dict[str, Any]:
    value, gradients = evaluate()
    return {"value": value, "inducing_gradient_norm": float(np.linalg.norm(gradients["inducing"]))}


def _timing(times: list[float]) -> dict[str, Any]:
    return {"seconds": statistics.median(times), "best": min(times), "repeats": times}


def by_itself(problem: Arrays, options: dict[str, Any]) -> dict[str, Any]:
    """Peak memory of a single evaluation in a process that has done nothing else, then seconds if repeats are asked."""
    evaluate, memory = evaluation(problem, options), PeakMemory()
    facts = {**_first(evaluate), "peak_mb": memory.above_start_mb()}
    repeats = options.get("repeats", 0)
    return {**facts, **_timing([seconds_of(evaluate) for _ in range(repeats)])} if repeats else facts


def main(folder: str) -> None:
    problem, options = read_job(folder)
    if "rows" in options:
        write_result(folder, in_turns(problem, options["rows"], options["repeats"]))
    else:
        write_result(folder, by_itself(problem, options))


if __name__ == "__main__":
    main(sys.argv[1])
