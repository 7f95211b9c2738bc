"""Metrics: golden values, independent numerical integration, and the laws that make them scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from sparsegp import metrics
from sparsegp.errors import InputError

FINITE = st.floats(-5, 5)
SCALE = st.floats(0.05, 4)


def simulated(n: int = 4000, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    mean, std = rng.normal(1.0, 2.0, n), rng.uniform(0.3, 2.5, n)
    return mean + std * rng.normal(size=n), mean, std


def test_golden_fitc(golden: dict[str, Any]) -> None:
    fitc, expected = golden["models"]["FITC"], golden["metrics_FITC"]
    std = np.sqrt(np.array(fitc["var"]) + golden["meta"]["sn2"])
    scores = metrics.summary(golden["data"]["ys"], fitc["mean"], std, y_train=golden["data"]["y"])
    got = [scores[name] for name in ("rmse", "nlpd", "smse", "msll")]
    np.testing.assert_allclose(got, [expected[name] for name in ("RMSE", "MNLP", "SMSE", "MSLL")], rtol=1e-8)


def test_nlpd_and_pit_agree_with_scipy() -> None:
    y, mean, std = simulated(200)
    assert metrics.nlpd(y, mean, std) == pytest.approx(-stats.norm.logpdf(y, mean, std).mean(), rel=1e-13)
    far = np.concatenate([y, [-40.0, 60.0]])
    centre, scale = np.append(mean, [0.0, 0.0]), np.append(std, [1.5, 2.0])
    got = metrics.pit_values(far, centre, scale)
    np.testing.assert_allclose(got, stats.norm.cdf(far, centre, scale), rtol=1e-12)


@settings(deadline=None, max_examples=20)
@given(y=FINITE, mean=FINITE, std=SCALE)
def test_crps_is_the_integral_of_its_definition(y: float, mean: float, std: float) -> None:
    below = integrate.quad(lambda t: stats.norm.cdf(t, mean, std) ** 2, min(y, mean) - 12 * std, y, limit=200)[0]
    above = integrate.quad(lambda t: stats.norm.sf(t, mean, std) ** 2, y, max(y, mean) + 12 * std, limit=200)[0]
    assert metrics.crps([y], [mean], [std]) == pytest.approx(below + above, rel=1e-7)


def test_crps_from_quantiles_converges_to_the_closed_form() -> None:
    y, mean, std = simulated(50)
    exact = metrics.crps(y, mean, std)
    errors = []
    for n_levels in (20, 200, 2000):
        levels = (np.arange(n_levels) + 0.5) / n_levels
        quantiles = stats.norm.ppf(levels[None, :], mean[:, None], std[:, None])
        errors.append(abs(metrics.crps_from_quantiles(y, quantiles, levels) - exact))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3 * exact


def test_crps_from_quantiles_weighs_uneven_levels_by_their_share() -> None:
    y, quantiles, levels = (
        np.array([0.7, -0.4]),
        np.array([[0.0, 0.5, 2.0], [-1.0, 0.1, 0.3]]),
        [0.1, 0.2, 0.9],
    )
    shares = [0.15, 0.4, 0.45]
    losses = [metrics.pinball_loss(y, quantiles[:, j], level) for j, level in enumerate(levels)]
    assert metrics.crps_from_quantiles(y, quantiles, levels) == pytest.approx(2 * np.dot(shares, losses))


def test_crps_of_a_sharp_forecast_is_the_absolute_error() -> None:
    assert metrics.crps([3.0], [1.0], [1e-9]) == pytest.approx(2.0)
    assert metrics.crps([3.0], [1.0], [5e-324]) == 2.0


def test_nlpd_of_a_certain_mistake_is_infinite_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    assert metrics.nlpd([1.0], [0.0], [1e-200]) == np.inf
    assert not recwarn.list


@pytest.mark.parametrize("score", [metrics.crps, metrics.nlpd, metrics.msll])
@pytest.mark.parametrize(("shift", "factor"), [(0.3, 1.0), (-0.3, 1.0), (0.0, 0.8), (0.0, 1.25)])
def test_the_true_distribution_has_the_best_score(score: Any, shift: float, factor: float) -> None:
    y, mean, std = simulated()
    assert score(y, mean, std) < score(y, mean + shift * std, factor * std)


@settings(deadline=None, max_examples=20)
@given(level=st.floats(0.05, 0.95), shift=st.floats(-1, 1).filter(lambda s: abs(s) > 0.1))
def test_pinball_loss_is_least_at_the_quantile(level: float, shift: float) -> None:
    y = np.random.default_rng(0).normal(size=4000)
    empirical = np.quantile(y, level)
    best = metrics.pinball_loss(y, np.full_like(y, empirical), level)
    assert best < metrics.pinball_loss(y, np.full_like(y, empirical + shift), level)


def test_pinball_loss_at_the_median_is_half_the_absolute_error() -> None:
    y, mean, _ = simulated(100)
    assert metrics.pinball_loss(y, mean, 0.5) == pytest.approx(0.5 * np.abs(y - mean).mean())


def test_simulated_data_are_calibrated_and_wrong_widths_are_not() -> None:
    y, mean, std = simulated(20000)
    scores = metrics.summary(y, mean, std)
    assert scores["coverage_95"] == pytest.approx(0.95, abs=0.006)
    assert scores["calibration_error"] < 0.006
    assert metrics.calibration_error(metrics.pit_values(y, mean, 0.7 * std)) > 0.05
    assert metrics.calibration_error(metrics.pit_values(y, mean, 1.4 * std)) > 0.05
    assert metrics.calibration_error(metrics.pit_values(y, mean + std, std)) > 0.05


def test_calibration_error_is_the_mean_gap_of_central_interval_coverages() -> None:
    y, mean, std = simulated(300)
    levels = np.array([0.2, 0.5, 0.8, 0.9])
    half = stats.norm.ppf(0.5 + levels / 2)
    coverages = [metrics.interval_coverage(y, mean - h * std, mean + h * std) for h in half]
    got = metrics.calibration_error(metrics.pit_values(y, mean, std), levels=levels)
    assert got == pytest.approx(np.abs(coverages - levels).mean())


def test_evenly_spread_pit_values_have_no_calibration_error() -> None:
    pit = (np.arange(1000) + 0.5) / 1000
    assert metrics.calibration_error(pit) < 1e-3
    assert metrics.calibration_error(np.full(10, 0.5)) == pytest.approx(0.5)
    assert metrics.calibration_error([0.75, 0.875], levels=[0.5]) == 0.0  # the edge is inside


def test_intervals() -> None:
    y, lower, upper = [0.0, 1.0, 2.0, 3.0], [0.0, 1.5, 1.0, 0.0], [1.0, 2.0, 2.0, 2.0]
    assert metrics.interval_coverage(y, lower, upper) == 0.5
    assert metrics.interval_width(lower, upper) == pytest.approx(1.125)


@settings(deadline=None, max_examples=20)
@given(offset=FINITE, factor=SCALE, seed=st.integers(0, 100))
def test_change_of_units(offset: float, factor: float, seed: int) -> None:
    y, mean, std = simulated(60, seed)
    y_train = np.random.default_rng(seed).normal(size=40)
    before = metrics.summary(y, mean, std, y_train=y_train)
    after = metrics.summary(
        offset + factor * y, offset + factor * mean, factor * std, y_train=offset + factor * y_train
    )
    for name in ("rmse", "crps", "width_95"):
        assert after[name] == pytest.approx(factor * before[name], rel=1e-9)
    for name in ("smse", "msll", "coverage_95", "calibration_error"):
        assert after[name] == pytest.approx(before[name], rel=1e-7, abs=1e-9)
    assert after["nlpd"] == pytest.approx(before["nlpd"] + np.log(factor), rel=1e-7, abs=1e-9)


def test_the_trivial_forecast_has_smse_one_and_msll_zero() -> None:
    y = np.random.default_rng(1).normal(2.0, 3.0, 50)
    mean, std = np.full(50, y.mean()), np.full(50, y.std())
    assert metrics.smse(y, mean) == pytest.approx(1.0)
    assert metrics.msll(y, mean, std) == pytest.approx(0.0, abs=1e-12)
    assert metrics.smse(y, mean, y_train=2 * y) == pytest.approx(0.25)
    assert metrics.msll(y, mean, std, y_train=2 * y) < -0.05


def test_summary_repeats_the_single_metrics() -> None:
    y, mean, std = simulated(80)
    scores = metrics.summary(y, mean, std)
    half = stats.norm.ppf(0.975) * std
    assert scores == pytest.approx(
        {
            "rmse": metrics.rmse(y, mean),
            "smse": metrics.smse(y, mean),
            "msll": metrics.msll(y, mean, std),
            "nlpd": metrics.nlpd(y, mean, std),
            "crps": metrics.crps(y, mean, std),
            "coverage_95": metrics.interval_coverage(y, mean - half, mean + half),
            "width_95": 2 * half.mean(),
            "calibration_error": metrics.calibration_error(metrics.pit_values(y, mean, std)),
        }
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.nlpd([1.0, 2.0], [1.0], [1.0, 1.0]), "y_true has 2, mean has 1, std has 2"),
        (lambda: metrics.nlpd([1.0, 2.0], [0.0, 0.0], [1.0, 0.0]), "std must be positive, got 0 in row 1"),
        (lambda: metrics.crps([1.0], [0.0], [-0.5]), "std must be positive, got -0.5 in row 0"),
        (lambda: metrics.rmse([1.0, np.nan], [0.0, 0.0]), "y_true must be finite.*nan in row 1"),
        (lambda: metrics.rmse([1.0], [np.inf]), "mean must be finite.*inf in row 0"),
        (lambda: metrics.rmse([[1.0]], [[1.0]]), r"y_true must be one-dimensional.*\(1, 1\)"),
        (lambda: metrics.rmse([], []), "at least one row"),
        (lambda: metrics.rmse(["a"], [1.0]), "y_true has values such as 'a'; expected numbers"),
        (lambda: metrics.smse([1.0, 1.0], [1.0, 1.0]), "y_true has the one value 1.*pass y_train"),
        (lambda: metrics.msll([1.0], [1.0], [1.0], y_train=[2.0, 2.0]), "y_train has the one value 2"),
        (lambda: metrics.interval_coverage([0.0], [1.0], [0.5]), "lower must not exceed upper, got 1 > 0.5"),
        (lambda: metrics.interval_width([0.0], [-1.0]), "lower must not exceed upper"),
        (lambda: metrics.pinball_loss([0.0], [0.0], 1.0), "levels must increase strictly inside"),
        (
            lambda: metrics.crps_from_quantiles([0.0], [[0.0, 1.0]], [0.5, 0.5]),
            "levels must increase strictly",
        ),
        (lambda: metrics.crps_from_quantiles([0.0], [[0.0, 1.0]], [0.5]), r"\(1, 1\), got \(1, 2\)"),
        (lambda: metrics.crps_from_quantiles([0.0], [[np.nan]], [0.5]), "quantiles must be finite"),
        (lambda: metrics.calibration_error([0.5, 1.5]), r"pit must lie in \[0, 1\]"),
    ],
)
def test_bad_input_is_named(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(
    ("y", "few", "frequent"),
    [
        (np.arange(160) % 6, True, True),
        (np.arange(2000) % 40, True, False),
        (np.where(np.arange(1000) < 80, 0.0, np.arange(1000)), False, True),
        (np.where(np.arange(1000) < 40, 0.0, np.arange(1000)), False, False),
        (np.round(np.random.default_rng(0).normal(0, 50, 5000)), False, False),
        (np.arange(12) % 6, False, False),
        (np.full(30, 2.5), True, True),
    ],
)
def test_targets_that_repeat_are_told_from_rounded_ones(y, few, frequent):
    values = metrics.TargetValues.of(y)
    assert (values.has_few, values.has_frequent) == (few, frequent)
    assert values.is_discrete == (few or frequent)
    assert values.n_rows == len(y)
    assert values.n_commonest == int((y == values.commonest).sum()) == np.unique(y, return_counts=True)[1].max()
