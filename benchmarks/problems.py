"""The synthetic regression problem of the speed benchmarks, and its bound by a direct numpy computation."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cholesky, solve_triangular

Arrays = dict[str, np.ndarray]


def synthetic(n_rows: int, n_inducing: int, n_features: int, seed: int = 0) -> Arrays:
    """A smooth function of `n_features` Gaussian inputs plus noise, inducing inputs drawn from the data."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_features))
    direction = rng.standard_normal(n_features)
    y = np.sin(X @ direction / 2.0) + 0.3 * X[:, 0] * X[:, 1] + 0.3 * rng.standard_normal(n_rows)
    return {
        "X": X,
        "y": y,
        "Z": X[rng.choice(n_rows, n_inducing, replace=False)].copy(),
        "lengthscales": np.linspace(1.5, 3.0, n_features),
        "variance": np.array(1.3),
        "noise_var": np.array(0.1),
    }


def squared_exponential(problem: Arrays, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    A, B = A / problem["lengthscales"], B / problem["lengthscales"]
    squared = (A**2).sum(1)[:, None] + (B**2).sum(1)[None, :] - 2.0 * A @ B.T
    return problem["variance"] * np.exp(-0.5 * np.maximum(squared, 0.0))


def reference_vfe(problem: Arrays, chunk: int = 4096) -> float:
    """log N(y; 0, Q + noise I) - tr(K - Q) / (2 noise), without jitter: what every library must give."""
    X, y, Z, noise_var = problem["X"], problem["y"], problem["Z"], float(problem["noise_var"])
    Luu = cholesky(squared_exponential(problem, Z, Z), lower=True)
    B, b = np.eye(len(Z)), np.zeros(len(Z))
    for start in range(0, len(X), chunk):
        rows = slice(start, start + chunk)
        W = solve_triangular(Luu, squared_exponential(problem, Z, X[rows]), lower=True)
        B += W @ W.T / noise_var
        b += W @ y[rows] / noise_var
    LB = cholesky(B, lower=True)
    c = solve_triangular(LB, b, lower=True)
    trace_residual = len(X) * float(problem["variance"]) - noise_var * (np.trace(B) - len(Z))
    evidence = -0.5 * (len(X) * np.log(2.0 * np.pi * noise_var) + y @ y / noise_var - c @ c)
    return float(evidence - np.log(np.diag(LB)).sum() - 0.5 * trace_residual / noise_var)
