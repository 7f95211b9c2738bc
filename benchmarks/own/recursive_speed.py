"""Worker: the recursive engine: single rows, batches against their matrix products, a million rows, forgetting."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.measure import median_seconds, seconds_of

from sparsegp import SparseGPRegressor, kernels
from sparsegp.core.approximations import get
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.infer import recursive, revise

POSITIVE_CHECKS = 20


def make_prior(problem: Arrays, n_inducing: int, row: str = "vfe") -> SparsePrior:
    kernel = kernels.SquaredExponential(float(problem["variance"]), problem["lengthscales"])
    return SparsePrior.build(kernel, torch.from_numpy(problem["Z"][:n_inducing]), float(problem["noise_var"]), get(row))


def rows_of(problem: Arrays, n_rows: int) -> MemoryRows:
    return MemoryRows(Block(torch.from_numpy(problem["X"][:n_rows]), torch.from_numpy(problem["y"][:n_rows])))


def single_rows(problem: Arrays, options: dict[str, Any]) -> dict[str, Any]:
    """Updates a second, then mean and covariance against the batch result; is the covariance positive throughout?"""
    prior, rows = make_prior(problem, options["single_inducing"]), rows_of(problem, options["single_rows"])
    state, every = recursive.init(prior), max(1, len(rows) // POSITIVE_CHECKS)
    smallest, seconds, started = torch.inf, 0.0, time.perf_counter()
    for k, row in enumerate(rows.chunks(1), 1):
        state, _ = recursive.step(state, row)
        if k % every == 0:
            seconds += time.perf_counter() - started
            smallest = min(smallest, float(torch.linalg.eigvalsh(state.covariance)[0]))
            started = time.perf_counter()
    seconds += time.perf_counter() - started
    batch = InducingPosterior.from_statistics(BlockStatistics.from_blocks(prior, rows.chunks()))
    return {
        "rows": len(rows),
        "updates_per_second": len(rows) / seconds,
        "mean_error": _relative(state.mean, batch.mean),
        "covariance_error": _relative(state.covariance, batch.covariance),
        "smallest_eigenvalue": smallest,
    }


def partial_fit_rows(problem: Arrays, options: dict[str, Any]) -> dict[str, Any]:
    """The same by the estimator, with its checks, standardisation and innovations: updates a second."""
    n, M = options["partial_fit_rows"], options["single_inducing"]
    kernel = kernels.SquaredExponential(float(problem["variance"]), problem["lengthscales"])
    noise_var = float(problem["noise_var"])
    gp = SparseGPRegressor(kernel, approximation="vfe", inducing=problem["Z"][:M], noise_var=noise_var, optimizer=None)
    X, y = problem["X"], problem["y"]
    gp.fit(X[:M], y[:M])

    def add() -> None:
        for i in range(M, M + n):
            gp.partial_fit(X[i : i + 1], y[i : i + 1])

    return {"rows": n, "updates_per_second": n / seconds_of(add)}


def batches(problem: Arrays, options: dict[str, Any]) -> dict[str, Any]:
    """One batch of 1000 rows by the engine, and its products alone: D-term gemm and exp, whitening, Gram matrix."""
    prior, rows = make_prior(problem, options["batch_inducing"]), rows_of(problem, 20 * options["batch_rows"])
    blocks = list(rows.chunks(options["batch_rows"]))

    def by_engine() -> None:
        state = recursive.init(prior)
        for block in blocks:
            state, _ = recursive.step(state, block)

    Zt, square = prior.inducing.mT.contiguous(), prior.Luu.factor

    def products() -> None:
        for block in blocks:
            W = (0.01 * (block.X @ Zt)).exp_() @ square
            W.mT @ W

    with torch.no_grad():
        ours, limit = median_seconds(by_engine, options["repeats"]), median_seconds(products, options["repeats"])
    return {"seconds": ours.median / len(blocks), "products_seconds": limit.median / len(blocks)}


def forgetting(problem: Arrays, options: dict[str, Any]) -> dict[str, Any]:
    """Add rows in batches, forget them all: how far from the prior is what remains?"""
    prior, rows = make_prior(problem, options["batch_inducing"]), rows_of(problem, options["forget_rows"])
    blocks = list(rows.chunks(options["batch_rows"]))
    state = recursive.init(prior)

    def add() -> None:
        nonlocal state
        for block in blocks:
            state, _ = recursive.step(state, block)

    def remove() -> None:
        nonlocal state
        for block in blocks:
            state = revise.forget(state, block)

    add_seconds, remove_seconds = seconds_of(add), seconds_of(remove)
    eye = torch.eye(prior.n_inducing, dtype=torch.float64)
    return {
        "rows": len(rows),
        "add_seconds": add_seconds,
        "forget_seconds": remove_seconds,
        "distance_to_prior": max(float((state.covariance - eye).abs().max()), float(state.mean.abs().max())),
    }


def _relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


if __name__ == "__main__":
    given, chosen = read_job(sys.argv[1])
    parts = (single_rows, partial_fit_rows, batches, forgetting)
    write_result(sys.argv[1], {part.__name__: part(given, chosen) for part in parts})
