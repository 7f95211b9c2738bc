"""Peer: MuyGPyS, a Gaussian process from the nearest neighbours of each row, learned by leave-one-out likelihood.

Inputs are standardised. One lengthscale for all columns or one for each is chosen by the NLPD of held-out training
rows; all training rows are neighbours in the end. The variance is that of MuyGPyS, whose leave-one-out likelihood takes
it for the variance of y.
"""

from __future__ import annotations

import sys
import time
from importlib import metadata
from typing import Any

import numpy as np
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.peers.lightgbm_quantiles import split
from MuyGPyS.gp import MuyGPS
from MuyGPyS.gp.deformation import Anisotropy, Isotropy, l2
from MuyGPyS.gp.hyperparameter import AnalyticScale, Parameter, VectorParameter
from MuyGPyS.gp.kernels import Matern
from MuyGPyS.gp.noise import HomoscedasticNoise
from MuyGPyS.neighbors import NN_Wrapper
from MuyGPyS.optimize import L_BFGS_B_optimize
from MuyGPyS.optimize.batch import sample_batch
from MuyGPyS.optimize.loss import lool_fn

CHUNK = 200
LENGTHSCALES = (0.01, 100.0)


def unlearned(kind: str, n_columns: int, options: dict[str, Any]) -> MuyGPS:
    start = Parameter(float(np.sqrt(n_columns)), LENGTHSCALES)
    if kind == "anisotropic":
        columns = VectorParameter(*(Parameter(float(np.sqrt(n_columns)), LENGTHSCALES) for _ in range(n_columns)))
        deformation: Any = Anisotropy(l2, length_scale=columns)
    else:
        deformation = Isotropy(l2, length_scale=start)
    return MuyGPS(
        kernel=Matern(smoothness=Parameter(options["smoothness"]), deformation=deformation),
        noise=HomoscedasticNoise(0.01, (1e-6, 1.0)),
        scale=AnalyticScale(),
    )


def learned(kind: str, X: np.ndarray, y: np.ndarray, near: NN_Wrapper, options: dict[str, Any]) -> MuyGPS:
    np.random.seed(0)  # noqa: NPY002  (the sample of MuyGPyS has no generator of its own)
    rows, neighbours = sample_batch(near, min(options["batch"], len(X)), len(X))
    model = unlearned(kind, X.shape[1], options)
    crosswise, pairwise, targets, neighbour_targets = model.make_train_tensors(rows, neighbours, X, y)
    model = L_BFGS_B_optimize(
        model,
        targets,
        neighbour_targets,
        crosswise,
        pairwise,
        loss_fn=lool_fn,
        options={"maxiter": options["max_steps"]},
    )
    return model.optimize_scale(pairwise, neighbour_targets)


def predict(
    model: MuyGPS, X_test: np.ndarray, X: np.ndarray, y: np.ndarray, near: NN_Wrapper
) -> tuple[np.ndarray, np.ndarray]:
    """In chunks: the differences of all pairs of neighbours are held."""
    means, variances = [], []
    for start in range(0, len(X_test), CHUNK):
        part = X_test[start : start + CHUNK]
        neighbours, _ = near.get_nns(part)
        tensors = model.make_predict_tensors(np.arange(len(part)), neighbours, part, X, y)
        cross, among = model.kernel(tensors[0]), model.kernel(tensors[1])
        means.append(np.ravel(model.posterior_mean(among, cross, tensors[2])))
        variances.append(np.ravel(model.posterior_variance(among, cross)))
    return np.concatenate(means), np.sqrt(np.maximum(np.concatenate(variances), 1e-12))


def nlpd(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> float:
    return float(np.mean(np.log(std) + 0.5 * ((y - mean) / std) ** 2))


def fit_and_predict(problem: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    start, start_cpu = time.perf_counter(), time.process_time()
    centre, scale = problem["X"].mean(axis=0), problem["X"].std(axis=0)
    scale[scale == 0.0] = 1.0
    X, X_test = ((problem[name] - centre) / scale for name in ("X", "X_test"))
    y, nearest = problem["y"], {"nn_method": "exact", "algorithm": "ball_tree"}
    rows, held = split(len(X), options["held_fraction"])
    near = NN_Wrapper(X[rows], options["n_neighbours"], **nearest)
    tried = []
    for kind in options["deformations"]:
        model = learned(kind, X[rows], y[rows], near, options)
        tried.append((nlpd(y[held], *predict(model, X[held], X[rows], y[rows], near)), kind, model))
    _, kind, model = min(tried, key=lambda entry: entry[0])
    near = NN_Wrapper(X, options["n_neighbours"], **nearest)
    fitted, fitted_cpu = time.perf_counter(), time.process_time()
    mean, std = predict(model, X_test, X, y, near)
    facts = {
        "seconds": fitted - start,
        "cpu_seconds": fitted_cpu - start_cpu,
        "predict_seconds": time.perf_counter() - fitted,
        "chosen": {"deformation": kind},
        "version": metadata.version("MuyGPyS"),
    }
    return facts, {"mean": mean, "std": std}


if __name__ == "__main__":
    write_result(sys.argv[1], *fit_and_predict(*read_job(sys.argv[1])))
