"""Rows with missing numbers, for models that were fitted to columns of numbers without gaps."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest

import sparsegp
from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, SparseGPRegressor, kernels, serving
from sparsegp.calibration.calibration import Calibration
from sparsegp.calibration.mixture import Shape
from sparsegp.data.completion import N_DRAWS, Completion
from sparsegp.data.open import OpeningOptions
from sparsegp.errors import InputError
from sparsegp.fit.posing import FitOptions

pytestmark = pytest.mark.filterwarnings("ignore:Values that the fit has not met")


def rows(n=300, seed=0):
    """x2 hardly differs from x0, x1 matters, x3 does not."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)) * [1.0, 10.0, 1.0, 1.0] + [0.0, 50.0, 0.0, 0.0]
    X[:, 2] = X[:, 0] + 0.1 * X[:, 2]
    return X, 7.0 + np.sin(2.0 * X[:, 0]) + 0.1 * (X[:, 1] - 50.0) + 0.1 * rng.standard_normal(n)


def without(X, column):
    X = X.copy()
    X[:, column] = np.nan
    return X


def regressor(**changes):
    chosen = {"approximation": "vfe", "n_inducing": 60, "random_state": 0, "trend": None, **changes}
    return SparseGPRegressor(kernels.Matern32(1.0, [1.0] * 4), **chosen)


@pytest.fixture(scope="module")
def model():
    """Calibrated, with hyper-parameters that were learned."""
    return regressor(calibration="auto").fit(*rows(600))


FIXED = {"n_inducing": 20, "optimizer": None, "random_state": 0}
KERNEL = kernels.Matern32(2.0, [1.0, 20.0, 1.0, 5.0])
MODELS = {
    "calibrated": lambda: regressor(calibration="auto").fit(*rows()),
    "exact": lambda: SparseGPRegressor(KERNEL, "exact", noise_var=0.05, **FIXED).fit(*rows()),
    "blocks": lambda: SparseGPRegressor(KERNEL, "pic", noise_var=0.05, n_blocks=4, **FIXED).fit(*rows()),
    "float32": lambda: SparseGPRegressor(KERNEL, "vfe", noise_var=0.05, dtype="float32", **FIXED).fit(*rows()),
    "not standardised": lambda: SparseGPRegressor(KERNEL, "vfe", noise_var=0.05, normalize=False, **FIXED).fit(*rows()),
    "learned noise": lambda: HeteroscedasticGPRegressor(KERNEL, n_noise_inducing=6, **FIXED).fit(*rows()),
    "committee": lambda: CommitteeGPRegressor(KERNEL, n_experts=3, **FIXED).fit(*rows()),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_forecast_is_the_average_over_what_the_row_may_be(name):
    model, new = MODELS[name](), rows(12, seed=1)[0]
    new[2, 1] = new[5, [0, 2]] = new[7] = np.nan
    found, scaling = model.forecast(new), model.scaling_
    done = model.fitted_.columns.completion.completed(scaling.inputs(new))
    single = model.forecast(scaling.raw_inputs(done.drawn))
    means = single.mean.reshape(-1, N_DRAWS)
    tolerance = 1e-4 if name == "float32" else 1e-8
    np.testing.assert_allclose(found.mean[[2, 5, 7]], means.mean(axis=1), rtol=tolerance)
    var = (single.std**2).reshape(means.shape).mean(axis=1) + means.var(axis=1)
    np.testing.assert_allclose(found.std[[2, 5, 7]], np.sqrt(var), rtol=tolerance)
    y = np.full(12, 7.5)
    density = np.exp(single.log_density(np.full(means.size, 7.5))).reshape(means.shape).mean(axis=1)
    np.testing.assert_allclose(np.exp(found.log_density(y)[[2, 5, 7]]), density, rtol=10 * tolerance)
    # means alone are computed in another order, with complete rows too
    np.testing.assert_allclose(model.predict(new), found.mean, rtol=max(tolerance, 1e-6))
    complete = np.isfinite(new).all(axis=1)
    alone = model.forecast(new[complete])
    np.testing.assert_allclose(found.interval(0.9)[0][complete], alone.interval(0.9)[0], rtol=tolerance)
    np.testing.assert_allclose(found.f_std**2 + found.noise_std**2, found.std**2, rtol=tolerance)


def test_the_forecast_is_wider_where_what_matters_is_missing(model):
    X, _ = rows(200, seed=1)
    whole = model.forecast(X).std
    matters, told_by_another, says_nothing = (model.forecast(without(X, column)).std for column in (1, 0, 3))
    assert matters.mean() > 5.0 * whole.mean()
    assert matters.mean() == pytest.approx(1.0, abs=0.15)
    assert told_by_another.mean() < 3.0 * whole.mean()
    assert says_nothing.mean() < 1.3 * whole.mean()


def test_intervals_hold_what_they_promise(model):
    X, y = rows(800, seed=2)
    gaps = np.random.default_rng(3).random(X.shape) < 0.3
    X[gaps] = np.nan
    hit = gaps.any(axis=1)
    lower, upper = model.predict_interval(X, 0.9)
    inside = (lower < y) & (y < upper)
    assert 0.86 < inside[hit].mean() < 0.95
    known = -model.log_density(X, y)[hit].mean()
    filled = -model.log_density(np.where(gaps, X[~hit].mean(axis=0), X), y)[hit].mean()
    assert known < filled - 1.0


def test_files_and_serving_have_the_same_forecast(tmp_path):
    model = SparseGPRegressor(KERNEL, "vfe", noise_var=0.05, **FIXED).fit(*rows(600))
    shape = Shape(np.array([0.3, 0.7]), np.array([0.7, -0.3]), np.array([1.5, 0.6]))
    model.fitted_ = replace(model.fitted_, calibration=Calibration(shape, n_rows=100))
    X, y = rows(40, seed=1)
    X[::3, 1] = X[1::7, 0] = X[1::7, 2] = np.nan
    found = model.forecast(X)
    model.save(tmp_path / "model.sgp")
    loaded, light = sparsegp.load(tmp_path / "model.sgp").forecast(X), serving.load(tmp_path / "model.sgp").forecast(X)
    for answer in ("mean", "std", "f_std"):
        np.testing.assert_array_equal(getattr(loaded, answer), getattr(found, answer))
        np.testing.assert_allclose(getattr(light, answer), getattr(found, answer), rtol=1e-8)
    for question in ("log_density", "cdf", "crps"):
        np.testing.assert_allclose(getattr(light, question)(y), getattr(found, question)(y), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(light.quantiles([0.01, 0.6]), found.quantiles([0.01, 0.6]), rtol=1e-8)
    np.testing.assert_allclose(light.interval(0.9), found.interval(0.9), rtol=1e-8)
    np.testing.assert_allclose(serving.load(tmp_path / "model.sgp").predict(X), model.predict(X), rtol=1e-8)
    draws = light.sample(20_000, np.random.default_rng(0))
    np.testing.assert_allclose(draws.std(axis=1), found.std, rtol=0.06)
    np.testing.assert_allclose(light.quantiles([0.5])[:, 0], np.median(draws, axis=1), atol=0.1)


def test_a_file_without_a_completion_refuses_as_before(model, tmp_path):
    old = sparsegp.load(_saved(model, tmp_path))
    old.fitted_ = replace(old.fitted_, columns=replace(old.fitted_.columns, completion=None))
    X = without(rows(3)[0], 2)
    old.save(tmp_path / "old.sgp")
    for one in (old, sparsegp.load(tmp_path / "old.sgp")):
        with pytest.raises(InputError, match=r"NaN: column 2, row 0; 3 of 3 rows.*no value was missing"):
            one.predict(X)
    with pytest.raises(InputError, match="not finite"):
        serving.load(tmp_path / "old.sgp").predict(X)


def _saved(model, folder):
    model.save(folder / "model.sgp")
    return folder / "model.sgp"


@pytest.mark.filterwarnings("default:Values that the fit has not met")
def test_the_warning_counts_the_rows_of_each_column(model, tmp_path):
    X, _ = rows(10)
    X[:4, 1] = X[2:5, 3] = np.nan
    said = r"'x1' in 4 of 10 rows, 'x3' in 3 of 10 rows\. The forecasts of these rows are wider"
    for one in (model, serving.load(_saved(model, tmp_path))):
        with pytest.warns(UserWarning, match=said):
            one.predict(X)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, "parquet"])
