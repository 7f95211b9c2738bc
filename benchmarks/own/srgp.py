"""Worker: SRGP from given starting values, with scores, bound and parameters after every epoch.

The clock stops while an epoch is scored; the exact bound at the end of each epoch is part of learning.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.measure import PeakMemory
from benchmarks.scores import gaussian_scores

from papers.carried_srgp import optimizer as srgp
from sparsegp import kernels
from sparsegp.core.approximations import get
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.prior import SparsePrior
from sparsegp.infer import batch
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.objective import CollapsedObjective
from sparsegp.learn.trace import LearningStep

NOISE_LIMITS = (1e-6, 100.0)


class Trace:
    """The scores of every epoch, and the seconds of learning alone."""

    def __init__(self, objective: CollapsedObjective, hyper: Hyperparameters, problem: Arrays) -> None:
        self.objective, self.hyper, self.problem = objective, hyper, problem
        self.epochs: list[dict[str, Any]] = []
        self.started, self.paused = time.perf_counter(), 0.0

    def __call__(self, _: LearningStep) -> bool:
        now = time.perf_counter()
        scores, _ = self.predict()
        self.epochs.append(
            {
                "epoch": len(self.epochs) + 1,
                "seconds": now - self.started - self.paused,
                **{key: scores[key] for key in ("bound", "rmse", "nlpd", "coverage_95")},
                **parameters(self.hyper),
            }
        )
        self.paused += time.perf_counter() - now
        return False

    def predict(self) -> tuple[dict[str, float], Arrays]:
        """Scores and predictions of the current hyper-parameters, the posterior from all rows."""
        hyper = self.hyper
        prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, self.objective.approx)
        _, posterior, info = batch.infer(prior, self.objective.rows)
        mean, var = posterior.marginals(torch.from_numpy(self.problem["X_test"]))
        predictions = {"mean": mean.numpy(), "std": (var + hyper.noise_var).sqrt().numpy()}
        scores = gaussian_scores(self.problem["y_test"], predictions)
        return {"bound": info.log_evidence, **scores}, predictions


def parameters(hyper: Hyperparameters) -> dict[str, Any]:
    kernel = hyper.kernel
    assert isinstance(kernel, kernels.SquaredExponential)
    return {
        "variance": float(kernel.variance.detach()),
        "lengthscales": kernel.lengthscales.tolist(),
        "noise_var": float(hyper.noise_var.detach()),
    }


def learn(problem: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    X = torch.from_numpy(problem["X"])
    rows = MemoryRows(Block(X, torch.from_numpy(problem["y"])))
    memory = PeakMemory()
    kernel = kernels.SquaredExponential(1.0, np.ones(X.shape[1]))
    hyper = Hyperparameters(kernel, options["noise_var"], torch.from_numpy(problem["Z"]))
    objective = CollapsedObjective(rows, get(options["row"], options.get("power", 0.5)))
    trace = Trace(objective, hyper, problem)
    result = srgp.maximize(
        objective,
        hyper,
        Limits(NOISE_LIMITS, X.amin(0), X.amax(0)),
        max_iterations=options["epochs"],
        on_step=trace,
        settings=srgp.Settings(batch_rows=options["batch"], seed=options["seed"], **options.get("adam", {})),
    )
    seconds, peak_mb = time.perf_counter() - trace.started - trace.paused, memory.above_start_mb()
    _, predictions = trace.predict()
    facts = {"seconds": seconds, "peak_mb": peak_mb, "bound": result.objective, "reason": result.reason}
    return {**facts, **parameters(hyper), "trace": trace.epochs}, predictions


if __name__ == "__main__":
    write_result(sys.argv[1], *learn(*read_job(sys.argv[1])))
