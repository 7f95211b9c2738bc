"""Worker: one inference pass over Parquet files, streamed or from memory, and the scan before it."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.measure import PeakMemory, seconds_of

from sparsegp import kernels, linalg
from sparsegp.approximations import get
from sparsegp.data import Block, Rows
from sparsegp.engines import batch, streamed
from sparsegp.prior import SparsePrior
from sparsegp.sources import ModelRows, Source, open_source, scan
from sparsegp.sources.batch import Array


@dataclass(frozen=True)
class RawUnits:
    """The rows as they are in the files."""

    y_scale: float = 1.0

    def inputs(self, X: Array) -> Array:
        return X

    def targets(self, y: Array) -> Array:
        return y.copy()


def prior_of(problem: Arrays) -> SparsePrior:
    kernel = kernels.SquaredExponential(float(problem["variance"]), problem["lengthscales"])
    return SparsePrior.build(kernel, torch.from_numpy(problem["Z"]), float(problem["noise_var"]), get("vfe"))


def in_memory(source: Source) -> Rows:
    batches = list(source)
    X, y = np.concatenate([part.X for part in batches]), np.concatenate([part.y for part in batches])
    return Rows(Block(torch.from_numpy(X), torch.from_numpy(y)))


def measure(problem: Arrays, folder: str, streams: bool) -> dict[str, Any]:
    source, prior = open_source(folder, target="y"), prior_of(problem)
    n_rows = int(source.n_rows or 0)
    rows = None if streams else in_memory(source)
    prior.features(prior.inducing)
    memory = PeakMemory()
    facts: dict[str, Any] = {}
    if rows is None:
        facts["survey_seconds"] = seconds_of(lambda: scan(source, np.random.default_rng(0)))
    started = time.perf_counter()
    if rows is None:
        _, _, info = streamed.infer(prior, ModelRows(source, RawUnits(), n_rows))
    else:
        _, _, info = batch.infer(prior, rows)
    seconds = time.perf_counter() - started
    return facts | {
        "n_rows": n_rows,
        "seconds": seconds,
        "microseconds_per_row": 1e6 * seconds / n_rows,
        "peak_mb": memory.above_start_mb(),
        "process_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0,
        "log_evidence_per_row": info.log_evidence / n_rows,
    }


def main(folder: str) -> None:
    problem, options = read_job(folder)
    with linalg.flushed_denormals():
        write_result(folder, measure(problem, options["folder"], options["streams"]))


if __name__ == "__main__":
    main(sys.argv[1])
