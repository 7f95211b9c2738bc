"""Simulated data of paper 001: the sinc toy (eq. 25) and its two-dimensional version (section VI-A)."""

from __future__ import annotations

import numpy as np
from benchmarks.jobs import Arrays


def noise_std(x: np.ndarray) -> np.ndarray:
    """0.05 + 0.2 (1 + sin 2x) / (1 + exp(-0.2 x))."""
    std: np.ndarray = 0.05 + 0.2 * (1.0 + np.sin(2.0 * x)) / (1.0 + np.exp(-0.2 * x))
    return std


def _sinc(x: np.ndarray) -> np.ndarray:
    """sin(x)/x."""
    return np.asarray(np.sinc(x / np.pi))


def sinc(n_rows: int, seed: int, n_test: int = 400) -> Arrays:
    """y = sinc(x) + noise on [-10, 10]; test inputs are a grid."""
    rng = np.random.default_rng(seed)
    X, X_test = rng.uniform(-10.0, 10.0, (n_rows, 1)), np.linspace(-10.0, 10.0, n_test)[:, None]
    return _noisy(X, X_test, X[:, 0], X_test[:, 0], rng)


def sinc2d(n_rows: int, grid: int, seed: int) -> Arrays:
    """f = sinc(0.1 x1 x2) and the toy's noise at 0.1 x1 x2 on [-10, 10]^2; test inputs are a grid."""
    rng = np.random.default_rng(seed)
    side = np.linspace(-10.0, 10.0, grid)
    X, X_test = rng.uniform(-10.0, 10.0, (n_rows, 2)), np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    return _noisy(X, X_test, 0.1 * X.prod(axis=1), 0.1 * X_test.prod(axis=1), rng)


def _noisy(X: np.ndarray, X_test: np.ndarray, t: np.ndarray, t_test: np.ndarray, rng: np.random.Generator) -> Arrays:
    f_test, std_test = _sinc(t_test), noise_std(t_test)
    return {
        "X": X,
        "y": _sinc(t) + noise_std(t) * rng.standard_normal(len(t)),
        "X_test": X_test,
        "y_test": f_test + std_test * rng.standard_normal(len(t_test)),
        "f_test": f_test,
        "true_noise_std": std_test,
    }
