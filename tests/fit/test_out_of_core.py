"""fit of data from any source, in memory and beyond it: the same model wherever the rows come from."""

from importlib import import_module

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, InputError, SparseGPRegressor, kernels, load
from sparsegp.core import reasons

pytestmark = pytest.mark.usefixtures("short_start")

N_ROWS = 3000


def rows(n=N_ROWS, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(-3, 3, n), rng.uniform(0, 1000, n)])
    y = 20 + np.sin(2 * X[:, 0]) + X[:, 1] / 500 + 0.1 * rng.standard_normal(n)
    return X, y


def table(X, y, **more):
    return pa.table({"x": X[:, 0], "t": X[:, 1], "y": y, **more})


SOURCES = ("arrays", "pyarrow", "parquet", "folder", "csv", "batches", "dask")


def source(kind, folder, X, y):
    """Arguments of fit for the same rows, given in several ways."""
    data = table(X, y)
    if kind == "arrays":
        return (X, y), {}
    if kind == "pyarrow":
        return (data,), {"target": "y"}
    if kind == "batches":
        return ([(X[k : k + 700], y[k : k + 700]) for k in range(0, len(y), 700)],), {}
    if kind == "dask":
        frames = pytest.importorskip("dask.dataframe")
        return (frames.from_pandas(data.to_pandas(), npartitions=4),), {"target": "y"}
    if kind == "folder":
        for part, start in enumerate(range(0, len(y), 1100)):
            parquet.write_table(data.slice(start, 1100), folder / f"part-{part}.parquet", row_group_size=500)
        return (folder,), {"target": "y"}
    path = folder / f"rows.{kind}"
    (csv.write_csv if kind == "csv" else parquet.write_table)(data, path)
    return (path,), {"target": "y"}


@pytest.fixture
def little_memory(options):
    options(opening={"most_entries": 2 * 1000})


def model(**changes):
    return SparseGPRegressor(**{"approximation": "vfe", "n_inducing": 20, "random_state": 0, **changes})


def given_model(**changes):
    """Nothing is learned: the steps of an optimiser enlarge the last digits of what it is given."""
    kernel = kernels.SquaredExponential(1.5, [0.7, 600.0])
    inducing = rows(20, seed=9)[0]
    return model(kernel=kernel, noise_var=0.02, inducing=inducing, optimizer=None, **changes)


@pytest.mark.parametrize("kind", SOURCES[1:])
def test_every_source_gives_the_model_of_the_arrays(kind, tmp_path):
    X, y = rows(600)
    expected = given_model().fit(X, y)
    arguments, given = source(kind, tmp_path, X, y)
    found = given_model().fit(*arguments, **given)
    assert found.n_samples_seen_ == 600
    assert found.log_evidence_ == pytest.approx(expected.log_evidence_, rel=1e-9)
    np.testing.assert_allclose(_moments(found, X), _moments(expected, X), 1e-9)


def _moments(fitted, X):
    """Predictions at some rows, with column names where the model has learned them."""
    names = getattr(fitted, "feature_names_in_", None)
    new = X[:50] if names is None else pa.table(dict(zip(names, X[:50].T, strict=True)))
    return np.concatenate(fitted.predict(new, return_std=True))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("kind", SOURCES[2:])
def test_every_source_beyond_memory_gives_the_same_model(kind, tmp_path):
    X, y = rows()
    expected = given_model().fit(X, y)
    assert expected.info_["passes"] == 2
    arguments, given = source(kind, tmp_path, X, y)
    found = given_model().fit(*arguments, **given)
    assert found.n_samples_seen_ == N_ROWS
    assert found.log_evidence_ == pytest.approx(expected.log_evidence_, rel=1e-9)
    np.testing.assert_allclose(_moments(found, X), _moments(expected, X), rtol=1e-9)


@pytest.mark.usefixtures("little_memory", "brief_learning")
def test_learning_from_a_file_is_learning_from_its_arrays(tmp_path):
    X, y = rows()
    expected = model().fit(X, y)
    (path,), given = source("parquet", tmp_path, X, y)
    found = model().fit(path, **given)
    assert found.info_["passes"] > 2
    assert found.log_evidence_ == pytest.approx(expected.log_evidence_, rel=1e-6)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("approximation", ["vfe", "fitc", "pep", "dtc"])
def test_inference_beyond_memory_is_that_of_all_rows(approximation, tmp_path, options):
    X, y = rows()
    (path,), given = source("parquet", tmp_path, X, y)
    plain = {"trend": None, "calibration": None}
    streamed = model(approximation=approximation, learn_inducing=approximation != "dtc", **plain).fit(path, **given)
    options(opening={"most_entries": 10**9})
    kept = {"kernel": streamed.kernel_, "noise_var": streamed.noise_var_, "inducing": streamed.inducing_}
    held = model(approximation=approximation, optimizer=None, **kept).fit(X, y)
    assert streamed.log_evidence_ == pytest.approx(held.log_evidence_, rel=1e-8)
    np.testing.assert_allclose(_moments(streamed, X), _moments(held, X), rtol=1e-6)


