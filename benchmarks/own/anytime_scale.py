"""Worker: rows sorted into k-means blocks on disk, and anytime steps with blocks sampled from there.

The peak is that of the whole process, libraries included: making the rows and the blocks, all steps, one posterior.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from benchmarks.jobs import Arrays, read_job, write_result

from sparsegp import kernels, linalg
from sparsegp.approximations import get
from sparsegp.data import Block, Rows
from sparsegp.engines.anytime import NaturalAscent
from sparsegp.engines.sampling import WITHOUT_REPLACEMENT
from sparsegp.partition import kernel_metric, kmeans_partition
from sparsegp.posterior import InducingPosterior
from sparsegp.prior import SparsePrior
from sparsegp.sources import DiskBlocks, nearest_block, write_blocks

GROUP_ROWS = 65_536
ROWS_FOR_KMEANS = 200_000
WARM_UP = 2


def groups(problem: Arrays, n_rows: int) -> Iterator[Rows]:
    """Rows of the same law as the problem's, made while they are read."""
    rng, D = np.random.default_rng(1), problem["Z"].shape[1]
    for start in range(0, n_rows, GROUP_ROWS):
        X = rng.standard_normal((min(GROUP_ROWS, n_rows - start), D))
        y = np.sin(X.sum(1) / 2.0) + 0.3 * X[:, 0] * X[:, 1] + 0.3 * rng.standard_normal(len(X))
        yield Rows(Block(torch.from_numpy(X), torch.from_numpy(y)))


def blocks_on_disk(problem: Arrays, kernel: kernels.Kernel, options: dict[str, Any], folder: str) -> DiskBlocks:
    """k-means on a sample, then one pass that assigns and writes."""
    n_rows = options["n_rows"]
    metric = kernel_metric(kernel, problem["Z"].shape[1])
    sample = torch.cat([rows.all.X for rows in groups(problem, min(n_rows, ROWS_FOR_KMEANS))])
    cells = kmeans_partition(sample * metric, n_rows // options["block_rows"], np.random.default_rng(0))
    assign = nearest_block(cells, metric)
    return write_blocks(groups(problem, n_rows), assign, cells.n_blocks, folder, n_rows=n_rows)


def steps_from(blocks: DiskBlocks, prior: SparsePrior, steps: int) -> dict[str, Any]:
    """Reading a block counts. Blocks differ in size: the mean over many steps is what grows or does not."""
    engine = NaturalAscent(prior)
    draws = WITHOUT_REPLACEMENT.draws(blocks.sizes, 1, np.random.default_rng(2))
    state, seconds = engine.init(), []
    for _ in range(WARM_UP + steps):
        started, draw = time.perf_counter(), next(draws)
        state, _ = engine.step(state, draw, [blocks.block(k) for k in draw.index])
        seconds.append(time.perf_counter() - started)
    started = time.perf_counter()
    InducingPosterior.from_statistics(state.iterate)
    return {
        "seconds": float(np.mean(seconds[WARM_UP:])),
        "median_seconds": float(np.median(seconds[WARM_UP:])),
        "rows_a_block": state.seen.n_rows / state.steps,
        "publish_seconds": time.perf_counter() - started,
    }


def measure(problem: Arrays, options: dict[str, Any]) -> dict[str, Any]:
    kernel = kernels.SquaredExponential(float(problem["variance"]), problem["lengthscales"])
    with tempfile.TemporaryDirectory(prefix="sparsegp-bench-") as folder:
        started = time.perf_counter()
        blocks = blocks_on_disk(problem, kernel, options, folder)
        facts: dict[str, Any] = {"write_seconds": time.perf_counter() - started, "n_blocks": blocks.n_blocks}
        for name in options["approximations"]:
            prior = SparsePrior.build(kernel, torch.from_numpy(problem["Z"]), float(problem["noise_var"]), get(name))
            facts[name] = steps_from(blocks, prior, options["steps"])
    return facts | {"process_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0}


def main(folder: str) -> None:
    problem, options = read_job(folder)
    with linalg.flushed_denormals():
        write_result(folder, measure(problem, options))


if __name__ == "__main__":
    main(sys.argv[1])
