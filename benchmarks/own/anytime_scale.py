"""Worker: rows of one number sorted into k-means blocks on disk, and a few anytime steps with blocks from there.

The peak is that of the whole process, libraries included: making the rows and the blocks, the steps, one posterior.
The blocks stay in the folder that was named, for `anytime_turns` to time steps from.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from benchmarks.jobs import Arrays, read_job, write_result

from sparsegp import kernels, linalg
from sparsegp.core.approximations import get
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.partition import Blocking, kernel_metric, kmeans_partition
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.data.disk_rows import DiskRows, write_blocks
from sparsegp.infer.anytime import WITHOUT_REPLACEMENT, NaturalAscent

GROUP_ROWS = 65_536
ROWS_FOR_KMEANS = 200_000


def groups(problem: Arrays, n_rows: int) -> Iterator[MemoryRows]:
    """Rows of the same law as the problem's, made while they are read."""
    rng, D = np.random.default_rng(1), problem["Z"].shape[1]
    for start in range(0, n_rows, GROUP_ROWS):
        X = rng.standard_normal((min(GROUP_ROWS, n_rows - start), D))
        y = np.sin(X.sum(1) / 2.0) + 0.3 * X[:, 0] * X[:, 1] + 0.3 * rng.standard_normal(len(X))
        yield MemoryRows(Block(torch.from_numpy(X), torch.from_numpy(y)))


def blocks_on_disk(problem: Arrays, kernel: kernels.Kernel, options: dict[str, Any], folder: str) -> DiskRows:
    """k-means on a sample, then one pass that assigns and writes."""
    n_rows = options["n_rows"]
    metric = kernel_metric(kernel, problem["Z"].shape[1])
    sample = torch.cat([rows.all.X for rows in groups(problem, min(n_rows, ROWS_FOR_KMEANS))])
    cells = kmeans_partition(sample * metric, n_rows // options["block_rows"], np.random.default_rng(0))
    assign = Blocking(cells, metric).nearest
    return write_blocks(groups(problem, n_rows), assign, cells.n_blocks, folder, n_rows=n_rows)


def take_steps(blocks: DiskRows, prior: SparsePrior, steps: int) -> None:
    engine = NaturalAscent(prior)
    draws = WITHOUT_REPLACEMENT.draws(blocks.sizes, 1, np.random.default_rng(2))
    state = engine.init()
    for _ in range(steps):
        draw = next(draws)
        state, _ = engine.step(state, draw, [blocks.block(k) for k in draw.index])
    InducingPosterior.from_statistics(state.iterate)


def build_kernel(problem: Arrays) -> kernels.Kernel:
    return kernels.SquaredExponential(float(problem["variance"]), problem["lengthscales"])


def build_prior(problem: Arrays, approximation: str) -> SparsePrior:
    Z = torch.from_numpy(problem["Z"])
    return SparsePrior.build(build_kernel(problem), Z, float(problem["noise_var"]), get(approximation))


def measure(problem: Arrays, options: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    blocks = blocks_on_disk(problem, build_kernel(problem), options, options["folder"])
    facts: dict[str, Any] = {"write_seconds": time.perf_counter() - started, "n_blocks": blocks.n_blocks}
    for name in options["approximations"]:
        take_steps(blocks, build_prior(problem, name), options["steps"])
    return facts | {"process_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0}


def main(folder: str) -> None:
    problem, options = read_job(folder)
    with linalg.flushed_denormals():
        write_result(folder, measure(problem, options))


if __name__ == "__main__":
    main(sys.argv[1])
