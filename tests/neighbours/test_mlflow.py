"""Models in MLflow: saved, logged, loaded as functions with intervals, and loaded as themselves."""

import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("mlflow.pyfunc")

import sparsegp  # noqa: E402
from sparsegp import InputError, SparseGPRegressor, kernels  # noqa: E402
from sparsegp.neighbours.mlflow import load_model, log_model, save_model  # noqa: E402

GIVEN = {"approximation": "vfe", "n_inducing": 12, "noise_var": 0.04, "optimizer": None}


def rows(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.uniform(-2, 2, (n, 2)), columns=["a", "b"])
    return X, np.sin(X["a"].to_numpy()) + 0.2 * rng.standard_normal(n)


@pytest.fixture(scope="module")
def model():
    return SparseGPRegressor(kernels.Matern32(1.3, [0.8, 1.7]), **GIVEN).fit(*rows())


def expected(model, X, coverage):
    mean, std = model.predict(X, return_std=True)
    return np.column_stack([mean, std, *model.predict_interval(X, coverage)])


def test_a_saved_model_returns_intervals(model, tmp_path):
    save_model(model, tmp_path / "model", coverage=0.9)
    X = rows(10, seed=1)[0].set_axis(range(5, 15))
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    found = loaded.predict(X)
    assert list(found.columns) == ["mean", "std", "lower", "upper"]
    assert list(found.index) == list(X.index)
    np.testing.assert_allclose(found, expected(model, X, 0.9))
    np.testing.assert_allclose(loaded.predict(X, params={"coverage": 0.5}), expected(model, X, 0.5))
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        loaded.predict(X, params={"coverage": 95.0})
    np.testing.assert_array_equal(load_model(tmp_path / "model").predict(X), model.predict(X))
    assert not list((tmp_path / "model").rglob("*.pkl"))


def test_a_model_of_a_run(model, tmp_path, monkeypatch):
    """The small MLflow has no database: runs are files."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run():
        uri = log_model(model, name="gp").model_uri
    X = rows(10, seed=1)[0]
    np.testing.assert_allclose(mlflow.pyfunc.load_model(uri).predict(X), expected(model, X, 0.95))
    np.testing.assert_array_equal(load_model(uri).predict(X), model.predict(X))


def test_a_pipeline_is_saved_as_one_model(tmp_path):
    kernel = kernels.Matern32(1.3, 0.8)
    wrapped = sparsegp.wrap(make_pipeline(StandardScaler(), SparseGPRegressor(kernel, **GIVEN))).fit(*rows())
    save_model(wrapped, tmp_path / "model")
    X = rows(10, seed=1)[0]
    found = mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(X)
    np.testing.assert_allclose(found["upper"], wrapped.predict_interval(X)[1])


def test_what_is_no_model_of_ours_is_refused(model, tmp_path):
    with pytest.raises(InputError, match=r"or sparsegp.wrap\(pipeline\); got StandardScaler"):
        save_model(StandardScaler(), tmp_path / "model")
    with pytest.raises(InputError, match=r"as 0.95 for 95%; got 95"):
        save_model(model, tmp_path / "model", coverage=95)
    assert not (tmp_path / "model").exists()
