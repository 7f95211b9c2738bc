"""Variances are variances: positive, the same whether asked one by one or together, whatever noise and weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, SparseGPRegressor
from sparsegp.core.predictive import as_covariance

ROUNDING = 1e-12

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=60)
ROWS = np.vstack([X[:30], rng.normal(size=(10, 3)), X[:5], 50.0 * np.ones((1, 3))])

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def check(model, rows=ROWS):
    for latent in (False, True):
        mean, std = model.predict(rows, return_std=True, latent=latent)
        same_mean, cov = model.predict(rows, return_cov=True, latent=latent)
        assert (std > 0.0).all()
        np.testing.assert_allclose(np.diag(cov), std**2, rtol=1e-8)
        np.testing.assert_allclose(same_mean, mean, rtol=1e-6, atol=1e-9 * np.abs(mean).max())
        np.testing.assert_array_equal(cov, cov.T)
        assert np.linalg.eigvalsh(cov).min() >= -ROUNDING * np.trace(cov)
        assert np.isfinite(model.sample_y(rows, 2, random_state=0, latent=latent)).all()


def test_tiny_known_noise_of_the_default_model():
    check(SparseGPRegressor(random_state=0, time_budget=1, n_inducing=20).fit(X, y, noise_var=np.full(60, 1e-12)))


@pytest.mark.parametrize("weight", [1e-12, 1e3, 1e12])
def test_equal_weights_of_any_size_of_the_default_model(weight):
    model = SparseGPRegressor(random_state=0, time_budget=1, n_inducing=10)
    check(model.fit(X, y, sample_weight=np.full(60, weight)))


@pytest.mark.parametrize(
    "given", [{"noise_var": np.full(60, 1e-12)}, {"sample_weight": 10.0 ** rng.uniform(-12, 12, 60)}]
)
@pytest.mark.parametrize("name", ["exact", "sod", "sor", "dtc", "vfe", "fitc", "pitc", "pic", "pep"])
def test_every_approximation(name, given):
    model = SparseGPRegressor("se", name, n_inducing=15, n_blocks=4, noise_var=None, optimizer=None, random_state=0)
    check(model.fit(X, y, **given))


def test_nystrom_with_its_variances_clipped():
    model = SparseGPRegressor("se", "nystrom", n_inducing=8, optimizer=None, clip_variances=True, random_state=0)
    check(model.fit(X, y, noise_var=np.full(60, 1e-6)))


def test_single_precision():
    check(SparseGPRegressor("se", "vfe", n_inducing=15, optimizer=None, dtype="float32", random_state=0).fit(X, y))


@pytest.mark.parametrize("weight", [1e-8, 1e8])
@pytest.mark.parametrize(
    "make",
    [
        lambda: CommitteeGPRegressor("se", expert="vfe", n_inducing=10, n_experts=3, optimizer=None, random_state=0),
        lambda: CommitteeGPRegressor("se", expert="exact", n_experts=3, optimizer=None, random_state=0),
        lambda: HeteroscedasticGPRegressor("se", n_inducing=10, optimizer=None, random_state=0),
    ],
    ids=["vfe experts", "exact experts", "learned noise"],
)
def test_committees_and_learned_noise(make, weight):
    check(make().fit(X, y, sample_weight=np.full(60, weight)))


@settings(deadline=None, max_examples=200)
@given(
    n=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
    error=st.floats(-18.0, 2.0),
    smallest=st.floats(-16.0, 0.0),
)
def test_any_matrix_becomes_a_covariance_with_the_given_variances(n, seed, error, smallest):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((n, n)) * 10.0 ** rng.uniform(smallest, 0.0, n)[:, None]
    true = root @ root.T
    noise = rng.standard_normal((n, n))
    cov = as_covariance(true + 10.0**error * (noise + noise.T), np.diag(true).copy())
    np.testing.assert_array_equal(np.diag(cov), np.diag(true))
    assert np.linalg.eigvalsh(cov).min() >= -ROUNDING * np.trace(cov)


def test_a_covariance_stays_what_it_is():
    root = rng.standard_normal((5, 5))
    cov = root @ root.T
    np.testing.assert_allclose(as_covariance(cov, np.diag(cov).copy()), cov, rtol=1e-14)
    singular = np.ones((4, 4))
    np.testing.assert_array_equal(as_covariance(singular, np.ones(4)), singular)
    np.testing.assert_array_equal(as_covariance(np.zeros((2, 2)), np.zeros(2)), np.zeros((2, 2)))
