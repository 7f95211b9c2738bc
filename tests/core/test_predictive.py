"""Forecasts as values: their answers agree with each other, with integration, with the metrics and the estimators."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, InputError, SparseGPRegressor, metrics
from sparsegp.calibration.calibration import Calibrated
from sparsegp.calibration.mixture import Shape
from sparsegp.core.predictive import CHUNK_ROWS, PAIR_ROWS, Array, Gaussian, GaussianMixture, Joint, NoiseMixture, Parts
from sparsegp.errors import NegativeVarianceError

MEAN, F_VAR = np.array([0.3, -1.2, 4.0]), np.array([0.05, 0.4, 1e-6])
G_MEAN, G_VAR = np.array([-1.5, 0.2, -4.0]), np.array([0.2, 1.5, 4.0])
F_COV = np.array([[0.05, 0.02, 0.0], [0.02, 0.4, 0.0], [0.0, 0.0, 1e-6]])
Y = np.array([1.1, -1.0, 3.5])

WEIGHT = np.array([0.5, 0.3, 0.2])


@dataclass(frozen=True, eq=False)
class Skewed(GaussianMixture):
    """mean + scale r, where r has three parts at different places: a mixture that is not symmetric."""

    mean: Array
    scale: Array
    places: tuple[float, float, float] = (-1.0, 0.5, 4.0)
    widths: tuple[float, float, float] = (0.3, 1.0, 0.7)

    def parts(self, rows: slice) -> Parts:
        scale = self.scale[rows, None]
        var = (scale * np.array(self.widths)) ** 2
        return Parts(self.mean[rows], var, np.log(WEIGHT), scale * np.array(self.places))


FORECASTS = {
    "gaussian": Gaussian(MEAN, F_VAR, 0.09),
    "latent": Gaussian(MEAN, F_VAR),
    "noise mixture": NoiseMixture(MEAN, F_VAR, G_MEAN, G_VAR),
    "skewed": Skewed(MEAN, np.array([0.2, 1.0, 30.0])),
}
every_forecast = pytest.mark.parametrize("forecast", FORECASTS.values(), ids=FORECASTS)

numbers = st.floats(-20.0, 20.0)
gaussians = st.builds(
    lambda mean, f_var, noise_var: Gaussian(np.array([mean]), np.array([f_var]), noise_var),
    numbers,
    st.floats(1e-8, 1e2),
    st.floats(0.0, 1e2),
)
noise_mixtures = st.builds(
    lambda *moments: NoiseMixture(*(np.array([moment]) for moment in moments)),
    numbers,
    st.floats(1e-8, 1e2),
    st.floats(-10.0, 5.0),
    st.floats(0.0, 6.0),
)
skewed_mixtures = st.builds(
    lambda mean, scale, places, widths: Skewed(np.array([mean]), np.array([scale]), places, widths),
    numbers,
    st.floats(1e-3, 1e2),
    st.tuples(*[st.floats(-5.0, 5.0)] * 3),
    st.tuples(*[st.floats(0.05, 3.0)] * 3),
)
any_forecast = st.one_of(gaussians, noise_mixtures, skewed_mixtures)
levels_of_any_kind = st.integers(1, 10**6 - 1).map(lambda k: k / 10**6)

BREAKS = (1e-15, 1e-12, 1e-6, 1e-3, 0.05, 0.25, 0.5, 0.75, 0.95, 1 - 1e-3, 1 - 1e-6, 1 - 1e-12, 1 - 1e-15)


def integral(forecast: Any, row: int, integrand: Any, also: float | None = None) -> float:
    """Of a function over all but 1e-15 of the mass on either side, piece by piece between quantiles."""
    breaks = [*forecast.quantiles(BREAKS)[row], *([] if also is None else [also])]
    ends = np.unique(breaks)
    return sum(quad(integrand, a, b, epsabs=1e-13, epsrel=1e-11, limit=200)[0] for a, b in pairwise(ends))


def at(answer: Any, forecast: Any, row: int, value: float) -> float:
    """One row's answer to one value of y."""
    return float(answer(np.full_like(forecast.mean, value))[row])


@settings(deadline=None, max_examples=100)
@given(forecast=any_forecast, level=levels_of_any_kind)
def test_quantiles_invert_the_distribution_function(forecast: Any, level: float) -> None:
    assert forecast.cdf(forecast.quantiles(level)[:, 0])[0] == pytest.approx(level, rel=1e-7, abs=1e-10)


