"""Regressors of skpro: its own contract tests, and forecasts that are those of the estimator."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("skpro")

from skpro.metrics import CRPS
from skpro.utils.estimator_checks import check_estimator

from sparsegp import HeteroscedasticGPRegressor, InputError, SparseGPRegressor, kernels
from sparsegp.neighbours.skpro import ForecastDistribution, ProbaRegressor


def rows(n=80, seed=0):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.uniform(-3, 3, (n, 2)), columns=["a", "b"], index=np.arange(n) + 100)
    y = np.sin(X["a"]) + 0.3 * rng.standard_t(4, n)
    return X, y.to_frame("target")


MODELS = {
    "calibrated": SparseGPRegressor("se", approximation="vfe", n_inducing=12, calibration="shape", random_state=0),
    "learned noise": HeteroscedasticGPRegressor(
        kernel=kernels.SquaredExponential(1.0, 1.0), optimizer=None, n_inducing=12, n_noise_inducing=5, noise_mean=-3.0
    ),
}


@pytest.mark.parametrize("cls", [ProbaRegressor, ForecastDistribution])
def test_the_contract_of_skpro_holds(cls):
    results = check_estimator(cls, raise_exceptions=False, verbose=False)
    failed = {name: result for name, result in results.items() if result != "PASSED" and "Skip" not in str(result)}
    assert failed == {}
    assert len(results) > 20


@pytest.fixture(scope="module", params=MODELS)
def fitted(request):
    return ProbaRegressor(MODELS[request.param]).fit(*rows())


def test_a_distribution_is_the_forecast(fitted):
    X, y = rows(20, seed=1)
    forecast, found = fitted.estimator_.forecast(X), fitted.predict_proba(X)
    target = y["target"].to_numpy()
    assert list(found.index) == list(X.index)
    assert list(found.columns) == ["target"]
    pairs = [
        (found.mean(), forecast.mean),
        (found.var(), forecast.var),
        (found.log_pdf(y), forecast.log_density(target)),
        (found.cdf(y), forecast.cdf(target)),
        (found.ppf(0.9), forecast.quantiles([0.9])[:, 0]),
    ]
    for own, expected in pairs:
        np.testing.assert_allclose(own.to_numpy()[:, 0], expected, rtol=1e-7)
    crps = CRPS()(y, found)
    assert crps == pytest.approx(forecast.crps(target).mean(), rel=1e-7)
    ends = fitted.predict_interval(X, coverage=0.8).to_numpy()
    np.testing.assert_allclose(ends, np.column_stack(forecast.interval(0.8)), rtol=1e-7)
    np.testing.assert_allclose(fitted.predict(X)["target"], forecast.mean)
    np.testing.assert_allclose(found.iloc[[3]].mean(), forecast.mean[3:4, None])


def test_another_estimator_is_refused():
    with pytest.raises(InputError, match="or None; got str"):
        ProbaRegressor("gp").fit(*rows())
