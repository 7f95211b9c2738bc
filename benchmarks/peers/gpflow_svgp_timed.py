"""Peer: GPflow SVGP for a given time, scored at some moments while the clock stands still."""

from __future__ import annotations

import sys
import time
from typing import Any

import gpflow
from benchmarks.jobs import Arrays, read_job, standardise, write_result
from benchmarks.peers.gpflow_svgp import build_model, compiled_step, mini_batches
from benchmarks.peers.gpflow_svgp_trace import scores


def learn(problem: Arrays, options: dict[str, Any]) -> dict[str, Any]:
    """Standardising, k-means and compilation count."""
    started, paused = time.perf_counter(), 0.0
    X, X_test = standardise(problem["X"], problem["X_test"])
    model = build_model(X, options)
    step = compiled_step(model, options)
    moments, trace, steps = sorted(options["moments"]), [], 0
    for X_batch, y_batch in mini_batches(X, problem["y"], options["batch"]):
        step(X_batch, y_batch)
        steps += 1
        now = time.perf_counter()
        if now - started - paused < moments[0]:
            continue
        found, _ = scores(model, {**problem, "X_test": X_test})
        trace.append({"seconds": now - started - paused, "steps": steps, **found})
        paused += time.perf_counter() - now
        moments = [moment for moment in moments if moment > trace[-1]["seconds"]]
        if not moments:
            break
    return {"trace": trace, "version": gpflow.__version__}


if __name__ == "__main__":
    write_result(sys.argv[1], learn(*read_job(sys.argv[1])))
