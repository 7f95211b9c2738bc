"""Forecasts carried back through a transform: their answers agree with each other and with integration."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import lognorm

from sparsegp import InputError
from sparsegp.calibration.calibration import Calibrated
from sparsegp.calibration.mixture import Shape
from sparsegp.calibration.transform import FAR, TRANSFORMS, Transformed, carried, named
from sparsegp.core.predictive import Array, Gaussian, NoiseMixture

MEAN, F_VAR = np.array([0.3, 1.2, -0.8, 4.0]), np.array([0.05, 0.4, 0.3, 1e-6])
SKEWED = Shape(np.array([0.5, 0.3, 0.2]), np.array([-0.4, 0.1, 0.85]), np.array([0.3, 1.0, 0.7]))
BASES = {
    "gaussian": Gaussian(MEAN, F_VAR, 0.09),
    "noise mixture": NoiseMixture(MEAN, F_VAR, np.array([-2.5, -1.2, -2.0, -4.0]), np.array([0.2, 0.5, 0.3, 1.0])),
    "known noise": NoiseMixture(MEAN, F_VAR, np.full(4, -2.0), np.zeros(4)),
    "calibrated": Calibrated(Gaussian(MEAN, F_VAR, 0.09), np.array([1.0, 0.7, 1.4, 1.0]), SKEWED),
}
every_base = pytest.mark.parametrize("base", BASES.values(), ids=BASES)
every_transform = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
LEVELS = np.array([1e-12, 1e-7, 1e-4, 0.02, 0.2, 0.5, 0.8, 0.98, 1 - 1e-4, 1 - 1e-7, 1 - 1e-12])

z_forecasts = st.builds(
    lambda mean, f_var, scale, places, widths: Calibrated(
        Gaussian(np.array([mean]), np.array([f_var])),
        np.array([scale]),
        Shape(np.array([0.5, 0.3, 0.2]), np.array(places), np.array(widths)).centred(),
    ),
    st.floats(-3.0, 5.0),
    st.floats(1e-6, 1.0),
    st.floats(0.3, 3.0),
    st.tuples(*[st.floats(-2.0, 2.0)] * 3),
    st.tuples(*[st.floats(0.1, 2.0)] * 3),
)
transforms = st.sampled_from(list(TRANSFORMS.values()))


def integral(function: Any, ends: Any) -> float:
    return sum(quad(function, a, b, epsabs=1e-14, epsrel=1e-11, limit=300)[0] for a, b in pairwise(np.unique(ends)))


def at(answer: Any, row: int, value: float) -> float:
    """One row's answer to one number."""
    return float(answer(np.full(len(MEAN), value))[row])


def places(forecast: Transformed, row: int, *also: float) -> Array:
    return np.unique([0.0, *forecast.quantiles(LEVELS)[row], *also])


@settings(deadline=None, max_examples=100)
@given(base=z_forecasts, transform=transforms, levels=st.sets(st.integers(1, 999), min_size=2, max_size=9))
def test_quantiles_are_those_of_z_carried_back_and_never_below_zero(base: Any, transform: Any, levels: Any) -> None:
    q = np.array(sorted(levels)) / 1000
    forecast = Transformed(base, transform)
    quantiles = forecast.quantiles(q)[0]
    assert (quantiles >= 0.0).all()
    assert (np.diff(quantiles) >= 0.0).all()
    for level, value in zip(q, quantiles, strict=True):
        reached = float(forecast.cdf([value])[0])
        assert reached == pytest.approx(level, abs=1e-9) if value > 0.0 else reached >= level - 1e-12
    np.testing.assert_allclose(np.array(forecast.interval(0.9))[:, 0], forecast.quantiles([0.05, 0.95])[0], rtol=1e-12)


@settings(deadline=None, max_examples=100)
@given(transform=transforms, y=st.floats(1e-9, 1e9))
def test_the_inverse_undoes_the_transform_and_has_its_slope(transform: Any, y: float) -> None:
    z = transform.targets(np.array([y]))
    assert transform.inverse(z)[0] == pytest.approx(y, rel=1e-7)
    step = 1e-5 * max(abs(z[0]), 1e-3)
    slope = (transform.inverse(z + step) - transform.inverse(z - step)) / (2 * step)
    if transform.zero < z[0] - step:
        assert np.exp(transform.log_slope(z))[0] == pytest.approx(slope[0], rel=1e-4)


