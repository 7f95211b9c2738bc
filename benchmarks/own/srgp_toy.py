"""Worker: the toy of 003 figures 1, 3, 4: bound and its derivative by batch, row after row, and by four nodes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from benchmarks.jobs import Arrays, read_job, write_result

from papers.carried_srgp.forward_gradient import ForwardGradient
from sparsegp import kernels
from sparsegp.core.approximations import get
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.posterior import InducingPosterior, SparsePosterior, log_evidence
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective

LENGTHSCALE, NOISE_VAR = 0.1, 0.04
LENGTHSCALE_ENTRY = 2  # of (log noise, log variance, log lengthscale)
SHOWN_STEPS = (1, 5, 10, 25, 50, 100)


def toy(problem: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    rows = MemoryRows(Block(torch.from_numpy(problem["X"]), torch.from_numpy(problem["y"])))
    row = get("pep", options["power"])
    hyper = Hyperparameters(kernels.SquaredExponential(1.0, LENGTHSCALE), NOISE_VAR, torch.from_numpy(problem["Z"]))
    objective = CollapsedObjective(rows, row)
    bound = objective.value_and_gradient(hyper)
    slope = float(hyper.kernel.get_parameter("log_lengthscales").grad.sum())
    online, bands = _online(hyper, objective, torch.from_numpy(problem["X_test"]))
    facts = {
        "batch": {"bound": bound, "slope": slope},
        "online": online,
        "distributed": _distributed(objective.prior(hyper), rows, options["nodes"]),
    }
    return facts, bands


def _online(
    hyper: Hyperparameters, objective: CollapsedObjective, X_test: torch.Tensor
) -> tuple[list[dict[str, Any]], Arrays]:
    """Figure 3: cumulative bound and derivative after each single row."""
    prior, rows = objective.prior(hyper), objective.rows
    forward = ForwardGradient(hyper, objective.approx)
    state, slope = forward.init(prior), 0.0
    steps, bands = [], {}
    for k, single in enumerate(rows.chunks(1), 1):
        state, increment = forward.step(state, prior, single)
        slope += float(increment.shared[LENGTHSCALE_ENTRY])
        if k in SHOWN_STEPS or k == len(rows):
            statistics = BlockStatistics.from_blocks(prior, [rows.all.take(slice(0, k))])
            q = InducingPosterior.from_statistics(statistics)
            steps.append({"rows": k, "bound": log_evidence(statistics, q), "slope": slope})
            mean, var = SparsePosterior(prior, q).marginals(X_test)
            bands[f"mean_{k}"], bands[f"std_{k}"] = mean.numpy(), var.sqrt().numpy()
    return steps, bands


def _distributed(prior: SparsePrior, rows: MemoryRows, n_nodes: int) -> dict[str, Any]:
    """Figure 4: sorted rows shared out to nodes, their statistics added up at the end."""
    order = rows.all.X[:, 0].argsort()
    parts = [BlockStatistics.from_block(prior, rows.all.take(share)) for share in order.tensor_split(n_nodes)]
    total = sum(parts[1:], start=parts[0])
    return {"nodes": n_nodes, "bound": log_evidence(total, InducingPosterior.from_statistics(total))}


if __name__ == "__main__":
    np.seterr(all="raise")
    write_result(sys.argv[1], *toy(*read_job(sys.argv[1])))
