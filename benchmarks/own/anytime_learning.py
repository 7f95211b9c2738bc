"""Worker: hyper-parameters learned in a given time by one of several ways from the same start, then one exact pass.

The start (median lengthscales; neighbourhoods for block models), the blocks and the inducing inputs are common and not
counted. `seconds` is the processor time of learning alone, whatever else the machine does; all then infer from
all rows and are scored on the test rows.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.scores import gaussian_scores

from sparsegp import kernels, linalg
from sparsegp.core import inducing
from sparsegp.core.approximations import Approximation, get
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.partition import block_slices, kernel_metric, kmeans_partition
from sparsegp.core.prior import SparsePrior
from sparsegp.fit.learning_options import LearningOptions
from sparsegp.fit.problem import Problem, Start
from sparsegp.fit.start import local_start, median_lengthscales, neighbour_noise_var
from sparsegp.infer import batch
from sparsegp.learn import schedules
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.trace import Deadline, Terms

ROWS_FOR_INDUCING = 20_000


@dataclass(frozen=True)
class Setting:
    """What all ways start from."""

    rows: MemoryRows
    row: Approximation
    start: Start
    Z: torch.Tensor
    X_test: torch.Tensor
    labels: torch.Tensor | None

    def hyperparameters(self) -> Hyperparameters:
        return Hyperparameters(self.start.kernel, self.start.noise_var, self.Z.clone())


def setting(problem: Arrays, options: dict[str, Any]) -> Setting:
    rng = np.random.default_rng(0)
    mean, std = problem["X"].mean(0), problem["X"].std(0)
    X, X_test = (torch.from_numpy((part - mean) / std) for part in (problem["X"], problem["X_test"]))
    block, row = Block(X, torch.from_numpy(problem["y"])), get(options["row"])
    kernel = kernels.get(options["kernel"])(variance=1.0, lengthscales=median_lengthscales(X, rng))
    start = Start(kernel, neighbour_noise_var(X, block.y, rng))
    rows, labels = MemoryRows(block), None
    if row.by_block:
        problem = Problem(row, start, "kmeans", options["n_inducing"], rng, optimizer="lbfgs")
        start = local_start(problem, block)
        metric = kernel_metric(start.kernel, X.shape[1])
        cells = kmeans_partition(X * metric, round(len(X) / options["block_rows"]), rng)
        order, offsets = block_slices(cells.assign(X * metric), cells.n_blocks)
        rows, labels = MemoryRows(block.take(order), offsets), cells.assign(X_test * metric)
    sample = X[torch.from_numpy(rng.choice(len(X), min(len(X), ROWS_FOR_INDUCING), replace=False))]
    Z = inducing.select_inducing("kmeans", start.kernel, sample, options["n_inducing"], rng)
    return Setting(rows, row, start, Z, X_test, labels)


def learned(given: Setting, way: str, seconds: float) -> tuple[Hyperparameters, dict[str, Any]]:
    hyper, rng = given.hyperparameters(), np.random.default_rng(1)
    limits = LearningOptions().start.limits(given.rows.all, given.start.noise_var)
    clock = time.process_time
    started = clock()
    deadline = Deadline(started + seconds, clock)
    stages = schedules.learn(given.rows, given.row, hyper, Terms(limits, rng, way, deadline=deadline))
    evaluations = sum(stage.evaluations for stage in stages)
    return hyper, {"seconds": clock() - started, "evaluations": evaluations}


def scored(given: Setting, hyper: Hyperparameters, y_test: np.ndarray) -> dict[str, float]:
    prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, given.row)
    _, posterior, info = batch.infer(prior, given.rows)
    mean, var = posterior.marginals(given.X_test, given.labels)
    std = (var + float(hyper.noise_var)).sqrt()
    scores = gaussian_scores(y_test, {"mean": mean.numpy(), "std": std.numpy()})
    return {**scores, "log_evidence_per_row": info.log_evidence / len(given.rows)}


def main(folder: str) -> None:
    problem, options = read_job(folder)
    with linalg.flushed_denormals():
        given = setting(problem, options)
        facts = {}
        for way in options["ways"]:
            for seconds in options["budgets"]:
                hyper, record = learned(given, way, seconds)
                facts[f"{way} {seconds:g}"] = {**record, **scored(given, hyper, problem["y_test"])}
    write_result(folder, facts)


if __name__ == "__main__":
    main(sys.argv[1])
