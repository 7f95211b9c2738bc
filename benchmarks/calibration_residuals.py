"""Forecasts of rows that a model has not seen, for the calibration experiment: one fit for each set and seed.

The training rows of a set are cut into T (fitted), H (held out, then absorbed) and V (scored, never fitted). The test
rows are not touched. Files: mean and std of T left out, of H and V by the model of T, of V by the model of T and H,
and of T and H left out of that model.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from benchmarks.real_data import load_split
from numpy.typing import NDArray
from torch import Tensor

from sparsegp import SparseGPRegressor
from sparsegp.core.partition import kernel_metric
from sparsegp.core.prior import SparsePrior

Array = NDArray[np.float64]

KERNELS = {
    "concrete": "matern32",
    "wine_red": "matern32",
    "sarcos_test4449": "matern32",
    "road3d_excerpt": "matern32",
    "kin8nm": "matern32",
    "pol": "matern32",
    "bike_noleak": "matern32",
    "kin40k": "matern32",
    "protein": "matern12",
    "coads_slp": "matern32",
    "keggundirected": "matern32",
    "flights_nyc2013": "matern12",
}
MOST_ROWS = 40_000
MOST_HELD = 20_000
SCORED_SHARE = 0.1
HELD_SHARE = 0.15
ROWS_PER_BLOCK = 800
MOST_INDUCING = 500
SECONDS = 40.0
LEARNING_ROWS = 15_000


@dataclass(frozen=True)
class Cut:
    """Indices of the training rows that are fitted, held out and scored."""

    fitted: NDArray[np.int64]
    held: NDArray[np.int64]
    scored: NDArray[np.int64]

    @classmethod
    def of(cls, n: int, seed: int) -> Cut:
        order = np.random.default_rng(100 + seed).permutation(n)
        n_scored = round(SCORED_SHARE * n)
        n_held = min(round(HELD_SHARE * (n - n_scored)), MOST_HELD)
        return cls(order[n_scored + n_held :], order[n_scored : n_scored + n_held], order[:n_scored])


def left_out(prior: SparsePrior, X: Tensor, y: Tensor, labels: Tensor) -> tuple[Array, Array]:
    """Mean and std of each row by all others, from C^-1 of PIC's covariance (calibration.md), block by block."""
    M = prior.n_inducing
    B, shift = torch.eye(M, dtype=torch.float64), torch.zeros(M, dtype=torch.float64)
    parts = []
    with torch.no_grad():
        for k in labels.unique():
            index = (labels == k).nonzero()[:, 0]
            W = prior.features(X[index])
            V = prior.residual_block(X[index], W)
            V.diagonal().add_(prior.noise_var)
            L = torch.linalg.cholesky(V)
            A = torch.linalg.solve_triangular(L, W, upper=False)
            t = torch.linalg.solve_triangular(L, y[index, None], upper=False)[:, 0]
            B += A.T @ A
            shift += A.T @ t
            parts.append((index, L, A, t))
        L_B = torch.linalg.cholesky(B)
        m = torch.cholesky_solve(shift[:, None], L_B)[:, 0]
        mean, std = torch.empty_like(y), torch.empty_like(y)
        for index, L, A, t in parts:
            L_inv = torch.linalg.solve_triangular(L, torch.eye(len(index), dtype=torch.float64), upper=False)
            spread = torch.linalg.solve_triangular(L_B, (L_inv.T @ A).T, upper=False)
            q = (L_inv**2).sum(0) - (spread**2).sum(0)
            mean[index] = y[index] - (L_inv.T @ (t - A @ m)) / q
            std[index] = q.rsqrt()
    return mean.numpy(), std.numpy()


def fitted_model(X: Array, y: Array, kernel: str) -> SparseGPRegressor:
    """Learned on some of the rows within a budget, then one exact pass over all: never a model of a part."""
    n = len(X)
    settings = {
        "approximation": "pic",
        "n_inducing": min(MOST_INDUCING, max(10, n // 8)),
        "random_state": 0,
    }
    few = min(n, LEARNING_ROWS)
    learned = SparseGPRegressor(
        kernel=kernel, n_blocks=max(1, round(few / ROWS_PER_BLOCK)), time_budget=SECONDS, **settings
    ).fit(X[:few], y[:few])
    return SparseGPRegressor(
        kernel=learned.kernel_,
        noise_var=learned.noise_var_,
        inducing=learned.inducing_,
        n_blocks=max(1, round(n / ROWS_PER_BLOCK)),
        optimizer=None,
        **settings,
    ).fit(X, y)


def left_out_of(gp: SparseGPRegressor, X: Array, y: Array) -> tuple[Array, Array]:
    """The same in the user's units."""
    model, scaling = gp.model_, gp.scaling_
    inputs = scaling.tensor(X)
    prior = SparsePrior.build(model.kernel, model.inducing, model.noise_var, model.approx)
    mean, std = left_out(prior, inputs, torch.from_numpy(scaling.targets(y)), model.blocking.labels(inputs, None))
    return mean * scaling.y_scale + scaling.y_mean, std * scaling.y_scale


def residuals(X: Array, y: Array, kernel: str, seed: int) -> dict[str, Array]:
    cut = Cut.of(len(y), seed)
    T, H, V = cut.fitted, cut.held, cut.scored
    started = time.perf_counter()
    gp = fitted_model(X[T], y[T], kernel)
    seconds = [time.perf_counter() - started]
    found: dict[str, Array] = {}
    found["mean_T"], found["std_T"] = left_out_of(gp, X[T], y[T])
    seconds.append(time.perf_counter() - started)
    found["mean_H"], found["std_H"] = gp.predict(X[H], return_std=True)
    found["mean_V"], found["std_V"] = gp.predict(X[V], return_std=True)
    seconds.append(time.perf_counter() - started)
    metric = kernel_metric(gp.model_.kernel, X.shape[1]).numpy()
    gp.partial_fit(X[H], y[H])
    found["mean_V_all"], found["std_V_all"] = gp.predict(X[V], return_std=True)
    TH = np.concatenate([T, H])
    found["mean_TH"], found["std_TH"] = left_out_of(gp, X[TH], y[TH])
    seconds.append(time.perf_counter() - started)
    X = gp.scaling_.inputs(X)
    found |= {f"X_{name}": X[index] for name, index in (("T", T), ("H", H), ("V", V))}
    found |= {f"y_{name}": y[index] for name, index in (("T", T), ("H", H), ("V", V))}
    return found | {"metric": metric, "seconds": np.array(seconds)}


def stored_residuals(folder: Path, name: str, seed: int) -> dict[str, Array]:
    """From the file of an earlier fit, or fitted now and written."""
    path = folder / f"{name}_{seed}.npz"
    if not path.exists():
        problem = load_split(name)
        np.savez(path, **residuals(problem["X"][:MOST_ROWS], problem["y"][:MOST_ROWS], KERNELS[name], seed))
    with np.load(path) as found:
        return dict(found)
