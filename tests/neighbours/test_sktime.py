"""A forecaster of sktime: its contract tests, and forecasts that are those of the estimators."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sktime")

from sktime.utils.estimator_checks import check_estimator

from sparsegp import InputError, SparseGPRegressor
from sparsegp.neighbours.sktime import ReductionForecaster

pytestmark = pytest.mark.filterwarnings("ignore:.*remember_data.*", "ignore::FutureWarning")
QUICK = {"approximation": "exact", "kernel": "se", "optimizer": None, "noise_var": 0.05, "random_state": 0}


def series(n=120):
    rng = np.random.default_rng(0)
    index = pd.period_range("2010-01", periods=n, freq="M")
    return pd.Series(np.sin(np.arange(n) * 2 * np.pi / 12) + 0.2 * rng.standard_normal(n), index=index, name="sales")


@pytest.mark.slow
def test_the_contract_of_sktime_holds():
    results = check_estimator(ReductionForecaster, raise_exceptions=False, verbose=False)
    failed = {name: result for name, result in results.items() if result != "PASSED" and "Skip" not in str(result)}
    assert failed == {}


@pytest.mark.parametrize("name", ["test_predict_quantiles", "test_fit_idempotent"])
def test_some_of_the_contract_of_sktime_holds(name):
    results = check_estimator(ReductionForecaster, raise_exceptions=True, verbose=False, tests_to_run=name)
    assert results
    assert all(result == "PASSED" for result in results.values())


def test_forecasts_are_those_of_a_model_for_each_step():
    y = series()
    found = ReductionForecaster(SparseGPRegressor(**QUICK), window_length=12).fit(y[:100], fh=[1, 3])
    assert sorted(found.estimators_) == [1, 3]
    values = y.to_numpy()
    X = np.array([values[t : t + 12] for t in range(100 - 12 - 2)])
    by_hand = SparseGPRegressor(**QUICK).fit(X, values[14:100])
    last = values[88:100][None]
    mean = found.predict()
    assert list(mean.index) == [y.index[100], y.index[102]]
    assert mean.iloc[1] == pytest.approx(by_hand.predict(last)[0])
    interval = found.predict_interval(coverage=0.8)
    np.testing.assert_allclose(interval.iloc[1], np.ravel(by_hand.predict_interval(last, 0.8)))
    assert list(interval.columns) == [("sales", 0.8, "lower"), ("sales", 0.8, "upper")]
    quantiles = found.predict_quantiles(alpha=[0.1, 0.5])
    np.testing.assert_allclose(quantiles.iloc[1], by_hand.predict_quantiles(last, [0.1, 0.5])[0])


def test_intervals_hold_what_comes():
    y, inside = series(200), []
    steps = list(range(1, 13))
    for start in range(100, 180, 12):
        found = ReductionForecaster(SparseGPRegressor(**QUICK), window_length=12).fit(y[:start], fh=steps)
        ends = found.predict_interval(coverage=0.9).to_numpy()
        seen = y[start : start + 12].to_numpy()
        inside += list((ends[: len(seen), 0] <= seen) & (seen <= ends[: len(seen), 1]))
    assert 0.8 < np.mean(inside) <= 1.0


def test_series_and_horizons_that_do_not_go_are_refused():
    y = series(12)
    with pytest.raises(InputError, match="A series of 12 values has 0 examples of 10 values and the one 3 steps later"):
        ReductionForecaster(SparseGPRegressor(**QUICK)).fit(y, fh=[3])
    with pytest.raises(InputError, match="or None; got str"):
        ReductionForecaster("gp").fit(y, fh=[1])
    with pytest.raises(InputError, match="window_length must be a whole number of at least 1; got 0"):
        ReductionForecaster(SparseGPRegressor(**QUICK), window_length=0).fit(y, fh=[1])
    with pytest.raises(NotImplementedError):
        ReductionForecaster(SparseGPRegressor(**QUICK), window_length=3).fit(y, fh=[-1, 1]).predict()
