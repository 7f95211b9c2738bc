"""Peer: natural-gradient steps of GPflow's SVGP on given mini-batches, from the prior, everything else fixed."""

from __future__ import annotations

import sys

import gpflow
import numpy as np
from benchmarks.jobs import read_job, write_result


def main(folder: str) -> None:
    problem, options = read_job(folder)
    gpflow.config.set_default_jitter(options["jitter"])
    kernel = gpflow.kernels.SquaredExponential(
        variance=float(problem["variance"]), lengthscales=problem["lengthscales"]
    )
    likelihood = gpflow.likelihoods.Gaussian(variance=float(problem["noise_var"]))
    model = gpflow.models.SVGP(kernel, likelihood, problem["Z"], num_data=len(problem["y"]), whiten=True)
    optimizer = gpflow.optimizers.NaturalGradient(gamma=options["gamma"])
    means, covariances = [], []
    for rows in problem["batches"]:
        batch = problem["X"][rows], problem["y"][rows][:, None]
        optimizer.minimize(model.training_loss_closure(batch, compile=False), [(model.q_mu, model.q_sqrt)])
        root = model.q_sqrt.numpy()[0]
        means.append(model.q_mu.numpy()[:, 0])
        covariances.append(root @ root.T)
    facts = {"version": gpflow.__version__}
    write_result(folder, facts, {"means": np.array(means), "covariances": np.array(covariances)})


if __name__ == "__main__":
    main(sys.argv[1])
