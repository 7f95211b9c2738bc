"""Calibrated fits: rows held out and taken in again, rows left out, and what forecasts are then."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from problems import FEW_ROUNDS
from sparsegp import InputError, SparseGPRegressor, load, serving
from sparsegp.calibration.scale import LocalScale
from sparsegp.calibration.trees import Trees
from sparsegp.core.block import Block, MemoryRows
from sparsegp.fit.budget import Budget
from sparsegp.fit.held_out import Residuals, chosen, divided, drawn
from sparsegp.fit.problem import CalibrationOptions

FEW = {"n_inducing": 25, "random_state": 0, "kernel": "se"}


@pytest.fixture
def held_out(options):
    """Rows are held out from 300 rows on."""
    options(calibration={"fewest_to_hold_out": 300, "fewest_for_scale": 200})


def changing_noise(n=1500, seed=0):
    """Noise that is skewed, and five times larger on the right."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (n, 2))
    noise = rng.gamma(2.0, 1.0, n) - 2.0
    return X, np.sin(2.0 * X[:, 0]) + 0.1 * np.where(X[:, 1] > 0.0, 5.0, 1.0) * noise


def coverage(model, X, y, level=0.95):
    low, high = model.predict_interval(X, level)
    return float(((y > low) & (y < high)).mean())


@pytest.mark.usefixtures("brief_learning", "held_out")
@pytest.mark.parametrize("approximation", ["vfe", "fitc", "pic"])
def test_rows_held_out_are_taken_in_again_exactly(approximation):
    X, y = changing_noise(400)
    model = SparseGPRegressor(approximation=approximation, trend=None, **FEW).fit(X, y)
    assert model.info_["calibration"]["held_out"] == 60
    assert model.n_samples_seen_ == 400
    fixed = {"kernel": model.kernel_, "noise_var": model.noise_var_, "inducing": model.inducing_, "optimizer": None}
    labels = {}
    if approximation == "pic":
        labels = {"blocks": model.model_.blocking.nearest(model.scaling_.tensor(X)).numpy()}
    again = SparseGPRegressor(approximation=approximation, trend=None, **fixed).fit(X, y, **labels)
    mine, theirs = (each.predict(X, return_std=True, latent=True, **labels) for each in (model, again))
    np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-8)
    assert np.abs(model.predict(X) - y).mean() < y.std()
    rest = model.forget(X[:50], y[:50])
    assert rest.n_samples_seen_ == 350