@every_base
@every_transform
def test_the_density_and_the_probability_of_zero_are_one(base: Any, transform: Any) -> None:
    forecast = Transformed(base, transform)
    for row in range(len(MEAN)):
        above = integral(lambda y, row=row: np.exp(at(forecast.log_density, row, y)), places(forecast, row))
        zero = np.exp(at(forecast.log_density, row, 0.0))
        assert above + zero == pytest.approx(1.0, abs=1e-7)
        assert zero == pytest.approx(at(forecast.cdf, row, 0.0), rel=1e-10)
        assert (zero > 0.0) == (transform.zero == 0.0 and base.cdf(np.zeros(4))[row] > 0.0)
        assert at(forecast.log_density, row, -0.1) == -np.inf
        assert at(forecast.cdf, row, -0.1) == 0.0


@every_base
@every_transform
def test_mean_and_variance_are_integrals(base: Any, transform: Any) -> None:
    """Of exp(z) of another z than a Gaussian one, between the quantiles of FAR and 1 - FAR."""
    forecast = Transformed(base, transform)
    bounded = transform.is_exponential and base.parts(slice(0, 1)).weight.size > 1
    ends = forecast.quantiles([FAR, 1.0 - FAR])
    for row in range(len(MEAN)):
        low, high = ends[row] if bounded else (0.0, np.inf)
        inside = places(forecast, row, *forecast.quantiles([1e-15, 1 - 1e-15])[row])
        inside = np.unique(np.clip(inside, low, high))
        below, above = at(forecast.cdf, row, low), 1.0 - at(forecast.cdf, row, high) if bounded else 0.0

        def moment(
            of: Any, row: int = row, inside: Array = inside, below: float = below, above: float = above
        ) -> float:
            density = integral(lambda y: of(y) * np.exp(at(forecast.log_density, row, y)), inside)
            return density + below * of(inside[0]) + (above * of(inside[-1]) if above else 0.0)

        mean = moment(lambda y: y)
        assert forecast.mean[row] == pytest.approx(mean, rel=1e-7)
        assert forecast.var[row] == pytest.approx(moment(lambda y, mean=mean: (y - mean) ** 2), rel=2e-6)


def test_moments_of_a_gaussian_are_those_of_the_log_normal() -> None:
    base = BASES["gaussian"]
    forecast = Transformed(base, TRANSFORMS["log"])
    known = lognorm(base.std, scale=np.exp(base.mean))
    np.testing.assert_allclose(forecast.mean, known.mean(), rtol=1e-13)
    np.testing.assert_allclose(forecast.std, known.std(), rtol=1e-11)
    y = np.array([1.1, 2.0, 0.4, 50.0])
    np.testing.assert_allclose(forecast.log_density(y), known.logpdf(y), rtol=1e-10)
    np.testing.assert_allclose(forecast.cdf(y), known.cdf(y), rtol=1e-12)


def test_a_mean_is_not_that_of_a_tail_which_nobody_has_seen() -> None:
    """A part of one in three thousand, six times as wide: little of the variance of z, nearly all of that of exp(z)."""
    wide = Shape(np.array([1 - 1 / 3000, 1 / 3000]), np.zeros(2), np.array([1.0, 6.4]))
    base = Gaussian(np.zeros(1), np.array([0.36]))
    alone, with_tail = (
        Transformed(Calibrated(base, np.ones(1), shape), TRANSFORMS["log"]) for shape in (Shape.gaussian(), wide)
    )
    assert with_tail.mean[0] == pytest.approx(alone.mean[0], rel=0.02)
    assert with_tail.std[0] < 1.6 * alone.std[0]


@pytest.mark.parametrize("t", [-38.0, -20.0, -3.0, 0.0, 3.0, 8.9, 9.1, 30.0])
@pytest.mark.parametrize("std", [1e-7, 1e-2, 1.0])
@pytest.mark.parametrize("name", ["log1p", "sqrt"])
def test_moments_are_right_however_near_zero_is(name: str, t: float, std: float) -> None:
    transform = TRANSFORMS[name]
    mean, var = transform.moments(np.array([[t * std]]), np.array([[std**2]]))
    if t < -37.0:
        assert 0.0 <= mean[0, 0] < 1e-300
        assert 0.0 <= var[0, 0] < 1e-300
        return

    def share(u: float) -> float:
        return float(np.exp(-0.5 * (u - t) ** 2) / np.sqrt(2 * np.pi))

    def inverse(u: float) -> float:
        return float(transform.inverse(np.array(std * u)))

    shift = max(t, 0.0) + (2 * std if transform.is_exponential else 0.0)
    ends = [max(0.0, t - 12), max(0.0, t - 3), shift, shift + 3.0, shift + 12.0]
    ends = [*ends, 0.05, 0.3, 1.0] if t < 0 else ends
    unit = std if name == "log1p" else std**2
    scale = share(0.0) if t < -5 else 1.0
    expected = integral(lambda u: inverse(u) / unit * share(u) / scale, ends) * unit * scale
    assert mean[0, 0] == pytest.approx(expected, rel=1e-9)
    spread = integral(lambda u: ((inverse(u) - expected) / unit) ** 2 * share(u) / scale, ends) * unit**2 * scale
    assert var[0, 0] == pytest.approx(spread + ndtr(-t) * expected**2, rel=1e-8)


