"""Scorers in scikit-learn's searches, and Pipelines that keep their intervals and go into files."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

import sparsegp
from sparsegp import InputError, SparseGPRegressor, kernels, metrics

KERNEL = kernels.Matern32(1.3, [0.8, 1.7])


def rows(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2)) * [1.0, 50.0] + [0.0, 1000.0]
    y = np.sin(2 * X[:, 0]) + 0.02 * (X[:, 1] - 1000) + 0.2 * rng.standard_normal(n)
    return pd.DataFrame(X, columns=["a", "b"]), y


def gp(**changed):
    given = {"kernel": KERNEL, "approximation": "vfe", "n_inducing": 25, "noise_var": 0.04, "optimizer": None}
    return SparseGPRegressor(**{**given, "random_state": 0, **changed})


@pytest.fixture(scope="module")
def calibrated():
    steps = make_pipeline(StandardScaler(), gp(optimizer="lbfgs", kernel="se", calibration="shape", n_inducing=15))
    return steps.fit(*rows())


def test_scorers_are_the_scores_of_the_forecasts(calibrated):
    X, y = rows(80, seed=1)
    forecast = calibrated[-1].forecast(calibrated[:-1].transform(X))
    assert metrics.nlpd_scorer(calibrated, X, y) == pytest.approx(forecast.log_density(y).mean())
    assert metrics.crps_scorer(calibrated, X, y) == pytest.approx(-forecast.crps(y).mean())
    inside = metrics.interval_coverage(y, *forecast.interval(0.8))
    assert metrics.CoverageScorer(0.8)(calibrated, X, y) == pytest.approx(-abs(inside - 0.8))
    weight = np.r_[np.ones(40), np.zeros(40)]
    half = metrics.crps_scorer(calibrated, X[:40], y[:40])
    assert metrics.crps_scorer(calibrated, X, y, sample_weight=weight) == pytest.approx(half)
    assert pickle.loads(pickle.dumps(metrics.coverage_scorer)) == metrics.coverage_scorer


def test_a_search_takes_the_better_noise_by_density():
    search = GridSearchCV(
        make_pipeline(StandardScaler(), gp(approximation="exact", kernel=kernels.SquaredExponential(1.5, [0.5, 3.0]))),
        {"sparsegpregressor__noise_var": [1e-6, 0.04, 25.0]},
        scoring={"nlpd": metrics.nlpd_scorer, "crps": metrics.crps_scorer, "coverage": metrics.coverage_scorer},
        refit="nlpd",
        cv=3,
    )
    search.fit(*rows())
    assert search.best_params_ == {"sparsegpregressor__noise_var": 0.04}
    assert search.cv_results_["mean_test_coverage"].argmax() == 1
    alone = cross_validate(gp(), *rows(), scoring=metrics.nlpd_scorer, cv=3, error_score="raise")
    assert np.isfinite(alone["test_score"]).all()


def test_an_estimator_without_forecasts_is_refused():
    model = make_pipeline(StandardScaler(), LinearRegression()).fit(*rows())
    with pytest.raises(InputError, match="LinearRegression, which predicts numbers without their distribution"):
        metrics.nlpd_scorer(model, *rows())
    with pytest.raises(InputError, match=r"strictly between 0 and 1, as 0.95 for 95%; got 95"):
        metrics.CoverageScorer(95)


def test_a_wrapped_pipeline_answers_as_its_last_step(calibrated):
    X, y = rows(30, seed=2)
    wrapped, inner = sparsegp.wrap(calibrated), calibrated[:-1].transform(X)
    last = calibrated[-1]
    np.testing.assert_array_equal(wrapped.predict(X), calibrated.predict(X))
    np.testing.assert_array_equal(wrapped.predict_interval(X, 0.8), last.predict_interval(inner, 0.8))
    np.testing.assert_array_equal(wrapped.predict_quantiles(X, [0.1, 0.7]), last.predict_quantiles(inner, [0.1, 0.7]))
    np.testing.assert_array_equal(wrapped.predict(X, return_std=True), last.predict(inner, return_std=True))
    np.testing.assert_array_equal(wrapped.log_density(X, y), last.log_density(inner, y))
    np.testing.assert_array_equal(wrapped.sample_y(X, 2, 0), last.sample_y(inner, 2, 0))
    assert wrapped.score(X, y) == calibrated.score(X, y)
    assert [str(found) for found in wrapped.diagnose(X, y)] == [str(found) for found in last.diagnose(inner, y)]


def test_a_wrapped_pipeline_is_an_estimator():
    wrapped = sparsegp.wrap(make_pipeline(StandardScaler(), gp()))
    fresh = clone(wrapped).set_params(pipeline__sparsegpregressor__noise_var=0.09).fit(*rows())
    assert fresh.estimator_.noise_var_ == pytest.approx(0.09)
    assert not hasattr(wrapped.pipeline[-1], "fitted_")
    search = GridSearchCV(wrapped, {"pipeline__sparsegpregressor__noise_var": [1e-6, 0.04]}, cv=3)
    assert search.fit(*rows()).best_estimator_.predict_interval(rows()[0])[0].shape == (120,)


SCALERS = {
    "standard": [StandardScaler()],
    "no mean": [StandardScaler(with_mean=False)],
    "no std": [StandardScaler(with_std=False)],
    "ranges": [MinMaxScaler((-2.0, 5.0))],
    "robust": [RobustScaler()],
    "two": [MaxAbsScaler(), "passthrough", StandardScaler()],
}


@pytest.mark.parametrize("steps", SCALERS.values(), ids=SCALERS)
def test_a_file_of_a_pipeline_is_an_estimator_of_its_rows(steps, tmp_path):
    """Also without torch, and in the units of the rows that the Pipeline takes."""
    X, _ = rows(30, seed=2)
    wrapped = sparsegp.wrap(make_pipeline(*steps, gp())).fit(*rows())
    wrapped.save(tmp_path / "model.sgp")
    loaded, light = sparsegp.load(tmp_path / "model.sgp"), sparsegp.serving.load(tmp_path / "model.sgp")
    assert list(loaded.feature_names_in_) == ["a", "b"]
    for model in (loaded, light):
        np.testing.assert_allclose(model.predict(X), wrapped.predict(X), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(model.predict_interval(X), wrapped.predict_interval(X), rtol=1e-9, atol=1e-9)


def test_a_calibrated_pipeline_goes_into_a_file_and_on_from_there(calibrated, tmp_path):
    X, y = rows(30, seed=2)
    sparsegp.wrap(calibrated).save(tmp_path / "model.sgp")
    loaded = sparsegp.load(tmp_path / "model.sgp")
    np.testing.assert_allclose(loaded.predict_interval(X), sparsegp.wrap(calibrated).predict_interval(X), rtol=1e-9)
    before = loaded.n_samples_seen_
    assert loaded.partial_fit(X, y).n_samples_seen_ == before + 30


def test_steps_that_are_code_stay_out_of_files(tmp_path):
    wrapped = sparsegp.wrap(make_pipeline(PCA(2), gp())).fit(*rows())
    with pytest.raises(InputError, match=r"'pca' of the Pipeline is a PCA.*joblib.dump"):
        wrapped.save(tmp_path / "model.sgp")
    assert not (tmp_path / "model.sgp").exists()
    clipped = sparsegp.wrap(make_pipeline(MinMaxScaler(clip=True), gp())).fit(*rows())
    with pytest.raises(InputError, match="clip=False"):
        clipped.to_estimator()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (gp(), "got SparseGPRegressor. An estimator alone needs no wrapping"),
        (make_pipeline(StandardScaler(), LinearRegression()), "last step of the Pipeline must be .* LinearRegression"),
    ],
)
def test_what_is_no_pipeline_of_ours_is_refused(given, says):
    with pytest.raises(InputError, match=says):
        sparsegp.wrap(given)
