"""What a notebook shows of an estimator before and after the fit."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import BaseEstimator

import sparsegp
from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, SparseGPRegressor, kernels
from sparsegp.estimators.summary import NO_SCORES, summary

FIXED = {"kernel": kernels.SquaredExponential(1.0, 0.4), "optimizer": None}


def rows(n=150):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, 1))
    return X, np.sin(6 * X[:, 0]) + 0.2 * rng.standard_normal(n)


def test_before_the_fit_it_is_scikit_learns_own():
    model = SparseGPRegressor()
    plain = BaseEstimator._repr_mimebundle_(model)["text/html"]
    assert "Scores" not in plain
    shown = model._repr_html_()
    assert ("<table" in shown, "Scores" in shown) == ("<table" in plain, False)


@pytest.mark.parametrize(
    "model",
    [
        SparseGPRegressor(approximation="vfe", n_inducing=12, noise_var=0.04, **FIXED),
        HeteroscedasticGPRegressor(n_inducing=12, n_noise_inducing=5, noise_mean=-3.0, **FIXED),
        CommitteeGPRegressor(n_experts=2, noise_var=0.04, **FIXED),
    ],
    ids=lambda model: type(model).__name__,
)
def test_after_the_fit_every_estimator_says_what_it_is(model):
    model.fit(*rows())
    for shown in (model._repr_html_(), model._repr_mimebundle_()["text/html"]):
        for part in ("150 rows, 1 columns", "Kernel", NO_SCORES):
            assert part in shown
        assert shown.count("<table") >= 1


def test_choices_and_scores_of_a_fit_survive_a_file(tmp_path):
    model = SparseGPRegressor("se", n_inducing=12, random_state=0).fit(*rows())
    choice = model.info_["choice"]["reason"]
    assert choice in summary(model)["Model"]
    assert "calibrated on rows left out: one shape for all rows" in summary(model)["Forecasts"]
    model.save(tmp_path / "model.sgp")
    assert summary(sparsegp.load(tmp_path / "model.sgp")) == summary(model)


def test_scores_are_those_of_rows_left_out_and_text_is_text():
    model = SparseGPRegressor(approximation="vfe", n_inducing=12, noise_var=0.04, **FIXED).fit(*rows())
    found = {"held_out": 1500, "rmse": 0.25, "r2": 0.9, "coverage_95": 0.948}
    info = {**model.info_, "calibration": found, "choice": {"reason": "<b>best</b>"}, "budget": {"fraction": 0.25}}
    model.fitted_ = replace(model.fitted_, info=info)
    told = summary(model)
    assert told["Scores"] == "RMSE 0.25, R² 0.900, 94.8% inside the 95% interval, on 1,500 rows held out of the fit"
    assert "rests on 25.0% of its rows" in told["Unfinished"]
    assert "&lt;b&gt;best" in model._repr_html_()