@settings(deadline=None, max_examples=100)
@given(forecast=any_forecast, levels=st.sets(levels_of_any_kind, min_size=2, max_size=12))
def test_quantiles_never_cross(forecast: Any, levels: set[float]) -> None:
    assert (np.diff(forecast.quantiles(sorted(levels))[0]) >= 0.0).all()


@settings(deadline=None, max_examples=60)
@given(forecast=any_forecast, coverage=st.floats(0.01, 0.999))
def test_intervals_are_central_and_hold_what_they_say(forecast: Any, coverage: float) -> None:
    lower, upper = forecast.interval(coverage)
    below, above = forecast.cdf(lower), 1.0 - forecast.cdf(upper)
    np.testing.assert_allclose(1.0 - below - above, coverage, rtol=1e-7)
    np.testing.assert_allclose(below, above, rtol=1e-6)


@every_forecast
def test_the_density_integrates_to_one_and_has_the_variance(forecast: Any) -> None:
    for row, mean in enumerate(forecast.mean):
        one = integral(forecast, row, lambda y, row=row: np.exp(at(forecast.log_density, forecast, row, y)))
        assert one == pytest.approx(1.0, abs=1e-9)
        if isinstance(forecast, Skewed):
            continue

        def square(y: float, row: int = row, mean: float = mean) -> float:
            return (y - mean) ** 2 * float(np.exp(at(forecast.log_density, forecast, row, y)))

        assert integral(forecast, row, square) == pytest.approx(forecast.var[row], rel=1e-6)


@every_forecast
@pytest.mark.parametrize("distance", [-6.0, -0.4, 0.0, 2.5])
def test_crps_is_the_integral_of_the_squared_error_of_the_distribution_function(forecast: Any, distance: float) -> None:
    median, upper = forecast.quantiles([0.5, 0.84]).T
    y = median + distance * (upper - median)
    found = forecast.crps(y)
    for row, target in enumerate(y):

        def error(t: float, row: int = row, target: float = target) -> float:
            return (at(forecast.cdf, forecast, row, t) - float(target <= t)) ** 2

        assert found[row] == pytest.approx(integral(forecast, row, error, also=target), rel=1e-6)


@settings(deadline=None, max_examples=60)
@given(forecast=any_forecast, y=st.floats(-1e3, 1e3))
def test_crps_is_never_negative(forecast: Any, y: float) -> None:
    assert forecast.crps([y])[0] >= 0.0


@pytest.mark.parametrize("noise_var", [1e-4, 0.09, 20.0])
def test_noise_that_is_certain_makes_the_mixture_a_gaussian(noise_var: float) -> None:
    certain = NoiseMixture(MEAN, F_VAR, np.full(3, np.log(noise_var)), np.zeros(3))
    gaussian = Gaussian(MEAN, F_VAR, noise_var)
    for name in ("mean", "var", "std", "f_std", "noise_std"):
        np.testing.assert_allclose(getattr(certain, name), getattr(gaussian, name), rtol=1e-14)
    levels = [1e-5, 0.2, 0.5, 0.975]
    np.testing.assert_allclose(certain.quantiles(levels), gaussian.quantiles(levels), rtol=1e-11)
    np.testing.assert_allclose(certain.log_density(Y), gaussian.log_density(Y), rtol=1e-11)
    np.testing.assert_allclose(certain.cdf(Y), gaussian.cdf(Y), rtol=1e-11)
    np.testing.assert_allclose(certain.crps(Y), gaussian.crps(Y), rtol=1e-11)


def test_parts_at_one_place_need_no_offsets() -> None:
    """The short ways for parts without offsets give what the long ways give for offsets of zero."""
    plain = FORECASTS["noise mixture"].parts(slice(None))
    offset = Parts(plain.centre, plain.var, plain.log_weight, np.zeros_like(plain.var))
    levels = np.array([0.001, 0.3, 0.5, 0.99])
    np.testing.assert_array_equal(plain.quantiles(levels), offset.quantiles(levels))
    for name in ("log_density", "cdf", "crps"):
        np.testing.assert_allclose(getattr(plain, name)(Y), getattr(offset, name)(Y), rtol=1e-13)


def test_one_part_moved_is_a_gaussian_elsewhere() -> None:
    std, moved = np.array([[0.4], [2.0], [1e-3]]), np.array([[0.7], [-3.0], [50.0]])
    parts, there = Parts(MEAN, std**2, np.zeros(1), moved), norm(MEAN + moved[:, 0], std[:, 0])
    np.testing.assert_allclose(parts.quantiles(np.array([0.1]))[:, 0], there.ppf(0.1), rtol=1e-12)
    np.testing.assert_allclose(parts.log_density(MEAN), there.logpdf(MEAN), rtol=1e-10)
    np.testing.assert_allclose(parts.crps(MEAN), Gaussian(MEAN + moved[:, 0], std[:, 0] ** 2).crps(MEAN), rtol=1e-10)


