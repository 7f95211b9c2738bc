"""Residuals of small data: exact GPs of 50, 100 and 200 rows, left out in closed form, and of 1,000 other rows."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from benchmarks.calibration_residuals import Array
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
    return {"y": y[fitted], "mean": mean, "std": std, "y_V": y[scored], "mean_V": mean_V, "std_V": std_V}


def main() -> None:
    """`python -m benchmarks.calibration_small FOLDER FIRST LAST`: seeds from FIRST to before LAST."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    folder = Path(sys.argv[1])
    for seed in range(int(sys.argv[2]), int(sys.argv[3])):
        for name in SETS:
            for n in SIZES:
                path = folder / f"small_{name}_{n}_{seed}.npz"
                if path.exists():
                    continue
                started = time.perf_counter()
                np.savez(path, **small_residuals(name, n, seed))
                print(name, n, seed, round(time.perf_counter() - started, 1), flush=True)


if __name__ == "__main__":
    main()
