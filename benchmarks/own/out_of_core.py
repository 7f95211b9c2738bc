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
from benchmarks.measure import PeakMemory

from sparsegp import kernels, linalg
from sparsegp.core.approximations import get
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.prior import SparsePrior
from sparsegp.data import Source, open_source, scan
from sparsegp.data.batches import Array
from sparsegp.data.rows import SourceRows
from sparsegp.infer import batch


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


def in_memory(source: Source) -> MemoryRows:
    batches = list(source)
    X, y = np.concatenate([part.X for part in batches]), np.concatenate([part.y for part in batches])
    return MemoryRows(Block(torch.from_numpy(X), torch.from_numpy(y)))


def measure(problem: Arrays, folder: str, streams: bool) -> dict[str, Any]:
    source, prior = open_source(folder, target="y"), prior_of(problem)
    n_rows = int(source.n_rows or 0)
    rows = None if streams else in_memory(source)
    prior.features(prior.inducing)
    memory = PeakMemory()
    facts: dict[str, Any] = {}
    if rows is None:
        began = time.perf_counter()
        found = scan(source, np.random.default_rng(0))
        facts["survey_seconds"] = time.perf_counter() - began
    started = time.perf_counter()
    _, _, info = batch.infer(prior, SourceRows.of(source, found, RawUnits()) if rows is None else rows)
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