@pytest.mark.usefixtures("little_memory")
def test_learning_beyond_memory_reaches_what_memory_reaches(options, tmp_path):
    X, y = rows()
    (path,), given = source("folder", tmp_path, X, y)
    streamed = model().fit(path, **given)
    options(opening={"most_entries": 10**9})
    held = model().fit(X, y)
    assert streamed.log_evidence_ > held.log_evidence_ - 0.02 * N_ROWS


@pytest.mark.usefixtures("little_memory")
def test_known_noise_and_weights_are_columns(tmp_path):
    X, y = rows()
    rng = np.random.default_rng(1)
    noise, weight = rng.uniform(0.005, 0.02, N_ROWS), rng.integers(0, 3, N_ROWS).astype(float)
    path = tmp_path / "rows.parquet"
    parquet.write_table(table(X, y, noise=noise, count=weight), path)
    found = given_model().fit(path, target="y", noise_var="noise", sample_weight="count")
    expected = given_model().fit(X, y, noise_var=noise, sample_weight=weight)
    assert found.feature_names_in_.tolist() == ["x", "t"]
    assert found.n_samples_seen_ == N_ROWS
    assert found.noise_var_ == pytest.approx(noise[weight > 0].mean(), rel=1e-12)
    np.testing.assert_allclose(_moments(found, X), _moments(expected, X), rtol=1e-9)


@pytest.mark.usefixtures("little_memory")
def test_a_model_from_beyond_memory_goes_on_with_new_rows(tmp_path):
    X, y = rows()
    (path,), given = source("parquet", tmp_path, X, y)
    (later,), _ = source("csv", tmp_path, *rows(200, seed=5))
    found = model().fit(path, **given)
    before = found.log_evidence_
    found.partial_fit(later, target="y")
    assert found.n_samples_seen_ == N_ROWS + 200
    found.forget(later, target="y")
    assert found.log_evidence_ == pytest.approx(before, rel=1e-9)


def test_predictions_at_the_rows_of_a_file_use_the_columns_of_the_fit(tmp_path):
    X, y = rows(300)
    (path,), given = source("parquet", tmp_path, X, y)
    found = model().fit(path, **given)
    np.testing.assert_array_equal(found.predict(path), found.predict(table(X, y).select(["x", "t"])))
    parquet.write_table(table(X, y).drop_columns(["t"]), path)
    with pytest.raises(InputError, match="'t' is not a column"):
        found.predict(path)


