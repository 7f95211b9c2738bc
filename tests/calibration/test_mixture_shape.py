"""A mixture of Gaussians in one dimension: its closed forms against numerical integration and against scipy."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from sparsegp.calibration.mixture import Shape, normal_cdf

SKEWED = Shape(np.array([0.2, 0.5, 0.3]), np.array([1.5, -0.3, -0.5]), np.array([0.7, 0.2, 1.4]))
LONG = Shape(SKEWED.weight, 40.0 * SKEWED.location, 40.0 * SKEWED.width)
SHAPES = {"standard": Shape.gaussian(), "narrow": Shape.gaussian(0.3), "skewed": SKEWED, "long": LONG}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def shape(request):
    return request.param


def density(shape, r):
    return float(np.exp(shape.log_density(np.array([r]))[0]))


def test_the_density_integrates_to_one_and_has_the_moments(shape):
    edge = 30.0 * float(shape.width.max())
    places = [float(m) for m in shape.location]

    def total(power):
        return quad(lambda r: r**power * density(shape, r), -edge, edge, points=places, limit=400, epsabs=1e-11)[0]

    assert total(0) == pytest.approx(1.0, abs=1e-8)
    assert total(1) == pytest.approx(0.0, abs=1e-7 * edge)
    assert total(2) == pytest.approx(shape.var, rel=1e-7)


def test_the_distribution_is_the_integral_of_the_density(shape):
    at = float(0.7 * shape.width.max())
    below = quad(lambda r: density(shape, r), -40.0 * float(shape.width.max()), at, limit=400, epsabs=1e-12)[0]
    assert shape.cdf(np.array([at]))[0] == pytest.approx(below, abs=1e-8)


def test_quantiles_undo_the_distribution_in_both_tails(shape):
    levels = np.array([1e-12, 1e-6, 0.025, 0.3, 0.5, 0.7, 0.975, 1.0 - 1e-6])
    quantiles = shape.quantiles(levels)
    assert np.allclose(shape.cdf(quantiles), levels, rtol=1e-9, atol=0.0)
    assert (np.diff(quantiles) > 0).all()


def test_the_score_is_the_integral_over_thresholds(shape):
    spread = float(shape.width.max())
    for r in (-2.0 * spread, 0.1, 3.0 * spread):
        left = quad(lambda t: shape.cdf(np.array([t]))[0] ** 2, -30.0 * spread, r, limit=400)[0]
        right = quad(lambda t: (1.0 - shape.cdf(np.array([t]))[0]) ** 2, r, 30.0 * spread, limit=400)[0]
        assert shape.crps(np.array([r]))[0] == pytest.approx(left + right, rel=1e-6)


def test_draws_have_the_distribution(shape):
    rng = np.random.default_rng(0)
    for draws in (shape.sample((20_000,), rng), shape.from_normal(rng.standard_normal(20_000))):
        assert stats.kstest(draws, shape.cdf).pvalue > 1e-3


def test_a_gaussian_is_that_of_scipy():
    r = np.linspace(-30.0, 5.0, 41)
    shape = Shape.gaussian(1.7)
    assert np.allclose(shape.log_density(r), stats.norm(scale=1.7).logpdf(r), rtol=1e-12)
    assert np.allclose(normal_cdf(r), stats.norm.cdf(r), rtol=1e-11, atol=0.0)


def test_widening_mirroring_and_centring():
    r = np.linspace(-3.0, 4.0, 9)
    wider = SKEWED.widened(2.0)
    assert np.allclose(wider.location, SKEWED.location)
    # what is added to the variance is that of the parts
    assert wider.var - SKEWED.var == pytest.approx(3.0 * SKEWED.weight @ SKEWED.width**2)
    stretched = SKEWED.stretched(2.0)
    assert np.allclose(stretched.cdf(2.0 * r), SKEWED.cdf(r))
    assert np.allclose(SKEWED.mirrored().cdf(-r), 1.0 - SKEWED.cdf(r))
    moved = Shape(SKEWED.weight, SKEWED.location + 3.0, SKEWED.width).centred()
    assert moved.weight @ moved.location == pytest.approx(0.0, abs=1e-15)


def test_centring_moves_every_part_by_the_same_number_of_its_widths():
    """So a narrow part stays where residuals are again and again, and no density is lost there."""
    spiked = Shape(np.array([0.6, 0.4]), np.array([-0.5, 1.2]), np.array([0.01, 1.0]))
    centred = spiked.centred()
    assert np.allclose(*((centred.location - spiked.location) / spiked.width))
    at_spike = np.array([-0.5])
    assert centred.log_density(at_spike)[0] > spiked.log_density(at_spike)[0] - 0.2
    assert np.allclose(SKEWED.centred().location, SKEWED.location)
