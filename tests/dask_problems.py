"""Data and models of the tests on a Dask cluster."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from problems import agree
from sparsegp import SparseGPRegressor

D = 2
MODELS = {
    "vfe": {"kernel": "matern52", "approximation": "vfe", "n_inducing": 12},
    "fitc": {"kernel": "se", "approximation": "fitc", "n_inducing": 12, "learn_inducing": False},
    "pitc": {"kernel": "se", "approximation": "pitc", "n_inducing": 12, "n_blocks": 6},
    "pic": {"kernel": "matern32", "approximation": "pic", "n_inducing": 12, "n_blocks": 6},
}
QUICK = {"kernel": "se", "approximation": "vfe", "n_inducing": 10, "optimizer": None, "random_state": 0}


def make_data(n: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, D)) * [3.0, 0.5] + [10.0, -1.0]
    y = 5.0 + np.sin(X[:, 0]) + np.cos(3.0 * X[:, 1]) + 0.2 * rng.normal(size=n)
    return X, y


def same_model(got: SparseGPRegressor, expected: SparseGPRegressor, rtol: float) -> None:
    X_new = make_data(40, seed=9)[0]
    agree(got.predict(X_new, return_std=True), expected.predict(X_new, return_std=True), rtol)
    agree((got.log_evidence_, got.noise_var_), (expected.log_evidence_, expected.noise_var_), rtol)
    assert got.n_samples_seen_ == expected.n_samples_seen_
    assert got.n_features_in_ == expected.n_features_in_


def fitted(model: SparseGPRegressor, *data: Any, **given: Any) -> SparseGPRegressor:
    return model.fit(*data, **given)


def frame_of(X: np.ndarray, y: np.ndarray) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y})


def kill_a_worker(client: Any, index: int = 0) -> None:
    pids = client.run(os.getpid)
    os.kill(pids[sorted(pids)[index % len(pids)]], signal.SIGKILL)
