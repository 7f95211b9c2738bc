"""Worker: the bound of SVSHGP after every iteration, on all rows, and the final one of VSHGP (001 figure 4)."""

from __future__ import annotations

import sys

import numpy as np
import torch
from benchmarks.jobs import read_job, write_result

from sparsegp import HeteroscedasticGPRegressor
from sparsegp.core import inducing
from sparsegp.core.approximations import get
from sparsegp.core.block import Block, MemoryRows
from sparsegp.kernels import SquaredExponential
from sparsegp.learn.hyperparameters import Limits
from sparsegp.learn.trace import LearningStep, Terms
from sparsegp.noise import svshgp
from sparsegp.noise.joint_hyperparameters import JointHyperparameters


def main(folder: str) -> None:
    problem, options = read_job(folder)
    X = (problem["X"] - problem["X"].mean(0)) / problem["X"].std(0)
    y = (problem["y"] - problem["y"].mean()) / problem["y"].std()
    block = Block(torch.from_numpy(X), torch.from_numpy(y))
    rng = np.random.default_rng(0)
    trace: list[float] = []

    def record(step: LearningStep) -> bool:
        trace.append(step.objective)
        return False

    # the authors' start on standardised data: lengthscales 0.5 and 0.2, log(1/4)
    of_f = inducing.kmeans_inducing(block.X, options["n_inducing"], rng)
    of_g = inducing.kmeans_inducing(block.X, options["n_noise_inducing"], rng)
    hyper = JointHyperparameters(
        SquaredExponential(1.0, [0.5]), of_f, SquaredExponential(1.0, [0.2]), of_g, float(np.log(0.25))
    )
    limits = Limits((1e-6, 100.0), block.X.amin(0), block.X.amax(0))
    batches = {"batch_size": options["batch_size"], "n_steps": options["n_steps"]}
    svshgp.learn(MemoryRows(block), get("vfe"), hyper, Terms(limits, rng, on_step=record), **batches)
    counts = {"n_inducing": options["n_inducing"], "n_noise_inducing": options["n_noise_inducing"]}
    model = HeteroscedasticGPRegressor(**counts, random_state=0).fit(X, y)
    write_result(folder, {"trace": [round(value, 3) for value in trace], "vshgp": float(model.log_evidence_)})


if __name__ == "__main__":
    main(sys.argv[1])
