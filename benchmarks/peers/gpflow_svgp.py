"""Peer: stochastic variational GP of GPflow, natural gradients for q(u), Adam for the rest, for a given time.

The recipe of GPflow's own documentation: k-means inducing inputs, whitened q(u), one natural-gradient step
and one Adam step on the same mini-batch in one compiled function. Standardising, k-means and compilation
count as training.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
import tf_keras
from benchmarks.jobs import Arrays, read_job, standardise, write_result
from sklearn.cluster import MiniBatchKMeans

KERNELS = {"se": gpflow.kernels.SquaredExponential, "matern32": gpflow.kernels.Matern32}
PREDICT_ROWS = 10_000

Step = Callable[[tf.Tensor, tf.Tensor], None]


def build_model(X: np.ndarray, options: dict[str, Any]) -> gpflow.models.SVGP:
    n_inducing = min(options["n_inducing"], len(X))
    centres = MiniBatchKMeans(n_inducing, random_state=0, n_init=1, batch_size=4096).fit(X).cluster_centers_
    lengthscales = np.full(X.shape[1], options["lengthscale"] * X.shape[1] ** 0.5)
    kernel = KERNELS[options["kernel"]](lengthscales=lengthscales)
    likelihood = gpflow.likelihoods.Gaussian(variance=options["noise_var"])
    model = gpflow.models.SVGP(kernel, likelihood, centres.astype(np.float64), num_data=len(X), whiten=True)
    gpflow.set_trainable(model.q_mu, False)
    gpflow.set_trainable(model.q_sqrt, False)
    return model


def mini_batches(X: np.ndarray, y: np.ndarray, size: int) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(len(X))
        for start in range(0, max(1, len(X) - size + 1), size):
            rows = order[start : start + size]
            yield tf.constant(X[rows]), tf.constant(y[rows, None])


def compiled_step(model: gpflow.models.SVGP, options: dict[str, Any]) -> Step:
    natural = gpflow.optimizers.NaturalGradient(gamma=options["natural_step"])
    adam = tf_keras.optimizers.Adam(options["adam_step"])

    @tf.function
    def step(X: tf.Tensor, y: tf.Tensor) -> None:
        loss = model.training_loss_closure((X, y), compile=False)
        natural.minimize(loss, [(model.q_mu, model.q_sqrt)])
        adam.minimize(loss, model.trainable_variables)

    return step


def train(X: np.ndarray, y: np.ndarray, options: dict[str, Any]) -> tuple[gpflow.models.SVGP, int]:
    """Steps until the clock says stop; the whole of this function is the training time."""
    deadline = time.perf_counter() + options["seconds"]
    model = build_model(X, options)
    step = compiled_step(model, options)
    steps = 0
    for X_batch, y_batch in mini_batches(X, y, options["batch"]):
        step(X_batch, y_batch)
        steps += 1
        if time.perf_counter() >= deadline:
            break
    return model, steps


def predict(model: gpflow.models.SVGP, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    parts = [model.predict_y(X[start : start + PREDICT_ROWS]) for start in range(0, len(X), PREDICT_ROWS)]
    mean = np.concatenate([part[0].numpy()[:, 0] for part in parts])
    return mean, np.sqrt(np.concatenate([part[1].numpy()[:, 0] for part in parts]))


def fit_and_predict(problem: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    start, start_cpu = time.perf_counter(), time.process_time()
    X, X_test = standardise(problem["X"], problem["X_test"])
    model, steps = train(X, problem["y"], options)
    fitted, fitted_cpu = time.perf_counter(), time.process_time()
    mean, std = predict(model, X_test)
    facts = {
        "seconds": fitted - start,
        "cpu_seconds": fitted_cpu - start_cpu,
        "predict_seconds": time.perf_counter() - fitted,
        "steps": steps,
        "version": gpflow.__version__,
    }
    return facts, {"mean": mean, "std": std}


if __name__ == "__main__":
    write_result(sys.argv[1], *fit_and_predict(*read_job(sys.argv[1])))
