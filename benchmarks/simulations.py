"""Simulated data of paper 003: samples of a Gaussian process (section 5.1) and a stirred tank (section 5.3).

Both come from a seed alone. What the paper leaves open is chosen here and named: inputs uniform on the unit cube, the
tank's start and the deviation of its measurement noise.
"""

from __future__ import annotations

import numpy as np
from scipy.integrate import solve_ivp

Arrays = dict[str, np.ndarray]

GP_LENGTHSCALES = {1: 0.1, 2: 0.2, 5: 0.5}
GP_NOISE_STD = 0.1
N_FREQUENCIES = 4096
_CHUNK_ROWS = 4096

TANK_STEP_SECONDS = 0.2
TANK_START = (50.0, 21.0)  # level, concentration
TANK_NOISE_STD = 0.1
FEED, DILUTED_FEED, DILUTED_FLOW = 24.9, 0.1, 0.1
_SETTLING_SECONDS = 1000.0


def gp_samples(n_rows: int, n_features: int, seed: int, n_test: int = 10_000) -> Arrays:
    """y = f(x) + noise, x uniform on the unit cube, f from a squared-exponential GP of variance 1.

    f is drawn by random Fourier features: f(x) = sqrt(2/F) sum_j a_j cos(w_j x + b_j), a_j ~ N(0, 1), w_j from the
    kernel's spectrum. Its covariance differs from the kernel by O(1/sqrt(F)), F = 4096; an exact draw needs N^3.
    """
    rng = np.random.default_rng([seed, n_features])
    frequencies = rng.standard_normal((n_features, N_FREQUENCIES)) / GP_LENGTHSCALES[n_features]
    phases = rng.uniform(0.0, 2.0 * np.pi, N_FREQUENCIES)
    amplitudes = rng.standard_normal(N_FREQUENCIES) * np.sqrt(2.0 / N_FREQUENCIES)
    X = rng.uniform(0.0, 1.0, (n_rows + n_test, n_features))
    chunks = [X[start : start + _CHUNK_ROWS] for start in range(0, len(X), _CHUNK_ROWS)]
    f = np.concatenate([np.cos(chunk @ frequencies + phases) @ amplitudes for chunk in chunks])
    y = f + GP_NOISE_STD * rng.standard_normal(len(X))
    return {"X": X[:n_rows], "y": y[:n_rows], "X_test": X[n_rows:], "y_test": y[n_rows:], "f_test": f[n_rows:]}


def toy(n_rows: int, seed: int = 0, n_test: int = 1000) -> Arrays:
    """The one-dimensional example of figures 1, 3, 4 and 5: a smooth function with noise on [0, 1]."""
    rng = np.random.default_rng([seed, n_rows])
    X = rng.uniform(0.0, 1.0, (n_rows + n_test, 1))
    f = np.sin(12.0 * X[:, 0]) + 0.5 * np.cos(25.0 * X[:, 0])
    y = f + 0.2 * rng.standard_normal(len(X))
    return {"X": X[:n_rows], "y": y[:n_rows], "X_test": X[n_rows:], "y_test": y[n_rows:], "f_test": f[n_rows:]}


def stirred_tank(n_samples: int, seed: int = 0) -> Arrays:
    """Samples every 0.2 s of flow w and concentration f of the tank of 003 eq. (37), and the measured y = f + noise.

    The flow is a series of steps of random height in [0, 4] after random times in [5, 20] s; between two steps the
    equations are smooth and integrated as one piece. The first 1000 s, in which the level settles, are left out.
    """
    rng = np.random.default_rng([seed, 37])
    flow, concentration = np.empty(n_samples), np.empty(n_samples)
    state, time, filled = np.array(TANK_START), -_SETTLING_SECONDS, 0
    while filled < n_samples:
        height, duration = rng.uniform(0.0, 4.0), rng.uniform(5.0, 20.0)
        end = time + duration
        last = min(n_samples, int(np.ceil(end / TANK_STEP_SECONDS))) if end > 0.0 else 0
        sampled = np.arange(filled, last) * TANK_STEP_SECONDS
        solution = solve_ivp(
            _tank, (time, end), state, args=(height,), t_eval=np.append(sampled, end), rtol=1e-6, atol=1e-8
        )
        flow[filled:last] = height
        concentration[filled:last] = solution.y[1, :-1]
        state, time, filled = solution.y[:, -1], end, max(filled, last)
    y = concentration + TANK_NOISE_STD * rng.standard_normal(n_samples)
    return {"w": flow, "f": concentration, "y": y}


def _tank(_: float, state: np.ndarray, flow: float) -> tuple[float, float]:
    """Level and concentration (003 eq. 37), k1 = k2 = 1."""
    level, concentration = max(state[0], 1e-6), state[1]
    change = flow + DILUTED_FLOW - 0.2 * level**0.5
    mixing = (FEED - concentration) * flow / level + (DILUTED_FEED - concentration) * DILUTED_FLOW / level
    return change, mixing - concentration / (1.0 + concentration) ** 2


def plant_regression(series: Arrays) -> Arrays:
    """Rows x_t = [y_{t-1}, y_{t-2}, w_t, w_{t-1}, w_{t-2}] with target y_t; f_t is the response without noise."""
    y, w = series["y"], series["w"]
    X = np.column_stack([y[1:-1], y[:-2], w[2:], w[1:-1], w[:-2]])
    return {"X": X, "y": y[2:], "f": series["f"][2:]}