def test_quantiles_between_parts_far_apart() -> None:
    """Where the density is zero to all digits Newton has no slope to follow, and the bracket is halved instead."""
    apart = Skewed(np.zeros(1), np.ones(1), (-4.0, 0.0, -5.0), (0.05, 0.05, 0.06))
    levels = [0.1, 0.2, 0.3, 0.5, 0.69, 0.7, 0.71, 0.9]
    quantiles = apart.quantiles(levels)[0]
    np.testing.assert_allclose([apart.cdf([value])[0] for value in quantiles], levels, rtol=1e-9)
    assert (np.diff(quantiles) > 0.0).all()


# What the prediction mixins gave before forecasts were values.
BEFORE = {
    "gaussian": {
        "std": [0.37416573867739417, 0.7, 0.30000166666203704],
        "noise_std": [0.3, 0.3, 0.3],
        "quantiles": [
            [-0.5704396707110768, 0.10378729479979165, 1.0333513720565182],
            [-2.8284435118285884, -1.5670803588956286, 0.17197478917803788],
            [3.302091760552061, 3.842678972189161, 4.587992461959583],
        ],
        "log_density": [-2.2215963907325422, -0.6030799157965524, -1.1038447413650174],
    },
    "noise mixture": {
        "std": [0.5446071647909221, 1.7279206171916133, 0.3678808003098459],
        "noise_std": [0.4965853037914095, 1.6080141974857827, 0.36787944117144233],
        "quantiles": [
            [-1.0150947529916419, 0.027082685675270723, 1.3804776673414265],
            [-5.967050739964959, -1.8679011000097505, 2.2736162786958927],
            [2.939361547793327, 3.9434001939591936, 4.654562300955886],
        ],
        "log_density": [-1.475981784612876, -1.1581041703378472, -2.1167856290882336],
    },
}


@pytest.mark.parametrize("name", BEFORE)
def test_answers_are_those_of_before(name: str) -> None:
    forecast, before = FORECASTS[name], BEFORE[name]
    np.testing.assert_allclose(forecast.std, before["std"], rtol=1e-14)
    np.testing.assert_allclose(forecast.noise_std, before["noise_std"], rtol=1e-14)
    np.testing.assert_allclose(forecast.quantiles([0.01, 0.3, 0.975]), before["quantiles"], rtol=1e-12)
    np.testing.assert_allclose(forecast.log_density(Y), before["log_density"], rtol=1e-12)


def test_joint_draws_are_those_of_before() -> None:
    """f by the root of its covariance, then the noise: the order of the draws is part of what a seed means."""
    values, vectors = np.linalg.eigh(F_COV)
    rng = np.random.default_rng(7)
    f = MEAN[:, None] + (vectors * np.sqrt(values)) @ rng.standard_normal((3, 2))
    known = f + 0.3 * rng.standard_normal((3, 2))
    got = Joint(FORECASTS["gaussian"], F_COV).sample(2, np.random.default_rng(7))
    np.testing.assert_allclose(got, known, rtol=1e-14)
    rng = np.random.default_rng(7)
    rng.standard_normal((3, 2))
    g = G_MEAN[:, None] + np.sqrt(G_VAR)[:, None] * rng.standard_normal((3, 2))
    uncertain = f + np.exp(0.5 * g) * rng.standard_normal((3, 2))
    got = Joint(FORECASTS["noise mixture"], F_COV).sample(2, np.random.default_rng(7))
    np.testing.assert_allclose(got, uncertain, rtol=1e-14)


def test_draws_of_f_leave_the_generator_without_draws_of_the_noise() -> None:
    used, expected = np.random.default_rng(1), np.random.default_rng(1)
    Joint(FORECASTS["noise mixture"], F_COV).latent.sample(5, used)
    expected.standard_normal((3, 5))
    assert used.standard_normal() == expected.standard_normal()


@pytest.mark.parametrize("name", ["gaussian", "noise mixture"])
def test_the_covariance_has_the_noise_on_its_diagonal(name: str) -> None:
    joint = Joint(FORECASTS[name], F_COV)
    np.testing.assert_allclose(joint.cov.diagonal(), FORECASTS[name].var, rtol=1e-14)
    np.testing.assert_array_equal(joint.cov - np.diag(joint.cov.diagonal()), F_COV - np.diag(F_COV.diagonal()))
    np.testing.assert_array_equal(joint.latent.cov, F_COV)
    np.testing.assert_array_equal(joint.mean, MEAN)


