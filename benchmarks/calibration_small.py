"""Shape on small data: exact GPs of 50, 100 and 200 rows, left out in closed form, scored on 1,000 other rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from benchmarks.calibration_residuals import Array
from benchmarks.calibration_shape import GAUSSIAN, Prior, Shape, fitted_shape
from benchmarks.real_data import load_split

from sparsegp import SparseGPRegressor

SETS = (
    "protein",
    "bike_noleak",
    "flights_nyc2013",
    "concrete",
    "wine_red",
    "sarcos_test4449",
    "kin8nm",
    "coads_slp",
    "road3d_excerpt",
    "kin40k",
    "pol",
    "keggundirected",
)
SIZES = (50, 100, 200)
SCORED = 1000
SEEDS = range(8)
FEW = Prior(weight=1.0, centre=20.0, width=5.0, floor=0.1, tail=0.2)
WIDENINGS = (0.0, 1.0, 2.0)


def left_out_exact(gp: SparseGPRegressor, X: Array, y: Array) -> tuple[Array, Array]:
    model, scaling = gp.model_, gp.scaling_
    with torch.no_grad():
        C = model.kernel(scaling.tensor(X)).double()
        C.diagonal().add_(model.noise_var)
        precision = torch.linalg.inv(C)
        target = torch.from_numpy(scaling.targets(y))
        q = precision.diagonal()
        mean, std = target - (precision @ target) / q, q.rsqrt()
    return mean.numpy() * scaling.y_scale + scaling.y_mean, std.numpy() * scaling.y_scale


def small_residuals(name: str, n: int, seed: int) -> dict[str, Array]:
    problem = load_split(name)
    order = np.random.default_rng(1000 + seed).permutation(len(problem["y"]))
    fitted, scored = order[:n], order[n : n + SCORED]
    X, y = problem["X"], problem["y"]
    gp = SparseGPRegressor(kernel="matern32", approximation="exact", random_state=0, time_budget=5.0).fit(
        X[fitted], y[fitted]
    )
    mean, std = left_out_exact(gp, X[fitted], y[fitted])
    mean_V, std_V = gp.predict(X[scored], return_std=True)
    return {
        "y": y[fitted],
        "mean": mean,
        "std": std,
        "y_V": y[scored],
        "mean_V": mean_V,
        "std_V": std_V,
        "D": np.array(X.shape[1]),
    }


def two_parts(z: Array, n_features: int, widening: float) -> Shape:
    """A scale mixture of two parts, wider by what D + 2 learned hyper-parameters have taken from n rows."""
    shape = fitted_shape(z, 2, FEW, centred=True)
    factor = np.sqrt(1 + widening * (n_features + 2) / len(z))
    return Shape(shape.weights, shape.means * factor, shape.stds * factor)


def compared(found: Mapping[str, Array]) -> dict[str, list[float]]:
    """Of each rule: NLPD minus that of the Gaussian, coverage of 80 % and of 95 %."""
    z, z_new = ((found[f"y{at}"] - found[f"mean{at}"]) / found[f"std{at}"] for at in ("", "_V"))
    shapes = {"gauss": GAUSSIAN}
    shapes |= {f"two parts, widened {w:g}": two_parts(z, int(found["D"]), w) for w in WIDENINGS}
    gauss = GAUSSIAN.log_density(z_new).mean()
    return {
        name: [float(gauss - shape.log_density(z_new).mean()), _coverage(shape, z_new, 80), _coverage(shape, z_new, 95)]
        for name, shape in shapes.items()
    }


def _coverage(shape: Shape, z: Array, level: int) -> float:
    low, high = shape.quantile(0.5 - level / 200), shape.quantile(0.5 + level / 200)
    return float(((z > low) & (z < high)).mean())


def summary(by_set: Mapping[str, Sequence[Mapping[str, list[float]]]]) -> dict[str, Any]:
    """Over sets and seeds of one size: median, worst set and worst fit against the Gaussian, coverage."""
    out = {}
    for rule in next(iter(by_set.values()))[0]:
        values = {name: np.array([fit[rule] for fit in fits]) for name, fits in by_set.items()}
        every = np.concatenate(list(values.values()))
        out[rule] = {
            "median_difference": float(np.median(every[:, 0])),
            "worst_set": float(max(v[:, 0].mean() for v in values.values())),
            "worst_fit": float(every[:, 0].max()),
            "cov80": float(every[:, 1].mean()),
            "cov95": float(every[:, 2].mean()),
            "least_cov95_of_a_set": float(min(v[:, 2].mean() for v in values.values())),
        }
    return out


def small_study() -> dict[str, Any]:
    return {
        str(n): summary({name: [compared(small_residuals(name, n, seed)) for seed in SEEDS] for name in SETS})
        for n in SIZES
    }
