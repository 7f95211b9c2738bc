"""SHAP values of mean and std, and MAPIE around an estimator."""

import numpy as np
import pytest

from sparsegp import InputError, SparseGPRegressor, kernels

KERNEL = kernels.SquaredExponential(2.0, [1.0, 1.5, 50.0])


def rows(n=80, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 3))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.standard_normal(n)


@pytest.fixture(scope="module")
def model():
    return SparseGPRegressor(KERNEL, approximation="vfe", n_inducing=20, noise_var=0.04, optimizer=None).fit(*rows())


def mean_of(model, X):
    return model.predict(X)


def std_of(model, X):
    return model.predict(X, return_std=True)[1]


@pytest.mark.parametrize(("of", "answer"), [("mean", mean_of), ("std", std_of)])
def test_shap_values_add_up_to_the_forecast(model, of, answer):
    pytest.importorskip("shap")
    from sparsegp.neighbours.shap import explain

    X, background = rows(6, seed=1)[0], rows(20, seed=2)[0]
    found = explain(model, X, background, of=of)
    assert found.values.shape == (6, 3)
    assert found.feature_names == ["column 0", "column 1", "column 2"]
    np.testing.assert_allclose(found.base_values, answer(model, background).mean(), rtol=1e-6)
    np.testing.assert_allclose(found.base_values + found.values.sum(axis=1), answer(model, X), rtol=1e-6)
    # by the formula of Shapley, all 2^3 coalitions
    np.testing.assert_allclose(found.values[0], shapley(lambda at: answer(model, at), X[0], background), atol=1e-6)


def shapley(f, x, background):
    def worth(mask):
        return f(np.where(mask, x, background)).mean()

    values = np.zeros(3)
    for d in range(3):
        for others in ([0, 0], [1, 0], [0, 1], [1, 1]):
            without = np.insert(np.array(others, dtype=bool), d, False)
            weight = {0: 1 / 3, 1: 1 / 6, 2: 1 / 3}[sum(others)]
            with_it = without.copy()
            with_it[d] = True
            values[d] += weight * (worth(with_it) - worth(without))
    return values


def test_shap_refuses_what_it_cannot_explain(model):
    pytest.importorskip("shap")
    from sparsegp.neighbours.shap import explain

    X = rows(6, seed=1)[0]
    with pytest.raises(InputError, match="of must be one of 'mean', 'std'; got 'var'"):
        explain(model, X, X, of="var")
    with pytest.raises(InputError, match=r"background must be a matrix with the 3 columns .* \(6, 2\)"):
        explain(model, X, X[:, :2])


def test_mapie_conforms_the_mean():
    """MAPIE takes any regressor of scikit-learn: its interval and ours hold about as many rows."""
    mapie = pytest.importorskip("mapie.regression")
    X, y = rows(600)
    estimator = SparseGPRegressor(
        KERNEL, approximation="vfe", n_inducing=20, noise_var=0.04, optimizer=None, random_state=0
    )
    split = mapie.SplitConformalRegressor(estimator, confidence_level=0.9, prefit=False)
    split.fit(X[:200], y[:200]).conformalize(X[200:400], y[200:400])
    mean, interval = split.predict_interval(X[400:])
    own = estimator.fit(X[:200], y[:200])
    np.testing.assert_allclose(mean, own.predict(X[400:]))
    inside = np.mean((interval[:, 0, 0] <= y[400:]) & (y[400:] <= interval[:, 1, 0]))
    lower, upper = own.predict_interval(X[400:], 0.9)
    assert 0.8 < inside <= 1.0
    assert np.mean(interval[:, 1, 0] - interval[:, 0, 0]) == pytest.approx(np.mean(upper - lower), rel=0.3)
    prefit = mapie.SplitConformalRegressor(own, confidence_level=0.9, prefit=True).conformalize(X[200:400], y[200:400])
    np.testing.assert_allclose(prefit.predict_interval(X[400:])[1], interval)
