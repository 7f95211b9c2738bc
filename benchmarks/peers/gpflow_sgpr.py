"""Peer: value and gradient of the VFE bound by GPflow SGPR, compiled by tf.function."""

from __future__ import annotations

import sys
from typing import Any

import gpflow
import tensorflow as tf
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.measure import PeakMemory, median_seconds


def build_model(problem: Arrays) -> gpflow.models.SGPR:
    kernel = gpflow.kernels.SquaredExponential(
        variance=float(problem["variance"]), lengthscales=problem["lengthscales"]
    )
    data = (problem["X"], problem["y"][:, None])
    return gpflow.models.SGPR(data, kernel, problem["Z"], noise_variance=float(problem["noise_var"]))


def main(folder: str) -> None:
    problem, options = read_job(folder)
    # GPflow adds an absolute jitter; a tiny one makes its value comparable with the bound itself.
    gpflow.config.set_default_jitter(options["jitter"])
    memory = PeakMemory()
    model = build_model(problem)

    @tf.function
    def value_and_gradient() -> tuple[Any, Any]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(model.trainable_variables)
            loss = model.training_loss()
        return loss, tape.gradient(loss, model.trainable_variables)

    timing = median_seconds(lambda: value_and_gradient()[0].numpy(), options["repeats"])
    loss, gradients = value_and_gradient()
    inducing = model.inducing_variable.Z.unconstrained_variable
    of_inducing = next(g for v, g in zip(model.trainable_variables, gradients, strict=True) if v is inducing)
    facts = {
        **timing.as_facts(),
        "peak_mb": memory.above_start_mb(),
        "value": -float(loss),
        "inducing_gradient_norm": float(tf.norm(of_inducing)),
        "version": gpflow.__version__,
    }
    write_result(folder, facts)


if __name__ == "__main__":
    main(sys.argv[1])
