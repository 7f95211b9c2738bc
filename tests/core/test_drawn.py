"""Averages of forecasts, and two kinds of forecast in one, against their definitions."""

import numpy as np
import pytest
from scipy.integrate import quad

from sparsegp.calibration.calibration import Calibrated
from sparsegp.calibration.mixture import Shape
from sparsegp.core.drawn import Drawn
from sparsegp.core.interleaved import Interleaved
from sparsegp.core.predictive import Gaussian, NoiseMixture
from sparsegp.errors import InputError

K, ROWS = 5, 4
SHAPE = Shape(np.array([0.3, 0.7]), np.array([0.7, -0.3]), np.array([1.5, 0.6]))


def gaussian(n, seed=0):
    rng = np.random.default_rng(seed)
    return Gaussian(rng.normal(size=n), rng.uniform(0.1, 2.0, n), 0.3)


def calibrated(n, seed=0):
    return Calibrated(gaussian(n, seed), np.random.default_rng(seed + 9).uniform(0.5, 2.0, n), SHAPE)


def learned(n, seed=0):
    rng = np.random.default_rng(seed)
    return NoiseMixture(rng.normal(size=n), rng.uniform(0.1, 1.0, n), rng.normal(size=n), rng.uniform(0.1, 0.5, n))


KINDS = pytest.mark.parametrize("kind", [gaussian, calibrated, learned])


@KINDS
def test_density_distribution_and_moments_are_the_average(kind):
    base = kind(K * ROWS)
    found = Drawn(base, K)
    y = np.array([0.1, -0.5, 1.0, 3.0])
    each = np.repeat(y, K)
    density = np.exp(base.log_density(each)).reshape(ROWS, K).mean(axis=1)
    np.testing.assert_allclose(np.exp(found.log_density(y)), density, rtol=1e-10)
    np.testing.assert_allclose(found.cdf(y), base.cdf(each).reshape(ROWS, K).mean(axis=1), rtol=1e-10)
    at = np.linspace(-40.0, 40.0, 40_001)
    grid = np.array([np.exp(found.log_density(np.full(ROWS, t))) for t in at[::20]])
    mean = (grid * at[::20, None]).sum(axis=0) / grid.sum(axis=0)
    np.testing.assert_allclose(found.mean, mean, atol=1e-6)
    var = (grid * (at[::20, None] - mean) ** 2).sum(axis=0) / grid.sum(axis=0)
    np.testing.assert_allclose(found.var, var, rtol=1e-5)
    np.testing.assert_allclose(found.f_std**2 + found.noise_std**2, found.var, rtol=1e-10)
    np.testing.assert_allclose(found.latent.std, found.f_std, rtol=1e-10 if kind is not calibrated else 1.0)


@KINDS
def test_quantiles_turn_the_distribution_round(kind):
    found = Drawn(kind(K * ROWS), K)
    levels = [0.01, 0.3, 0.5, 0.975]
    quantiles = found.quantiles(levels)
    for k, level in enumerate(levels):
        np.testing.assert_allclose(found.cdf(quantiles[:, k]), level, rtol=1e-9)
    np.testing.assert_array_equal(np.column_stack(found.interval(0.95))[:, 1], quantiles[:, 3])


@KINDS
def test_crps_is_the_integral_of_the_squared_error_of_the_distribution(kind):
    found = Drawn(kind(K), K)
    y = 0.4
    below, _ = quad(lambda t: found.cdf([t])[0] ** 2, -30.0, y)
    above, _ = quad(lambda t: (1.0 - found.cdf([t])[0]) ** 2, y, 30.0)
    assert found.crps([y])[0] == pytest.approx(below + above, rel=1e-6)


@KINDS
def test_samples_have_the_moments(kind):
    found, rng = Drawn(kind(K * ROWS), K), np.random.default_rng(0)
    draws = found.sample(40_000, rng)
    np.testing.assert_allclose(draws.mean(axis=1), found.mean, atol=0.05)
    np.testing.assert_allclose(draws.std(axis=1), found.std, rtol=0.04)
    noise = found.noise_sample((ROWS, 40_000), rng)
    np.testing.assert_allclose(noise.std(axis=1), found.noise_std, rtol=0.05)


@KINDS
def test_two_kinds_in_one_are_each_row_by_row(kind):
    is_first = np.array([True, False, False, True, True, False])
    first, second = kind(3, seed=1), Drawn(kind(3 * K, seed=2), K)
    both, y = Interleaved(first, second, is_first), np.linspace(-1.0, 1.0, 6)
    for answer in ("mean", "var", "std", "f_std", "noise_std", "noise_var"):
        found = getattr(both, answer)
        np.testing.assert_array_equal(found[is_first], np.broadcast_to(getattr(first, answer), 3))
        np.testing.assert_array_equal(found[~is_first], getattr(second, answer))
    for question in ("log_density", "cdf", "crps"):
        found = getattr(both, question)(y)
        np.testing.assert_array_equal(found[is_first], getattr(first, question)(y[is_first]))
        np.testing.assert_array_equal(found[~is_first], getattr(second, question)(y[~is_first]))
    np.testing.assert_array_equal(both.quantiles([0.1, 0.7])[is_first], first.quantiles([0.1, 0.7]))
    np.testing.assert_array_equal(both.interval(0.8)[0][~is_first], second.interval(0.8)[0])
    np.testing.assert_allclose(both.parts(slice(1, 5)).log_density(y[1:5]), both.log_density(y)[1:5], rtol=1e-12)
    np.testing.assert_array_equal(both.latent.mean, both.mean)
    draws = both.sample(20_000, np.random.default_rng(0))
    np.testing.assert_allclose(draws.std(axis=1), both.std, rtol=0.05)
    assert both.noise_sample((6, 2), np.random.default_rng(0)).shape == (6, 2)
    with pytest.raises(InputError, match="for each of the 6 rows; got 3"):
        both.log_density(y[:3])
