"""Places on the earth: distances, no seam, no crowding, and covariances that are covariances."""

import math

import numpy as np
import pytest
import torch

import sparsegp
from sparsegp import InputError, SparseGPRegressor, kernels
from sparsegp.kernels.sphere import EARTH_RADIUS


def places(n, seed=0):
    """Evenly over the globe: longitude and latitude in degrees."""
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.uniform(-180, 180, n), np.degrees(np.arcsin(rng.uniform(-1, 1, n)))])


def great_circle(a, b):
    """Kilometres, by the haversine formula."""
    (lon_a, lat_a), (lon_b, lat_b) = np.radians(a), np.radians(b)
    h = np.sin((lat_b - lat_a) / 2) ** 2 + np.cos(lat_a) * np.cos(lat_b) * np.sin((lon_b - lon_a) / 2) ** 2
    return 2 * EARTH_RADIUS * np.arcsin(np.sqrt(h))


@pytest.mark.parametrize("a_and_b", [((13.4, 52.5), (2.35, 48.85)), ((179.9, -17.0), (-179.0, -18.0))])
def test_covariances_are_those_of_the_distance_over_ground(a_and_b):
    a, b = a_and_b
    K = kernels.GreatCircle(1.3, 700.0)(torch.tensor([a, b], dtype=torch.float64))
    distance = great_circle(a, b)
    s = math.sqrt(3) * 2 * EARTH_RADIUS * math.sin(distance / (2 * EARTH_RADIUS)) / 700.0
    assert float(K[0, 1].detach()) == pytest.approx(1.3 * (1 + s) * math.exp(-s))
    # within 1,000 km the line through the earth is the way over ground, but for 0.1%
    assert s * 700.0 / math.sqrt(3) == pytest.approx(distance, rel=1e-3)


def test_poles_and_the_date_line_are_places_like_others():
    north = torch.tensor([[0.0, 90.0], [123.0, 90.0], [0.0, 89.0], [90.0, 89.0]], dtype=torch.float64)
    K = kernels.GreatCircle(1.0, 500.0)(north).detach()
    assert float(K[0, 1]) == pytest.approx(1.0)
    assert float(K[0, 2]) == pytest.approx(float(K[1, 3]))
    turned = kernels.GreatCircle(1.0, 500.0)(north + torch.tensor([360.0, 0.0]))
    torch.testing.assert_close(turned.detach(), K)


@pytest.mark.parametrize("profile", ["matern12", "matern32", "matern52", "squared_exponential"])
def test_covariances_over_the_globe_are_positive_semi_definite(profile):
    X = torch.tensor(places(300))
    K = kernels.GreatCircle(1.0, 3000.0, profile)(X).detach().numpy()
    assert np.linalg.eigvalsh(K)[0] > -1e-9


def test_a_model_of_the_globe_goes_into_a_file_and_is_served_without_torch(tmp_path):
    X = places(400)
    y = 10 + 3 * np.cos(np.radians(X[:, 0])) * np.cos(np.radians(X[:, 1])) + 0.1 * np.sin(np.radians(3 * X[:, 1]))
    given = {"approximation": "vfe", "n_inducing": 40, "trend": None, "random_state": 0}
    model = SparseGPRegressor(kernels.GreatCircle(4.0, 3000.0), **given).fit(X, y)
    assert isinstance(model.kernel_, kernels.GreatCircle)
    assert model.kernel_.lengthscale.item() != pytest.approx(3000.0, rel=0.01)  # it has learned
    west, east = model.predict([[-179.999, 10.0]]), model.predict([[179.999, 10.0]])
    np.testing.assert_allclose(west, east, rtol=1e-4)
    model.save(tmp_path / "model.sgp")
    new = places(50, seed=1)
    mean, std = model.predict(new, return_std=True)
    for loaded in (sparsegp.load(tmp_path / "model.sgp"), sparsegp.serving.load(tmp_path / "model.sgp")):
        found = loaded.predict(new, return_std=True)
        np.testing.assert_allclose(found[0], mean, rtol=1e-8)
        np.testing.assert_allclose(found[1], std, rtol=1e-6)


def test_wrong_columns_and_profiles_are_refused():
    with pytest.raises(InputError, match=r"the input has 3 columns. Name the two with"):
        kernels.GreatCircle()(torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(InputError, match=r"longitude and latitude, in this order; got \[0\]"):
        kernels.GreatCircle(active_dims=[0])
    with pytest.raises(InputError, match="'squared_exponential'; got 'cubic'"):
        kernels.GreatCircle(profile="cubic")