@every_base
@every_transform
@pytest.mark.parametrize("target", [-0.5, 0.0, 0.01, 1.3, 40.0, 900.0])
def test_crps_is_the_integral_of_the_squared_error_of_the_distribution(
    base: Any, transform: Any, target: float
) -> None:
    forecast = Transformed(base, transform)
    for row, found in enumerate(forecast.crps(np.full(len(MEAN), target))):

        def square(y: float, row: int = row) -> float:
            return (at(forecast.cdf, row, y) - (y >= target)) ** 2

        ends = places(forecast, row, target, *forecast.quantiles([1e-15, 1 - 1e-15])[row])
        assert found == pytest.approx(integral(square, ends), rel=1e-7, abs=1e-12)


def test_crps_of_the_log_normal_is_its_closed_form() -> None:
    base, y = BASES["gaussian"], np.array([1.1, 0.01, 0.4, 50.0])
    m, s = base.mean, base.std
    w = (np.log(y) - m) / s
    closed = y * (2 * ndtr(w) - 1) - 2 * np.exp(m + s**2 / 2) * (ndtr(w - s) + ndtr(s / np.sqrt(2)) - 1)
    np.testing.assert_allclose(Transformed(base, TRANSFORMS["log"]).crps(y), closed, rtol=1e-9)


@every_base
@every_transform
def test_draws_are_those_of_z_carried_back(base: Any, transform: Any) -> None:
    draws = Transformed(base, transform).sample(50, np.random.default_rng(3))
    np.testing.assert_array_equal(draws, transform.inverse(base.sample(50, np.random.default_rng(3))))
    assert (draws >= 0.0).all()


@every_base
@every_transform
def test_the_parts_of_the_std_add_up_as_they_do_before(base: Any, transform: Any) -> None:
    forecast = Transformed(base, transform)
    np.testing.assert_allclose(forecast.f_std**2 + forecast.noise_std**2, forecast.var, rtol=1e-12)
    np.testing.assert_allclose(forecast.f_std / forecast.std, base.f_std / base.std, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "y", "said"),
    [
        (
            "log",
            [1.0, 0.0, 2.0],
            r"above zero; 1 of these 3 are not. The lowest is 0; .* number 1 .* 'log1p' and 'sqrt'",
        ),
        ("log", [1.0, 2.0, -3.0], r"above zero; 1 of these 3 are not. The lowest is -3; .* number 2 .*Drop these rows"),
        ("sqrt", [-1.0, 0.0, -3.0], r"from zero on; 2 of these 3 are not. The lowest is -3; the first is number 0"),
        ("log1p", [0.0, -0.5], r"from zero on; 1 of these 2"),
    ],
)
def test_targets_that_have_no_place_are_refused(name: str, y: list[float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        TRANSFORMS[name].targets(np.array(y))


def test_zero_is_a_target_where_it_has_a_place() -> None:
    assert TRANSFORMS["log1p"].targets(np.zeros(2)).tolist() == [0.0, 0.0]
    assert TRANSFORMS["sqrt"].targets(np.array([0.0, 4.0])).tolist() == [0.0, 2.0]


def test_a_name_is_one_of_the_table_and_copies_are_the_row_itself() -> None:
    assert named(None) is None
    assert carried(BASES["gaussian"], None) is BASES["gaussian"]
    for transform in TRANSFORMS.values():
        assert pickle.loads(pickle.dumps(transform)) is copy.deepcopy(transform) is transform
    with pytest.raises(InputError, match="'log', 'log1p', 'sqrt'; got 'box-cox'"):
        named("box-cox")


def test_what_has_no_meaning_is_refused() -> None:
    forecast = Transformed(BASES["gaussian"], TRANSFORMS["log"])
    with pytest.raises(InputError, match="no mixture of Gaussians"):
        forecast.parts(slice(None))
    with pytest.raises(InputError, match="sample"):
        forecast.noise_sample((4, 1), np.random.default_rng(0))
