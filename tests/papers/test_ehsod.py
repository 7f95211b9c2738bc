"""The empirical heteroscedastic GP on a subset of data."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator

from papers.ehsod import EmpiricalHeteroscedasticRegressor
from test_heteroscedastic_regressor import noise_std, wave


def test_empirical_baseline_sees_the_noise_too():
    X, y = wave(300)
    Xs, ys = wave(400, seed=1)
    model = EmpiricalHeteroscedasticRegressor(n_subset=200, random_state=0).fit(X, y)
    mean, std = model.predict(Xs, return_std=True)
    assert np.abs(np.log(std / noise_std(Xs))).mean() < 0.5
    assert 0.85 <= np.mean(np.abs(ys - mean) <= 1.96 * std) <= 1.0


@pytest.mark.slow
def test_scikit_learn_conformance_of_the_baseline():
    check_estimator(EmpiricalHeteroscedasticRegressor(n_subset=30))
