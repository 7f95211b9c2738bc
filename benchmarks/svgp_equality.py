"""Anytime DTC is stochastic variational inference: its steps against those of GPflow's SVGP on the same batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from benchmarks.jobs import Arrays, peers_python, run_job
from benchmarks.problems import synthetic
from benchmarks.results import console, machine_facts, print_table, write_results

from sparsegp import kernels
from sparsegp.core.approximations import get
from sparsegp.core.block import Block
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.infer.anytime import Constant, Draw, NaturalAscent

NAME = "svgp_equality"
GAMMA = 0.3
JITTER = 1e-12
TOLERANCE = 1e-6
SHORTER = 0.4


def run(quick: bool = False) -> dict[str, Any]:
    n_rows, n_inducing, batch, n_steps = (500, 10, 50, 3) if quick else (5_000, 50, 200, 10)
    problem = synthetic(n_rows=n_rows, n_inducing=n_inducing, n_features=3)
    # A well-conditioned Kuu: else the libraries' different jitters show, not their steps.
    problem["lengthscales"] = SHORTER * problem["lengthscales"]
    problem["batches"] = np.random.default_rng(1).permutation(n_rows)[: batch * n_steps].reshape(n_steps, batch)
    peer = run_job(peers_python(), "benchmarks.peers.gpflow_natural_step", problem, {"gamma": GAMMA, "jitter": JITTER})
    document = {
        "machine": machine_facts(),
        "problem": {"n_rows": n_rows, "n_inducing": n_inducing, "batch": batch, "steps": n_steps, "gamma": GAMMA},
        "measured": {"error": peer.error} if peer.error else _differences(own_steps(problem), peer.arrays),
    }
    write_results(NAME, document, quick)
    _print(document)
    return document


def own_steps(problem: Arrays) -> Arrays:
    """Mean and covariance of the whitened inducing values after every step."""
    kernel = kernels.SquaredExponential(float(problem["variance"]), problem["lengthscales"])
    prior = SparsePrior.build(kernel, torch.from_numpy(problem["Z"]), float(problem["noise_var"]), get("dtc"))
    engine = NaturalAscent(prior, Constant(GAMMA))
    state, means, covariances = engine.init(), [], []
    for rows in problem["batches"]:
        block = Block(torch.from_numpy(problem["X"][rows]), torch.from_numpy(problem["y"][rows]))
        state, _ = engine.step(state, Draw((0,), (len(problem["y"]) / len(rows),), (True,)), [block])
        q = InducingPosterior.from_statistics(state.iterate)
        means.append(q.mean.numpy())
        covariances.append(q.covariance.numpy())
    return {"means": np.array(means), "covariances": np.array(covariances)}


def _differences(own: Arrays, peer: Arrays) -> dict[str, list[float]]:
    """Largest difference after each step, relative to the largest entry."""
    return {
        name: [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(own[name], peer[name], strict=True)]
        for name in ("means", "covariances")
    }


def _print(document: dict[str, Any]) -> None:
    measured = document["measured"]
    if "error" in measured:
        console.print(f"GPflow was not run: {measured['error']}", markup=False)
        return
    steps = zip(measured["means"], measured["covariances"], strict=True)
    rows = [[str(k + 1), f"{mean:.1e}", f"{cov:.1e}"] for k, (mean, cov) in enumerate(steps)]
    print_table("difference from GPflow", ["step", "mean", "covariance"], rows)
    if max(*measured["means"], *measured["covariances"]) > TOLERANCE:
        console.print(f"WARNING: the steps differ by more than {TOLERANCE:g}")