@pytest.mark.usefixtures("brief_learning", "held_out")
@pytest.mark.parametrize("approximation", ["vfe", "exact"])
def test_scores_of_rows_left_out_are_those_of_new_rows(approximation):
    """In the units of the target; the first holds rows out, the second leaves each row out."""
    X, y = changing_noise(600)
    new_X, new_y = changing_noise(2000, seed=1)
    model = SparseGPRegressor(approximation=approximation, **FEW).fit(X, 100.0 + 10.0 * y)
    found, error = model.info_["calibration"], model.predict(new_X) - (100.0 + 10.0 * new_y)
    assert found["rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=0.3)
    assert found["r2"] == pytest.approx(1.0 - (error**2).mean() / (100.0 * new_y.var()), abs=0.1)
    assert found["coverage_95"] == pytest.approx(coverage(model, new_X, 100.0 + 10.0 * new_y), abs=0.05)


@pytest.mark.usefixtures("held_out")
@pytest.mark.parametrize("approximation", ["vfe", "pic"])
def test_scale_and_shape_beat_the_gaussian_and_cover(approximation, options):
    options(learning={"rounds": replace(FEW_ROUNDS, n_rows=300)})
    X, y = changing_noise(3000)
    new, truth = changing_noise(4000, seed=1)
    settings = {"approximation": approximation, "n_blocks": 10 if approximation == "pic" else None, **FEW}
    plain = SparseGPRegressor(calibration=None, **settings).fit(X, y)
    shaped = SparseGPRegressor(calibration="shape", **settings).fit(X, y)
    model = SparseGPRegressor(**settings).fit(X, y)
    assert (plain.calibration_, shaped.calibration_.scale) == (None, None)
    nlpd = [-each.log_density(new, truth).mean() for each in (plain, shaped, model)]
    assert nlpd[0] - 0.1 > nlpd[1]
    assert nlpd[1] - 0.1 > nlpd[2]
    # which 450 rows are held out moves the coverage of a fit by .02 to .04
    fits = [model, *(SparseGPRegressor(**{**settings, "random_state": seed}).fit(X, y) for seed in (1, 2, 3))]
    for level in (0.5, 0.8, 0.95):
        covered = np.mean([coverage(each, new, truth, level) for each in fits])
        assert covered == pytest.approx(level, abs=0.047)
    left, right = new[:, 1] < -0.1, new[:, 1] > 0.1
    assert coverage(model, new[left], truth[left]) == pytest.approx(0.95, abs=0.04)
    assert coverage(model, new[right], truth[right]) == pytest.approx(0.95, abs=0.04)


@pytest.fixture(scope="module")
def calibrated():
    from sparsegp.estimators.estimator import Estimator

    before = Estimator.fit_options
    Estimator.fit_options = replace(
        before, calibration=replace(before.calibration, fewest_to_hold_out=300, fewest_for_scale=200)
    )
    try:
        X, y = changing_noise(1500)
        return SparseGPRegressor(approximation="vfe", **FEW).fit(X, y), X, y
    finally:
        Estimator.fit_options = before


def test_a_calibrated_forecast_is_one_distribution(calibrated):
    model, X, y = calibrated
    assert model.calibration_.scale is not None
    forecast = model.forecast(X[:200])
    mean, std = model.predict(X[:200], return_std=True)
    np.testing.assert_allclose(forecast.std, std)
    draws = forecast.sample(20_000, np.random.default_rng(0))
    np.testing.assert_allclose(draws.mean(1), mean, atol=0.05 * std.max())
    np.testing.assert_allclose(draws.std(1), std, rtol=0.05)
    levels = np.array([0.01, 0.3, 0.5, 0.9])
    quantiles = model.predict_quantiles(X[:200], levels)
    assert (np.diff(quantiles, axis=1) > 0).all()
    for k, level in enumerate(levels):
        np.testing.assert_allclose(forecast.cdf(quantiles[:, k]), level, atol=1e-9)
    # the density is the slope of the distribution
    step = 1e-5 * std
    slope = (forecast.cdf(y[:200] + step) - forecast.cdf(y[:200] - step)) / (2.0 * step)
    np.testing.assert_allclose(np.exp(forecast.log_density(y[:200])), slope, rtol=1e-3, atol=1e-6)
    # E|Y - y| - E|Y - Y'|/2
    other = forecast.sample(20_000, np.random.default_rng(1))
    score = np.abs(draws - y[:200, None]).mean(1) - 0.5 * np.abs(draws - other).mean(1)
    np.testing.assert_allclose(forecast.crps(y[:200]), score, rtol=0.1, atol=0.02)


def test_components_add_up_and_f_is_that_of_the_model(calibrated):
    model, X, _ = calibrated
    mean, epistemic, aleatoric = model.predict_components(X)
    assert (aleatoric >= 0.0).all()
    np.testing.assert_allclose(np.hypot(epistemic, aleatoric), model.predict(X, return_std=True)[1])
    f_mean, f_std = model.predict(X, return_std=True, latent=True)
    raw = model.model_.forecast(model.scaling_.tensor(X), None, model.scaling_)
    np.testing.assert_array_equal(f_mean, raw.mean)
    np.testing.assert_array_equal(f_std, raw.f_std)
    np.testing.assert_array_equal(mean, raw.mean)


def test_the_joint_forecast_has_the_calibrated_margins(calibrated):
    model, X, _ = calibrated
    _, cov = model.predict(X[:30], return_cov=True)
    np.testing.assert_allclose(np.sqrt(np.diag(cov)), model.predict(X[:30], return_std=True)[1])
    assert np.linalg.eigvalsh(cov).min() > -1e-10
    draws = model.sample_y(X[:30], 20_000, random_state=0)
    forecast = model.forecast(X[:30])
    for level in (0.025, 0.5, 0.975):
        below = (draws < forecast.quantiles([level])).mean(1)
        np.testing.assert_allclose(below, level, atol=0.01)


def test_a_file_and_a_server_say_the_same(calibrated, tmp_path):
    model, X, y = calibrated
    model.save(tmp_path / "model.sgp")
    again, served = load(tmp_path / "model.sgp"), serving.load(tmp_path / "model.sgp")
    levels = [0.05, 0.5, 0.99]
    np.testing.assert_array_equal(again.predict_quantiles(X, levels), model.predict_quantiles(X, levels))
    np.testing.assert_array_equal(again.log_density(X, y), model.log_density(X, y))
    served_quantiles = served.predict_quantiles(X, levels)
    np.testing.assert_allclose(served_quantiles, model.predict_quantiles(X, levels), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(served.predict(X, return_std=True)[1], model.predict(X, return_std=True)[1], rtol=1e-7)
    forecast = model.forecast(X)
    np.testing.assert_allclose(served.log_density(X, y), forecast.log_density(y), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(served.cdf(X, y), forecast.cdf(y), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(served.crps(X, y), forecast.crps(y), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(served.predict_interval(X, 0.8), model.predict_interval(X, 0.8), rtol=1e-7)
    assert served.sample(X[:3], 5, random_state=0).shape == (3, 5)


@pytest.mark.usefixtures("brief_learning")
@pytest.mark.parametrize("approximation", ["exact", "sod", "pitc", "block-pep", "vfe", "sor"])
def test_few_rows_are_left_out_in_turn(approximation):
    X, y = changing_noise(120)
    model = SparseGPRegressor(approximation=approximation, **FEW).fit(X, y)
    assert model.info_["calibration"]["left_out"] == 120
    assert model.calibration_.scale is None
    assert np.isfinite(model.log_density(X, y)).all()


def test_what_the_user_knows_is_trusted():
    X, y = changing_noise(100)
    given = {"kernel": "matern32", "approximation": "vfe", "n_inducing": 20}
    assert SparseGPRegressor(optimizer=None, **given).fit(X, y).calibration_ is None
    assert SparseGPRegressor(**given).fit(X, y, noise_var=np.full(100, 0.1)).calibration_ is None
    assert SparseGPRegressor(optimizer=None, calibration="shape", **given).fit(X, y).calibration_ is not None
    with pytest.raises(InputError, match="calibration"):
        SparseGPRegressor(calibration="yes").fit(X, y)


def test_rows_with_equal_inputs_are_held_out_together():
    rng = np.random.default_rng(0)
    X = np.repeat(rng.standard_normal((200, 3)), 5, axis=0)[rng.permutation(1000)]
    rows = MemoryRows(Block(torch.from_numpy(X), torch.zeros(1000, dtype=torch.float64)))
    train, held = divided(rows, CalibrationOptions(), rng)
    assert len(train) + len(held) == 1000
    assert 100 <= len(held) <= 150
    mine, theirs = ({row.tobytes() for row in part.all.X.numpy()} for part in (train, held))
    assert not mine & theirs


def test_residuals_know_their_twins_and_stay_with_them():
    """Half of them are drawn for the local scale and the others judge it: equal rows are on one side."""
    rng = np.random.default_rng(1)
    X = torch.from_numpy(np.repeat(rng.standard_normal((100, 2)), 3, axis=0)[rng.permutation(300)])
    mask = drawn(X, 150, rng)
    assert 120 <= mask.sum() <= 150
    first, second = ({row.tobytes() for row in X.numpy()[side]} for side in (mask, ~mask))
    assert not first & second
    numbers = np.zeros(300)
    twins = Residuals(X, numbers, numbers, numbers + 1.0).twins
    assert [len(np.unique(twins)), len(np.unique(np.column_stack([twins, X.numpy()]), axis=0))] == [100, 100]
    assert Residuals(torch.rand(9, 2), *np.zeros((3, 9))).twins is None


@pytest.mark.parametrize("value", [0.0, 3.0], ids=["zeros", "ones"])
def test_inputs_that_are_all_equal_are_still_divided(value):
    rows = MemoryRows(Block(torch.full((500, 2), value), torch.zeros(500)))
    train, held = divided(rows, CalibrationOptions(), np.random.default_rng(0))
    assert (len(train), len(held)) == (425, 75)


@pytest.mark.usefixtures("brief_learning", "held_out")
@pytest.mark.parametrize(
    "spoiled",
    [
        lambda y: np.zeros_like(y),
        lambda y: np.sign(y),
        lambda y: np.where(np.arange(len(y)) == 7, 1e6, y),
        lambda y: np.round(y),
    ],
    ids=["constant", "two values", "an outlier", "whole numbers"],
)
def test_odd_targets_give_finite_positive_forecasts(spoiled):
    X, y = changing_noise(400)
    y = spoiled(y)
    model = SparseGPRegressor(approximation="vfe", **FEW).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std > 0.0).all()
    assert np.isfinite(model.log_density(X, y)).all()


@pytest.mark.usefixtures("brief_learning", "held_out")
def test_constant_columns_and_weights_of_zero():
    X, y = changing_noise(400)
    X = np.column_stack([X, np.ones(400)])
    weight = np.where(np.arange(400) < 40, 0.0, 1.0)
    model = SparseGPRegressor(approximation="vfe", **FEW).fit(X, y, sample_weight=weight)
    assert model.info_["calibration"]["held_out"] == 54
    assert (model.predict(X, return_std=True)[1] > 0.0).all()


def test_a_scale_that_does_not_help_is_not_used():
    rng = np.random.default_rng(0)
    n = 800
    seen = Residuals(torch.from_numpy(rng.standard_normal((n, 2))), rng.standard_normal(n), np.zeros(n), np.ones(n))
    halves = Trees(0.0, np.zeros((1, 1), dtype=np.int64), np.zeros((1, 1)), np.array([[-1.5, 1.5]]))
    wild = LocalScale(halves)
    calibration, report = chosen(seen, wild, CalibrationOptions(), rng)
    assert calibration.scale is None
    assert report["kind"] == "shape"


@pytest.mark.usefixtures("held_out")
def test_a_model_without_the_rows_held_out_does_not_claim_all_of_them(monkeypatch):
    """The time is up after the fit: the rows held out have been looked at, and are not in the model."""
    monkeypatch.setattr(Budget, "pass_seconds", lambda *_: np.inf)
    X, y = changing_noise(400)
    given = {"approximation": "vfe", "optimizer": None, "calibration": "shape", "n_inducing": 20}
    model = SparseGPRegressor(kernel="se", **given).fit(X, y)
    assert model.n_samples_seen_ == 340
    assert model.calibration_ is not None