@pytest.mark.usefixtures("brief_learning")
@pytest.mark.parametrize(
    "estimator",
    [
        SparseGPRegressor(approximation="pic", n_inducing=15, n_blocks=4, random_state=0),
        SparseGPRegressor(approximation="vfe", inference="anytime", n_inducing=15, random_state=0),
        HeteroscedasticGPRegressor(n_inducing=15, n_noise_inducing=10, random_state=0),
        CommitteeGPRegressor(n_experts=3, n_inducing=15, random_state=0),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_estimators_that_hold_their_rows_read_files_too(estimator, tmp_path):
    X, y = rows(400)
    expected = _moments(estimator.fit(X, y), X)
    (path,), given = source("csv", tmp_path, X, y)
    np.testing.assert_allclose(_moments(estimator.fit(path, **given), X), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("little_memory")
def test_a_bad_number_far_into_the_file_is_named(tmp_path):
    X, y = rows()
    X[2100, 1] = np.inf
    path = tmp_path / "rows.parquet"
    parquet.write_table(table(X, y), path, row_group_size=500)
    with pytest.raises(InputError, match=r"row group 4 \(row 100 of the group.*'t'"):
        model().fit(path, target="y")


def test_batches_that_can_be_read_only_once_are_refused():
    X, y = rows(100)
    with pytest.raises(InputError, match="read only once"):
        model().fit((X[k : k + 50], y[k : k + 50]) for k in (0, 50))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("approximation", ["pitc", "pic", "block-pep"])
def test_models_by_blocks_from_a_file_are_those_of_the_same_blocks_in_memory(approximation, tmp_path, options):
    X, y = rows()
    (path,), given = source("parquet", tmp_path, X, y)
    found = given_model(approximation=approximation, n_blocks=12).fit(path, **given)
    assert found.info_["passes"] == 3  # a scan, one to sort the rows into blocks, one to sum them up
    assert (found.n_samples_seen_, found.info_["n_blocks"]) == (N_ROWS, found.model_.blocking.n_blocks)
    options(opening={"most_entries": 10**9})
    labels = found.model_.blocking.nearest(found.scaling_.tensor(X)).numpy()
    # the same standardisation, which the first fit has from one pass
    expected = given_model(approximation=approximation).fit(X, y, blocks=labels)
    new, places = X[:60], labels[:60]
    names = pa.table({"x": new[:, 0], "t": new[:, 1]})
    mean, std = found.predict(names, return_std=True, blocks=places)
    np.testing.assert_allclose(mean, expected.predict(new, blocks=places), rtol=1e-7)
    np.testing.assert_allclose(std, expected.predict(new, return_std=True, blocks=places)[1], rtol=1e-6)
    assert found.log_evidence_ == pytest.approx(expected.log_evidence_, rel=1e-8)


@pytest.mark.usefixtures("little_memory", "brief_learning")
def test_a_local_model_from_a_file_learns_saves_and_takes_rows(tmp_path):
    X, y = rows()
    (path,), given = source("parquet", tmp_path, X, y)
    found = model(approximation="pic", n_blocks=10, calibration=None).fit(path, **given)
    new = table(X, y).select(["x", "t"]).slice(0, 40)
    before = found.predict(new, return_std=True)
    found.save(tmp_path / "pic.sgp")
    loaded = load(tmp_path / "pic.sgp")
    np.testing.assert_array_equal(loaded.predict(new, return_std=True), before)
    X_new, y_new = rows(30, seed=8)
    for fitted in (found, loaded):
        fitted.partial_fit(table(X_new, y_new), target="y").forget(table(X_new, y_new), target="y")
        np.testing.assert_allclose(fitted.predict(new, return_std=True), before, rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("little_memory", "brief_learning")
def test_auto_is_settled_for_rows_that_stay_in_a_file(tmp_path):
    """The exact model needs its rows in memory, however few they are; blocks of near rows do not."""
    X, y = rows()
    (path,), given = source("parquet", tmp_path, X, y)
    found = model(approximation="auto", n_inducing="auto", n_blocks=10).fit(path, **given)
    assert found.info_["choice"]["approximation"] == found.model_.approx.name == "pic"
    assert found.info_["passes"] >= 3
    assert found.calibration_ is not None
    assert np.mean((found.predict(table(X, y).select(["x", "t"])) - y) ** 2) < 0.2 * y.var()


class Ticking:
    """A clock that moves on by a fixed time whenever somebody looks."""

    def __init__(self, seconds):
        self.now, self.seconds = 0.0, seconds

    def __call__(self):
        self.now += self.seconds
        return self.now


@pytest.mark.usefixtures("little_memory", "brief_learning")
@pytest.mark.parametrize("approximation", ["vfe", "pic"])
def test_an_ample_budget_reaches_all_rows_of_a_file(approximation, tmp_path):
    X, y = rows()
    (path,), given = source("parquet", tmp_path, X, y)
    found = model(approximation=approximation, time_budget=1e5, n_blocks=6).fit(path, **given)
    budget = found.info_["budget"]
    assert (budget["asked"], budget["fraction"], budget["reason"]) == (1e5, 1.0, reasons.ONE_PASS)
    assert found.n_samples_seen_ == N_ROWS
    found.partial_fit(table(*rows(20, seed=3)), target="y")


@pytest.mark.usefixtures("little_memory")
def test_a_short_budget_is_a_model_of_the_sample_and_says_so(tmp_path, options):
    X, y = rows()
    (path,), given = source("parquet", tmp_path, X, y)
    options(clock=Ticking(1.0), steps={"first_rows": 100, "sketch_rows": 150})
    with pytest.warns(UserWarning, match="shorter than one step"):
        found = model(time_budget=12.0).fit(path, **given)
    assert 0.0 < found.info_["budget"]["fraction"] < 1.0
    assert np.isfinite(found.predict(table(X, y).select(["x", "t"]))).all()
    seen = found.n_samples_seen_
    found.partial_fit(table(X[:5], y[:5]), target="y")
    assert found.model_.n_rows == found.n_samples_seen_ == seen + 5


@pytest.mark.usefixtures("little_memory")
def test_a_scan_that_takes_too_long_is_cut_short(tmp_path, options, monkeypatch):
    X, y = rows()
    (path,), given = source("folder", tmp_path, X, y)
    # the package has a function of the same name
    monkeypatch.setattr(import_module("sparsegp.data.scan"), "rows_per_batch", lambda n_features: 500)
    options(clock=Ticking(1.0))
    found = model(time_budget=20.0).fit(path, **given)
    budget = found.info_["budget"]
    assert found.n_samples_seen_ < N_ROWS
    assert budget["fraction"] <= found.n_samples_seen_ / N_ROWS + 1e-9


@pytest.mark.usefixtures("little_memory")
def test_anytime_inference_from_a_file_ends_at_the_exact_model(tmp_path):
    X, y = rows()
    (path,), given = source("parquet", tmp_path, X, y)
    found = given_model(inference="anytime").fit(path, **given)
    exact = given_model().fit(path, **given)
    assert found.info_["budget"]["reason"] == reasons.EXACT
    np.testing.assert_allclose(_moments(found, X), _moments(exact, X), rtol=1e-7)


@pytest.mark.usefixtures("little_memory")
def test_what_needs_its_rows_in_memory_reads_them_there(tmp_path):
    X, y = rows(1200)
    (path,), given = source("parquet", tmp_path, X, y)
    found = given_model(window=1000).fit(path, **given).partial_fit(table(*rows(50, seed=2)), target="y")
    assert found.n_samples_seen_ == 1000
