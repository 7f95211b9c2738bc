"""Worker: PIC, FITC and DTC in full and in anytime steps on one random split, hyper-parameters given.

Blocks are k-means cells in the metric of PIC's kernel. What predicts the test rows for any q(u) is computed once
(000 appendix D.4.1), outside the clock. The clock of an anytime run has its steps and the posteriors that are read.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from benchmarks.jobs import Arrays, read_job, write_result

from sparsegp import kernels, linalg
from sparsegp.core.approximations import get
from sparsegp.core.block import Block, BlockSource, GivenBlocks, MemoryRows, RandomBlocks
from sparsegp.core.local import LocalPosterior, make_posterior
from sparsegp.core.partition import block_slices, kernel_metric, kmeans_partition
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.infer import batch
from sparsegp.infer.anytime import WITHOUT_REPLACEMENT, NaturalAscent, Reading, read
from sparsegp.infer.stopping import ProbePoints, Probes
from sparsegp.metrics import nlpd, rmse

ROWS_WITH_VARIANCE = 5_000
STEP_RATIO = 1.35
MOST_CACHE_BYTES = 6 * 2**30

Curve = list[dict[str, float]]


class TestRows:
    """f_* = slope v + constant + residual at the test rows, whatever q; scores of any q from it."""

    __test__ = False

    def __init__(
        self, prior: SparsePrior, rows: MemoryRows, X: torch.Tensor, labels: torch.Tensor, y: torch.Tensor
    ) -> None:
        nothing = InducingPosterior.from_statistics(BlockStatistics.zero(prior))
        posterior, given = make_posterior(prior, nothing, rows), None
        self.constant, self.y = torch.zeros_like(y), y
        if isinstance(posterior, LocalPosterior):
            posterior, given = replace(posterior, cache_bytes=MOST_CACHE_BYTES), labels
            self.constant = posterior.marginals(X, given)[0]
        self.probes = Probes.prepare(posterior, ProbePoints(X, given, float(prior.noise_var)))

    def scores(self, q: InducingPosterior) -> dict[str, float]:
        mean = self.constant + self.probes.slopes @ q.mean
        few = slice(0, ROWS_WITH_VARIANCE)
        std = Probes(self.probes.slopes[few], self.probes.var[few], self.probes.noise_var).std(q)
        y = self.y.numpy()
        return {"rmse": rmse(y, mean.numpy()), "nlpd": nlpd(y[few], mean[few].numpy(), std.numpy())}


def shown_steps(n_blocks: int) -> list[int]:
    """1, 2, 3, ... at growing intervals, the last one included."""
    steps = [1]
    while steps[-1] < n_blocks:
        steps.append(min(n_blocks, max(steps[-1] + 1, round(STEP_RATIO * steps[-1]))))
    return steps


def anytime_curve(prior: SparsePrior, source: BlockSource, test: TestRows, rng: np.random.Generator) -> Curve:
    engine, n_rows = NaturalAscent(prior), float(source.sizes.sum())
    n_blocks = int((source.sizes > 0).sum())
    state, seconds, curve = engine.init(), 0.0, []
    draws = WITHOUT_REPLACEMENT.draws(source.sizes, 1, rng)
    for last in shown_steps(n_blocks):
        started = time.perf_counter()
        while state.steps < last:
            draw = next(draws)
            state, _ = engine.step(state, draw, [source.block(k) for k in draw.index])
        q = InducingPosterior.from_statistics(read(state, Reading.RATIO, n_rows))
        seconds += time.perf_counter() - started
        curve.append({"step": last, "seconds": seconds, **test.scores(q)})
    return curve


class Arranged:
    """Training rows sorted into k-means cells in the metric of PIC's kernel, the same blocks for all models."""

    def __init__(self, problem: Arrays, n_blocks: int, rng: np.random.Generator) -> None:
        X, y, X_test, self.y_test = (torch.from_numpy(problem[key]) for key in ("X", "y", "X_test", "y_test"))
        metric = kernel_metric(kernel_of(problem, "pic"), X.shape[1])
        started = time.perf_counter()
        cells = kmeans_partition(X * metric, n_blocks, rng)
        order, offsets = block_slices(cells.assign(X * metric), cells.n_blocks)
        self.seconds = time.perf_counter() - started
        self.rows, self.n_blocks = MemoryRows(Block(X, y).take(order), offsets), cells.n_blocks
        self.X_test, self.labels = X_test, cells.assign(X_test * metric)


def kernel_of(problem: Arrays, name: str) -> kernels.SquaredExponential:
    return kernels.SquaredExponential(float(problem[f"{name}_variance"]), problem[f"{name}_lengthscales"])


def measured(problem: Arrays, data: Arranged, name: str, rng: np.random.Generator) -> dict[str, Any]:
    """The full model and the anytime one, for one approximation."""
    Z, noise_var = torch.from_numpy(problem[f"{name}_Z"]), float(problem[f"{name}_noise_var"])
    prior = SparsePrior.build(kernel_of(problem, name), Z, noise_var, get(name))
    test = TestRows(prior, data.rows, data.X_test, data.labels, data.y_test)
    _, posterior, info = batch.infer(prior, data.rows)
    facts = {
        "full": {"seconds": info.seconds, **test.scores(posterior.q)},
        "anytime": anytime_curve(prior, GivenBlocks(data.rows), test, rng),
    }
    if not prior.approx.by_block:
        source = RandomBlocks.build(data.rows, max(1, len(data.rows) // data.n_blocks), rng)
        facts["anytime, random blocks"] = anytime_curve(prior, source, test, rng)
    return facts


def main(folder: str) -> None:
    problem, options = read_job(folder)
    rng = np.random.default_rng(options["seed"])
    with linalg.flushed_denormals():
        data = Arranged(problem, options["n_blocks"], rng)
        facts = {name: measured(problem, data, name, rng) for name in options["rows"]}
    write_result(folder, {**facts, "n_blocks": data.n_blocks, "block_seconds": data.seconds})


if __name__ == "__main__":
    main(sys.argv[1])
