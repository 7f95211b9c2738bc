"""Worker: seconds of one anytime step, and of its matrix products and factorisations alone.

Per block of b rows the products are: one kernel evaluation (b x D x M and b x M exponentials), b x M x M to whiten and
b x M x M to add up W^T V^-1 W. Block rows need in addition K_kk (b x D x b and b x b exponentials), W W^T (b x M x b),
the Cholesky factorisation of V (b x b) and the triangular solve V^-1/2 W (b x b x M). Denormals are flushed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.measure import median_seconds

from sparsegp import kernels, linalg
from sparsegp.core.approximations import get
from sparsegp.core.block import Block, GivenBlocks, MemoryRows
from sparsegp.core.prior import SparsePrior
from sparsegp.infer.anytime import WITHOUT_REPLACEMENT, NaturalAscent


def step_of(problem: Arrays, row: str, block_rows: int) -> Callable[[], object]:
    """A call that draws a block and takes a step with it."""
    kernel = kernels.SquaredExponential(float(problem["variance"]), problem["lengthscales"])
    prior = SparsePrior.build(kernel, torch.from_numpy(problem["Z"]), float(problem["noise_var"]), get(row))
    n = len(problem["y"])
    offsets = torch.from_numpy(np.append(np.arange(0, n, block_rows), n))
    source = GivenBlocks(MemoryRows(Block(torch.from_numpy(problem["X"]), torch.from_numpy(problem["y"])), offsets))
    engine = NaturalAscent(prior)
    draws = WITHOUT_REPLACEMENT.draws(source.sizes, 1, np.random.default_rng(0))
    states = [engine.init()]

    def step() -> None:
        draw = next(draws)
        states[0], _ = engine.step(states[0], draw, [source.block(k) for k in draw.index])

    return step


def products_of(problem: Arrays, by_block: bool, block_rows: int) -> Callable[[], object]:
    """The products and factorisations of one step, in memory allocated before."""
    X, Z = torch.from_numpy(problem["X"][:block_rows]), 0.01 * torch.from_numpy(problem["Z"])
    b, m = len(X), len(Z)
    square, total, W = torch.eye(m, dtype=X.dtype), torch.empty(m, m, dtype=X.dtype), torch.empty(b, m, dtype=X.dtype)
    K, own = torch.empty(b, m, dtype=X.dtype), torch.empty(b, b, dtype=X.dtype)
    V = 2.0 * torch.eye(b, dtype=X.dtype)

    def points() -> None:
        torch.mm(X, Z.T, out=K).exp_()
        torch.mm(K, square, out=W)
        torch.mm(W.T, W, out=total)

    def blocks() -> None:
        points()
        torch.mm(0.01 * X, X.T, out=own).exp_()
        torch.mm(W, W.T, out=own)
        torch.linalg.solve_triangular(torch.linalg.cholesky(V), W, upper=False)

    return blocks if by_block else points


def main(folder: str) -> None:
    problem, options = read_job(folder)
    row, block_rows = options["row"], options["block_rows"]
    with linalg.flushed_denormals():
        step = median_seconds(step_of(problem, row, block_rows), options["repeats"], warmup=2)
        limit = median_seconds(products_of(problem, get(row).by_block, block_rows), options["repeats"], warmup=2)
    write_result(folder, {"step": step.as_facts(), "limit": limit.as_facts()})


if __name__ == "__main__":
    main(sys.argv[1])