@pytest.mark.parametrize("name", ["gaussian", "noise mixture"])
def test_draws_follow_the_distribution(name: str) -> None:
    forecast, n = FORECASTS[name], 20_000
    for draws in (
        forecast.sample(n, np.random.default_rng(2)),
        Joint(forecast, F_COV).sample(n, np.random.default_rng(3)),
    ):
        assert draws.shape == (3, n)
        for level, quantile in zip((0.05, 0.5, 0.9), forecast.quantiles([0.05, 0.5, 0.9]).T, strict=True):
            np.testing.assert_allclose((draws < quantile[:, None]).mean(axis=1), level, atol=4 * 0.5 / np.sqrt(n))


def test_many_rows_are_answered_chunk_by_chunk() -> None:
    """Each row's answer is the one it has alone, on both sides of the ends of chunks."""
    n = CHUNK_ROWS + PAIR_ROWS + 3
    rng = np.random.default_rng(0)
    moments = (rng.normal(size=n), rng.uniform(0.01, 1, n), rng.normal(-2, 1, n), rng.uniform(0.1, 2, n))
    y = moments[0] + rng.normal(size=n)
    many = NoiseMixture(*moments)
    answers = many.log_density(y), many.cdf(y), many.crps(y), many.quantiles([0.1, 0.8])
    for row in (0, PAIR_ROWS - 1, PAIR_ROWS, CHUNK_ROWS - 1, CHUNK_ROWS, n - 1):
        one = NoiseMixture(*(moment[row : row + 1] for moment in moments))
        alone = one.log_density(y[[row]]), one.cdf(y[[row]]), one.crps(y[[row]]), one.quantiles([0.1, 0.8])
        for together, single in zip(answers, alone, strict=True):
            np.testing.assert_allclose(together[row], single[0], rtol=1e-11)


def test_a_gaussian_has_the_scores_of_the_metrics() -> None:
    rng = np.random.default_rng(4)
    forecast = Gaussian(rng.normal(size=50), rng.uniform(0.1, 2, 50), 0.3)
    y = forecast.mean + 3.0 * rng.normal(size=50)
    given = (y, forecast.mean, forecast.std)
    assert forecast.crps(y).mean() == pytest.approx(metrics.crps(*given), rel=1e-13)
    assert -forecast.log_density(y).mean() == pytest.approx(metrics.nlpd(*given), rel=1e-13)
    np.testing.assert_allclose(forecast.cdf(y), metrics.pit_values(*given), rtol=1e-13)


def test_negative_variances_have_a_mean_but_no_spread() -> None:
    forecast = Gaussian(MEAN, np.array([0.1, -0.5, -0.05]), 0.09)
    np.testing.assert_array_equal(forecast.mean, MEAN)
    np.testing.assert_allclose(forecast.var, [0.19, -0.41, 0.04])
    np.testing.assert_allclose(forecast.noise_std, 0.3)
    for ask in (
        lambda: forecast.std,
        lambda: forecast.interval(0.9),
        lambda: forecast.log_density(Y),
        lambda: forecast.cdf(Y),
        lambda: forecast.crps(Y),
    ):
        with pytest.raises(NegativeVarianceError, match=r"1 of 3 predictive variances are negative \(lowest -0.41\)"):
            ask()
    with pytest.raises(NegativeVarianceError, match="2 of 3"):
        _ = forecast.f_std


@every_forecast
def test_what_cannot_be_answered_is_refused(forecast: Any) -> None:
    for q in ([0.5, 1.0], 0.0, [[0.1, 0.2]], [np.nan]):
        with pytest.raises(InputError, match="strictly between 0 and 1"):
            forecast.quantiles(q)
    for coverage in (0.0, 1.0, 95.0, np.nan):
        with pytest.raises(InputError, match="coverage is a probability"):
            forecast.interval(coverage)
    for ask in (forecast.log_density, forecast.cdf, forecast.crps):
        with pytest.raises(InputError, match="one target for each of the 3 rows; got 2"):
            ask(Y[:2])


def wave(n: int = 120, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 6, (n, 1))
    return X, np.sin(X[:, 0]) + (0.05 + 0.05 * X[:, 0]) * rng.standard_normal(n)


