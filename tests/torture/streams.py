"""Long streams: rows that were added and forgotten leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sparsegp import SparseGPRegressor, kernels
from torture.campaign import Campaign, Case

STEPS = 1000
MOST_DRIFT = 1e-9
APPROXIMATIONS = ("vfe", "fitc", "pep", "sor", "dtc")


def prepare(folder: Path) -> Case:
    test = np.linspace(-3.0, 3.0, 9)[:, None]
    models = {name: _model(name) for name in APPROXIMATIONS}
    starts = {name: model.predict(test, return_std=True) for name, model in models.items()}

    def case(seed: int) -> str:
        """A thousand steps of the same model in every case, so that drift would add up over the whole campaign."""
        rng, name = np.random.default_rng(seed), APPROXIMATIONS[seed % len(APPROXIMATIONS)]
        model, held = models[name], []
        for _ in range(STEPS // 2):
            x = rng.uniform(-3.0, 3.0, (1, 1))
            held.append((x, np.sin(2.0 * x[0]) + 0.1 * rng.normal(size=1)))
            model.partial_fit(*held[-1])
            if rng.random() < 0.6:
                model.forget(*held.pop(int(rng.integers(len(held)))))
        while held:
            model.forget(*held.pop(int(rng.integers(len(held)))))
        drift = max(
            np.abs(got - start).max() / np.abs(start).max()
            for got, start in zip(model.predict(test, return_std=True), starts[name], strict=True)
        )
        assert drift <= MOST_DRIFT, f"{name} drifted by {drift:.2g}"
        assert model.n_samples_seen_ == 200
        return "back at the start"

    return case


def _model(name: str) -> SparseGPRegressor:
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (200, 1))
    options = {"inducing": np.linspace(-3.0, 3.0, 8)[:, None], "noise_var": 0.02, "optimizer": None}
    model = SparseGPRegressor(kernels.Matern32(1.3, 0.8), name, normalize=False, calibration=None, **options)
    return model.fit(X, np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=200))


CAMPAIGN = Campaign("streams", prepare, share=0.1, goal=1000, steps=STEPS)
