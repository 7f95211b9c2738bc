"""The Gaussian mixture over the noise process: density, distribution, quantiles, samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from sparsegp import InputError
from sparsegp.core.predictive import Joint, NoiseMixture
from sparsegp.estimators.estimator import Estimator


def mixture(n: int = 7, g_var: float = 0.8) -> NoiseMixture:
    rng = np.random.default_rng(0)
    return NoiseMixture(
        rng.normal(size=n), rng.uniform(0.01, 0.5, n), rng.normal(-2.0, 1.0, n), rng.uniform(0.1, g_var, n)
    )


class Fixed(Estimator):
    """An estimator that always predicts the same mixture."""

    def __init__(self, fixed: NoiseMixture) -> None:
        self.fixed = fixed

    def forecast(self, X: Any, latent: bool = False, blocks: Any = None) -> Any:
        return self.fixed.latent if latent else self.fixed

    def joint_forecast(self, X: Any, latent: bool = False, blocks: Any = None) -> Joint:
        return Joint(self.forecast(X, latent), np.diag(self.fixed.f_var))


def test_golden_log_density(golden: dict[str, Any]) -> None:
    expected = golden["vshgp"]["predict"]
    moments = NoiseMixture(*(np.array(expected[name]) for name in ("mu_f", "var_f", "mu_g", "var_g")))
    np.testing.assert_allclose(moments.log_density(np.array(expected["y_star"])), expected["log_density"], rtol=1e-8)
    np.testing.assert_allclose(moments.f_var + moments.noise_var, expected["var_y"], rtol=1e-8)


@pytest.mark.parametrize("g_var", [0.2, 1.5, 4.0])
def test_density_equals_adaptive_integration_over_g(g_var: float) -> None:
    moments = NoiseMixture(np.array([0.3]), np.array([0.05]), np.array([-1.5]), np.array([g_var]))
    y, sd = 1.1, np.sqrt(g_var)

    def integrand(g: float) -> float:
        return norm.pdf(y, 0.3, np.sqrt(0.05 + np.exp(g))) * norm.pdf(g, -1.5, sd)

    value, _ = quad(integrand, -1.5 - 10 * sd, -1.5 + 10 * sd, epsabs=1e-14, epsrel=1e-12, limit=200)
    assert moments.log_density(np.array([y]))[0] == pytest.approx(np.log(value), abs=1e-6)


def test_density_is_the_derivative_of_the_distribution_function() -> None:
    moments = mixture()
    y = moments.mean + np.linspace(-1.5, 1.5, 7)
    slope = (moments.cdf(y + 1e-5) - moments.cdf(y - 1e-5)) / 2e-5
    np.testing.assert_allclose(np.exp(moments.log_density(y)), slope, rtol=1e-6)


@settings(deadline=None, max_examples=40)
@given(
    level=st.floats(1e-6, 1.0 - 1e-6),
    f_var=st.floats(1e-8, 1e2),
    g_mean=st.floats(-10.0, 5.0),
    g_var=st.floats(1e-10, 9.0),
)
def test_quantiles_invert_the_distribution_function(level: float, f_var: float, g_mean: float, g_var: float) -> None:
    moments = NoiseMixture(np.array([1.7]), np.array([f_var]), np.array([g_mean]), np.array([g_var]))
    quantile = moments.quantiles(np.array([level]))[:, 0]
    assert moments.cdf(quantile)[0] == pytest.approx(level, rel=1e-7, abs=1e-10)


def test_quantiles_increase_and_are_symmetric() -> None:
    moments = mixture()
    levels = np.array([0.01, 0.1, 0.5, 0.9, 0.99])
    quantiles = moments.quantiles(levels)
    assert (np.diff(quantiles, axis=1) > 0).all()
    np.testing.assert_allclose(quantiles[:, 2], moments.mean, atol=1e-12)
    centre = np.broadcast_to(2.0 * moments.mean[:, None], quantiles.shape)
    np.testing.assert_allclose(quantiles + quantiles[:, ::-1], centre, atol=1e-10)


def test_known_noise_gives_the_gaussian() -> None:
    moments = NoiseMixture(np.array([0.5]), np.array([0.2]), np.array([np.log(0.3)]), np.array([1e-18]))
    gaussian = norm(0.5, np.sqrt(0.5))
    assert moments.log_density(np.array([1.4]))[0] == pytest.approx(gaussian.logpdf(1.4), rel=1e-8)
    np.testing.assert_allclose(moments.quantiles(np.array([0.025, 0.8]))[0], gaussian.ppf([0.025, 0.8]), rtol=1e-8)


def test_heavy_tails_are_wider_than_the_gaussian_of_the_same_moments() -> None:
    moments = NoiseMixture(np.zeros(1), np.array([0.01]), np.zeros(1), np.array([2.0]))
    std = np.sqrt(0.01 + moments.noise_var)
    assert moments.quantiles(np.array([0.9999]))[0, 0] > norm.ppf(0.9999) * std[0]
    assert moments.quantiles(np.array([0.75]))[0, 0] < norm.ppf(0.75) * std[0]


def test_samples_follow_the_mixture() -> None:
    moments = mixture(4)
    draws = Fixed(moments).sample_y(None, 40_000, random_state=3)
    pit = np.stack([moments.cdf(column) for column in draws.T[:2000]])
    np.testing.assert_allclose(pit.mean(0), 0.5, atol=0.03)
    np.testing.assert_allclose((pit < 0.05).mean(0), 0.05, atol=0.015)
    np.testing.assert_allclose(draws.var(axis=1), moments.f_var + moments.noise_var, rtol=0.15)
    again = Fixed(moments).sample_y(None, 40_000, random_state=3)
    np.testing.assert_array_equal(draws, again)


def test_predictions_of_an_estimator_are_those_of_its_forecast() -> None:
    moments = mixture()
    model = Fixed(moments)
    mean, std = model.predict(None, return_std=True)
    np.testing.assert_allclose(std**2, moments.f_var + moments.noise_var)
    _, cov = model.predict(None, return_cov=True)
    np.testing.assert_allclose(np.diag(cov), std**2)
    _, epistemic, aleatoric = model.predict_components(None)
    np.testing.assert_allclose(epistemic**2 + aleatoric**2, std**2)
    lower, upper = model.predict_interval(None, 0.9)
    np.testing.assert_allclose(moments.cdf(upper) - moments.cdf(lower), 0.9, rtol=1e-9)
    np.testing.assert_allclose(model.log_density(None, mean), moments.log_density(mean))


def test_bad_levels_and_targets_are_refused() -> None:
    model = Fixed(mixture())
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        model.predict_quantiles(None, [0.5, 1.0])
    with pytest.raises(InputError, match="one target for each of the 7 rows"):
        model.log_density(None, np.zeros(3))
