"""Peer: MuyGPyS, a Gaussian process from the nearest neighbours of each row, learned by leave-one-out likelihood.

Inputs are standardised. One lengthscale for all columns is learned from two starts (the width of the data, the distance
to the neighbours), and one for each column from the better of the two. Held-out training rows choose among the three,
and whether the noise is added to the variance: the leave-one-out likelihood of MuyGPyS does without. All training rows
are neighbours in the end.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
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
NEAREST = {"nn_method": "exact", "algorithm": "ball_tree"}


@dataclass(frozen=True)
class Learned:
    """A model and how it is used; `loss` is the NLPD of held-out rows."""

    loss: float
    kind: str
    lengthscale: float
    model: MuyGPS
    with_noise: bool


def unlearned(kind: str, n_columns: int, lengthscale: float, options: dict[str, Any]) -> MuyGPS:
    start = [Parameter(lengthscale, LENGTHSCALES) for _ in range(n_columns)]
    if kind == "anisotropic":
        deformation: Any = Anisotropy(l2, length_scale=VectorParameter(*start))
    else:
        deformation = Isotropy(l2, length_scale=start[0])
    return MuyGPS(
        kernel=Matern(smoothness=Parameter(options["smoothness"]), deformation=deformation),
        noise=HomoscedasticNoise(0.01, (1e-6, 1.0)),
        scale=AnalyticScale(),
    )


def learned(
    kind: str, lengthscale: float, X: np.ndarray, y: np.ndarray, near: NN_Wrapper, options: dict[str, Any]
) -> MuyGPS:
    np.random.seed(0)  # noqa: NPY002  (the sample of MuyGPyS has no generator of its own)
    rows, neighbours = sample_batch(near, min(options["batch"], len(X)), len(X))
    model = unlearned(kind, X.shape[1], lengthscale, options)
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
    """Mean and variance without noise; in chunks, because the differences of all pairs of neighbours are held."""
    means, variances = [], []
    for start in range(0, len(X_test), CHUNK):
        part = X_test[start : start + CHUNK]
        neighbours, _ = near.get_nns(part)
        tensors = model.make_predict_tensors(np.arange(len(part)), neighbours, part, X, y)
        cross, among = model.kernel(tensors[0]), model.kernel(tensors[1])
        means.append(np.ravel(model.posterior_mean(among, cross, tensors[2])))
        variances.append(np.ravel(model.posterior_variance(among, cross)))
    return np.concatenate(means), np.maximum(np.concatenate(variances), 1e-12)


def noise_var(model: MuyGPS) -> float:
    return float(np.ravel(model.scale())[0] * model.noise())


def nlpd(y: np.ndarray, mean: np.ndarray, var: np.ndarray) -> float:
    return float(0.5 * np.mean(np.log(var) + (y - mean) ** 2 / var))


def best_of_held_out(X: np.ndarray, y: np.ndarray, options: dict[str, Any]) -> Learned:
    rows, held = split(len(X), options["held_fraction"])
    near = NN_Wrapper(X[rows], options["n_neighbours"], **NEAREST)

    def judged(kind: str, lengthscale: float) -> Learned:
        model = learned(kind, lengthscale, X[rows], y[rows], near, options)
        mean, var = predict(model, X[held], X[rows], y[rows], near)
        loss, with_noise = min((nlpd(y[held], mean, var + extra * noise_var(model)), extra) for extra in (False, True))
        found = lengthscale if kind == "anisotropic" else float(model.kernel.deformation.length_scale())
        return Learned(loss, kind, found, model, with_noise)

    _, distances = near.get_nns(X[held])
    distance = float(np.median(np.sqrt(distances[:, -1])))
    starts = np.clip([np.sqrt(X.shape[1]), distance], *LENGTHSCALES)
    single = min((judged("isotropic", start) for start in starts), key=lambda found: found.loss)
    if X.shape[1] == 1:
        return single
    return min(single, judged("anisotropic", single.lengthscale), key=lambda found: found.loss)


def fit_and_predict(problem: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    start, start_cpu = time.perf_counter(), time.process_time()
    centre, scale = problem["X"].mean(axis=0), problem["X"].std(axis=0)
    scale[scale == 0.0] = 1.0
    X, X_test = ((problem[name] - centre) / scale for name in ("X", "X_test"))
    y = problem["y"]
    best = best_of_held_out(X, y, options)
    near = NN_Wrapper(X, options["n_neighbours"], **NEAREST)
    fitted, fitted_cpu = time.perf_counter(), time.process_time()
    mean, var = predict(best.model, X_test, X, y, near)
    var += best.with_noise * noise_var(best.model)
    facts = {
        "seconds": fitted - start,
        "cpu_seconds": fitted_cpu - start_cpu,
        "predict_seconds": time.perf_counter() - fitted,
        "chosen": {"deformation": best.kind, "with_noise": best.with_noise},
        "version": metadata.version("MuyGPyS"),
    }
    return facts, {"mean": mean, "std": np.sqrt(var)}


if __name__ == "__main__":
    write_result(sys.argv[1], *fit_and_predict(*read_job(sys.argv[1])))