ESTIMATORS = {
    "vfe": lambda: SparseGPRegressor(approximation="vfe", n_inducing=12, optimizer=None, noise_var=0.04),
    "pic": lambda: SparseGPRegressor(approximation="pic", n_inducing=12, optimizer=None, noise_var=0.04),
    "heteroscedastic": lambda: HeteroscedasticGPRegressor(n_inducing=12, n_noise_inducing=6, optimizer=None),
    "committee": lambda: CommitteeGPRegressor(n_experts=3, optimizer=None, noise_var=0.04),
    "committee, learned noise": lambda: CommitteeGPRegressor(
        n_experts=2, expert="vshgp", n_inducing=12, n_noise_inducing=6, optimizer=None
    ),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_predictions_are_answers_of_the_forecast(name: str) -> None:
    model, (X, y) = ESTIMATORS[name]().fit(*wave()), wave(15, seed=1)
    forecast = model.forecast(X)
    same = np.testing.assert_array_equal
    # the mean alone takes one product with weights, which rounds otherwise
    np.testing.assert_allclose(model.predict(X), forecast.mean, rtol=1e-10, atol=1e-12)
    same(model.predict(X, return_std=True)[1], forecast.std)
    same(model.predict(X, return_std=True, latent=True)[1], forecast.f_std)
    same(model.forecast(X, latent=True).std, forecast.f_std)
    same(model.predict_components(X), (forecast.mean, forecast.f_std, forecast.noise_std))
    same(model.predict_interval(X, 0.8), forecast.interval(0.8))
    same(model.predict_quantiles(X, [0.1, 0.7]), forecast.quantiles([0.1, 0.7]))
    same(model.log_density(X, y), forecast.log_density(y))
    np.testing.assert_allclose(forecast.f_std**2 + forecast.noise_std**2, forecast.var, rtol=1e-12)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_joint_forecasts_have_the_marginals_of_forecasts(name: str) -> None:
    model, (X, _) = ESTIMATORS[name]().fit(*wave()), wave(15, seed=1)
    forecast, joint = model.forecast(X), model.joint_forecast(X)
    for one, other in zip(model.predict(X, return_cov=True), (joint.mean, joint.cov), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(joint.mean, forecast.mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(joint.cov.diagonal(), forecast.var, rtol=1e-6)
    np.testing.assert_array_equal(model.predict(X, return_cov=True, latent=True)[1], joint.f_cov)
    np.testing.assert_array_equal(model.sample_y(X, 3, 5), joint.sample(3, np.random.default_rng(5)))


@pytest.mark.parametrize("name", ["vfe", "heteroscedastic"])
def test_quantiles_of_dask_collections_are_computed_when_asked_for(name: str) -> None:
    da = pytest.importorskip("dask.array")
    model, (X, _) = ESTIMATORS[name]().fit(*wave()), wave(15, seed=1)
    collection = da.from_array(X, chunks=(6, 1))
    quantiles, ends = model.predict_quantiles(collection, [0.1, 0.7]), model.predict_interval(collection, 0.8)
    assert all(isinstance(answer, da.Array) for answer in (quantiles, *ends))
    assert quantiles.shape == (15, 2)
    expected = (model.predict_quantiles(X, [0.1, 0.7]), *model.predict_interval(X, 0.8))
    for lazy, known in zip((quantiles, *ends), expected, strict=True):
        np.testing.assert_allclose(lazy.compute(scheduler="synchronous"), known, rtol=1e-10)
    with pytest.raises(InputError, match="row by row"):
        model.predict_interval(collection, blocks=np.zeros(15, int))


def test_a_forecast_is_the_mixture_of_its_parts():
    rng = np.random.default_rng(0)
    mean, f_var = rng.standard_normal(6), rng.uniform(0.1, 1.0, 6)
    plain = Gaussian(mean, f_var, 0.3)
    shape = Shape(np.array([0.7, 0.3]), np.array([-0.3, 0.7]), np.array([0.8, 1.9]))
    y, rows = rng.standard_normal(6), slice(1, 5)
    for forecast in (plain, Calibrated(plain, rng.uniform(0.5, 2.0, 6), shape)):
        parts = forecast.parts(rows)
        np.testing.assert_allclose(parts.log_density(y[rows]), forecast.log_density(y)[rows])
        np.testing.assert_allclose(parts.cdf(y[rows]), forecast.cdf(y)[rows])
        np.testing.assert_allclose(parts.crps(y[rows]), forecast.crps(y)[rows])
        np.testing.assert_allclose(parts.quantiles(np.array([0.2, 0.9])), forecast.quantiles([0.2, 0.9])[rows])
