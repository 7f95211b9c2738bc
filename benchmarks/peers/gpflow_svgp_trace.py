"""Peer: GPflow SVGP (natural gradients and Adam) from given starting values, scored after every epoch.

The clock stops while an epoch is scored. The bound is the sum of mini-batch estimates over the epoch.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.peers.gpflow_svgp import compiled_step, mini_batches, predict


def build_model(problem: Arrays, options: dict[str, Any]) -> gpflow.models.SVGP:
    X = problem["X"]
    kernel = gpflow.kernels.SquaredExponential(variance=1.0, lengthscales=np.ones(X.shape[1]))
    likelihood = gpflow.likelihoods.Gaussian(variance=options["noise_var"])
    model = gpflow.models.SVGP(kernel, likelihood, problem["Z"].copy(), num_data=len(X), whiten=True)
    gpflow.set_trainable(model.q_mu, False)
    gpflow.set_trainable(model.q_sqrt, False)
    return model


def scores(model: gpflow.models.SVGP, problem: Arrays) -> tuple[dict[str, float], Arrays]:
    mean, std = predict(model, problem["X_test"])
    error = problem["y_test"] - mean
    nlpd = 0.5 * np.mean(np.log(2.0 * np.pi * std**2) + (error / std) ** 2)
    inside = np.abs(error) <= 1.959963984540054 * std
    found = {"rmse": float(np.sqrt(np.mean(error**2))), "nlpd": float(nlpd), "coverage_95": float(inside.mean())}
    return found, {"mean": mean, "std": std}


def learn(problem: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    X, y = problem["X"], problem["y"]
    started, paused = time.perf_counter(), 0.0
    model = build_model(problem, options)
    step = compiled_step(model, options)
    batches = mini_batches(X, y, min(options["batch"], len(X)))
    per_epoch = max(1, len(X) // options["batch"])
    bound_of = tf.function(model.elbo)
    trace: list[dict[str, Any]] = []
    for epoch in range(1, options["epochs"] + 1):
        last = None
        for _ in range(per_epoch):
            last = next(batches)
            step(*last)
        now = time.perf_counter()
        trace.append(
            {
                "epoch": epoch,
                "seconds": now - started - paused,
                "bound": float(bound_of(last)),
                **scores(model, problem)[0],
                "variance": float(model.kernel.variance.numpy()),
                "lengthscales": model.kernel.lengthscales.numpy().tolist(),
                "noise_var": float(model.likelihood.variance.numpy()),
            }
        )
        paused += time.perf_counter() - now
    facts = {"seconds": time.perf_counter() - started - paused, "version": gpflow.__version__, "trace": trace}
    return facts, scores(model, problem)[1]


if __name__ == "__main__":
    write_result(sys.argv[1], *learn(*read_job(sys.argv[1])))