def test_tables_and_files_with_gaps(frame, tmp_path):
    X, y = rows()
    names = ["a", "b", "c", "d"]
    gp = regressor(optimizer=None, noise_var=0.05).fit(pd.DataFrame(X, columns=names), y)
    gaps = without(X[:20], 1)
    if frame == "parquet":
        table = tmp_path / "rows.parquet"
        pd.DataFrame(gaps, columns=names).to_parquet(table)
    else:
        table = frame(dict(zip(names, gaps.T, strict=True)))
        table = table.fill_nan(None) if frame is pl.DataFrame else table
    np.testing.assert_allclose(gp.predict(table), gp.predict(pd.DataFrame(gaps, columns=names)), rtol=1e-9)
    assert np.isfinite(gp.predict(table)).all()


def test_rows_read_in_passes_know_their_columns_too():
    class Small(SparseGPRegressor):
        fit_options = FitOptions(opening=OpeningOptions(most_entries=200))

    X, y = rows()
    options = {"approximation": "vfe", "noise_var": 0.05, **FIXED}
    read = Small(KERNEL, **options).fit(pd.DataFrame(X, columns=list("abcd")).assign(y=y), target="y")
    assert isinstance(read.fitted_.columns.completion, Completion)
    held = SparseGPRegressor(KERNEL, **options).fit(X, y)
    gaps = pd.DataFrame(without(X[:30], 1), columns=list("abcd"))
    # the sample of the pass is smaller than the rows
    np.testing.assert_allclose(
        read.predict(gaps, return_std=True)[1], held.predict(gaps.to_numpy(), return_std=True)[1], rtol=0.5
    )


def test_updates_keep_what_numbers_may_be_and_learn_nothing_from_gaps():
    X, y = rows()
    gp = regressor(optimizer=None, noise_var=0.05).fit(X[:200], y[:200])
    before = gp.fitted_.columns.completion
    with pytest.raises(InputError, match="no value was missing"):
        gp.partial_fit(without(X[200:], 1), y[200:])
    gp.partial_fit(X[200:], y[200:])
    assert gp.fitted_.columns.completion is before
    assert np.isfinite(gp.forecast(without(X[:5], 1)).std).all()


def test_columns_with_gaps_in_the_fit_have_indicators_instead():
    X, y = rows()
    X[::7, 1] = np.nan
    gp = regressor(optimizer=None, noise_var=0.05)
    gp.kernel = "matern32"
    assert gp.fit(X, y).fitted_.columns.completion is None


def test_draws_jointly_with_gaps_are_refused(model):
    X = without(rows(5)[0], 1)
    for ask in (lambda: model.sample_y(X), lambda: model.predict(X, return_cov=True)):
        with pytest.raises(InputError, match="no value was missing"):
            ask()
