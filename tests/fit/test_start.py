"""Starting values from the rows as they are."""

import numpy as np
import pytest
import torch

from sparsegp.fit.start import median_lengthscales, neighbour_noise_var


def test_starting_lengthscales_follow_each_column():
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.standard_normal((3000, 3)) * [1.0, 10.0, 0.0])
    found = median_lengthscales(X, rng)
    assert float(found[1] / found[0]) == pytest.approx(10.0, rel=0.1)
    assert torch.isfinite(found).all()
    assert (found > 0).all()


@pytest.mark.parametrize(("noise", "low", "high"), [(0.0, 0.005, 0.05), (3.0, 0.4, 0.51)])
def test_starting_noise_tells_smooth_from_noisy(noise, low, high):
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.uniform(-3, 3, (1500, 1)))
    y = torch.sin(X[:, 0]) + noise * torch.from_numpy(rng.standard_normal(1500))
    assert low <= neighbour_noise_var(X, y, rng) / float(y.var()) <= high


def test_starting_values_of_one_row():
    X, y = torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    rng = np.random.default_rng(0)
    assert neighbour_noise_var(X, y, rng) > 0
    assert (median_lengthscales(X, rng) > 0).all()
