"""Tables as people have them, from the fit to the file: numbers, categories, dates, gaps."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import sparsegp
from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, SparseGPRegressor, serving
from sparsegp.data.open import OpeningOptions
from sparsegp.errors import FingerprintError, InputError
from sparsegp.fit.posing import FitOptions

LEVELS = {"red": 0.0, "green": 1.5, "blue": -1.0}


def table(n=240, seed=0):
    rng = np.random.default_rng(seed)
    colour = rng.choice(list(LEVELS), n)
    size = rng.uniform(0.0, 6.0, n)
    when = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.uniform(0, 60, n), unit="D")
    hour = (when - when.normalize()).total_seconds() / 3600.0
    y = np.sin(size) + np.array([LEVELS[c] for c in colour]) + 0.5 * np.cos(2 * np.pi * hour / 24)
    return pd.DataFrame({"size": size, "colour": colour, "when": when, "y": y + 0.05 * rng.standard_normal(n)})


def regressor(**parameters):
    chosen = {"approximation": "vfe", "n_inducing": 40, "random_state": 0, "calibration": None, "trend": None}
    return SparseGPRegressor("matern32", **{**chosen, **parameters})


def fixed(**parameters):
    return regressor(**{"optimizer": None, "noise_var": 0.01, **parameters})


@pytest.fixture(scope="module")
def model():
    return regressor().fit(table(), target="y")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.sgp"


UNMET = pytest.mark.filterwarnings("ignore:Values that the fit has not met")
NEW = table(30, seed=1).drop(columns="y")


def test_the_columns_are_those_of_the_user(model):
    assert model.n_features_in_ == 3
    assert list(model.feature_names_in_) == ["size", "colour", "when"]
    assert model.info_["columns"] == {
        "size": "number",
        "colour": "category of 3 levels",
        "when": "date with its day, week",
    }
    error = model.predict(NEW) - table(30, seed=1)["y"]
    assert np.sqrt(np.mean(error**2)) < 0.3


@UNMET
@pytest.mark.parametrize("approximation", ["exact", "vfe", "fitc"])
def test_mixed_inputs_against_the_dense_formula(approximation):
    """By the columns themselves, without an encoding: gaps of numbers, equal or different levels."""
    frame = table(60).drop(columns="when")
    other = (
        frame[:9].drop(columns="y").assign(colour=["red", "green", "blue", "new", "new", "red", "red", "blue", "red"])
    )
    gp = fixed(approximation=approximation, n_inducing=15).fit(frame, target="y")
    kernel, scaling = gp.kernel_, gp.scaling_
    own = kernel.lengthscales.detach().numpy()
    variance = float(kernel.variance.detach())

    def k(A, B):
        gap = (A["size"].to_numpy()[:, None] - B["size"].to_numpy()[None]) / own[0]
        differ = A["colour"].to_numpy()[:, None] != B["colour"].to_numpy()[None]
        s = np.sqrt(3.0 * (gap**2 + 2.0 * differ / own[2] ** 2))
        return variance * (1.0 + s) * np.exp(-s)

    y = frame["y"].to_numpy() - scaling.y_mean
    if approximation == "exact":
        prior, cross = k(frame, frame), k(other, frame)
    else:
        # inducing inputs are points between levels: distances of their numbers
        Z, of = gp.inducing_, gp.fitted_.columns.encoding

        def q(A, B):
            left, right = (of.encode(pa.Table.from_pandas(part)) for part in (A, B))
            kz = [_matern32(part, Z, own, variance) for part in (left, right)]
            return kz[0] @ np.linalg.solve(_matern32(Z, Z, own, variance) + 1e-12 * np.eye(len(Z)), kz[1].T)

        prior, cross = q(frame, frame), q(other, frame)
        if approximation == "fitc":
            np.fill_diagonal(prior, variance)
    weights = np.linalg.solve(prior + 0.01 * np.eye(60), y)
    np.testing.assert_allclose(gp.predict(other), cross @ weights + scaling.y_mean, atol=1e-6)


def _matern32(A, B, lengthscales, variance):
    s = np.sqrt(3.0 * (((A[:, None] - B[None]) / lengthscales) ** 2).sum(-1))
    return variance * (1.0 + s) * np.exp(-s)


def test_columns_may_come_in_any_order_and_number(model):
    expected = model.predict(NEW, return_std=True)
    np.testing.assert_array_equal(model.predict(NEW[NEW.columns[::-1]], return_std=True), expected)
    with pytest.warns(UserWarning, match="not fitted with are ignored: 'extra'"):
        np.testing.assert_array_equal(model.predict(NEW.assign(extra=1), return_std=True), expected)
    with pytest.raises(InputError, match="column 'colour' of the fit is not a column of the table"):
        model.predict(NEW.drop(columns="colour"))


@pytest.mark.parametrize("convert", [pl.from_pandas, pa.Table.from_pandas, lambda f: f.astype({"colour": "category"})])
def test_libraries_agree(model, convert):
    np.testing.assert_allclose(model.predict(convert(NEW)), model.predict(NEW), atol=1e-10)


@pytest.mark.parametrize(
    "change",
    [{"colour": "violet"}, {"colour": None}, {"size": np.nan}, {"when": pd.NaT}],
    ids=["new level", "level", "number", "date"],
)
def test_what_the_fit_has_not_met_widens_the_forecast(model, change):
    _, before = model.predict(NEW, return_std=True, latent=True)
    with pytest.warns(UserWarning, match=rf"'{next(iter(change))}' in 30 of 30 rows.*wider"):
        mean, after = model.predict(NEW.assign(**change), return_std=True, latent=True)
    assert (after > before).all()
    assert np.isfinite(mean).all()


def test_missing_values_are_learned_from():
    frame = table(400)
    rng = np.random.default_rng(3)
    frame.loc[rng.random(400) < 0.3, "size"] = np.nan
    frame.loc[rng.random(400) < 0.2, "colour"] = None
    gp = regressor().fit(frame, target="y")
    assert gp.info_["columns"]["size"] == "number, sometimes missing"
    complete = frame["size"].notna() & frame["colour"].notna()
    errors = np.abs(gp.predict(frame.drop(columns="y")) - frame["y"])
    assert errors[complete].mean() < errors[~complete].mean()
    # the same with an array of numbers
    numbers = frame[["size"]].assign(other=np.arange(400.0)).to_numpy()
    gp = fixed().fit(numbers, frame["y"])
    assert gp.n_features_in_ == 2
    assert np.isfinite(gp.predict(numbers)).all()
    with pytest.raises(InputError, match="inf: column 1, row 2"):
        fixed().fit(np.where(np.arange(800).reshape(400, 2) == 5, np.inf, numbers), frame["y"])


def test_rows_without_a_target_are_left_out():
    frame = table(60)
    frame.loc[[3, 7], "y"] = np.nan
    for X, y, target in ((frame, None, "y"), (frame.drop(columns="y"), frame["y"], None)):
        with pytest.warns(UserWarning, match="missing in 2 of 60 rows"):
            gp = fixed().fit(X, y, target=target)
        assert gp.n_samples_seen_ == 58
    whole = fixed().fit(frame.dropna(), target="y")
    np.testing.assert_allclose(gp.predict(NEW), whole.predict(NEW), atol=1e-10)
    X, y = frame[["size"]].to_numpy(), frame["y"].to_numpy()
    with pytest.warns(UserWarning, match="missing in 2 of 60 rows"):
        assert fixed().fit(X, y).n_samples_seen_ == 58
    with pytest.warns(UserWarning, match="missing in 2 of 60 rows"):
        assert fixed().fit(X[:20], np.arange(20.0)).partial_fit(X, y).n_samples_seen_ == 78


@UNMET
def test_updates_take_new_levels_and_forget_them_again(model, path):
    model.save(path)
    gp = sparsegp.load(path)
    before = gp.predict(NEW, return_std=True)
    more = table(40, seed=5).assign(colour="violet")
    with pytest.warns(UserWarning, match="'colour' in 40 of 40 rows"):
        gp.partial_fit(more, target="y")
    assert gp.n_samples_seen_ == 280
    violet = NEW.assign(colour="violet")
    assert (gp.predict(violet, return_std=True)[1] < model.predict(violet, return_std=True)[1]).mean() > 0.9
    gp.forget(more.sample(frac=1.0, random_state=0), target="y")
    np.testing.assert_allclose(gp.predict(NEW, return_std=True), before, atol=1e-7)


@pytest.fixture(scope="module")
def simple():
    """With hyper-parameters as they start, and so a covariance that is easy to factor."""
    return fixed(noise_var=0.1, n_inducing=15).fit(table(), target="y")


def test_models_merge_where_columns_became_numbers_in_the_same_way(simple):
    part = simple.without_rows().partial_fit(table(50, seed=6), target="y")
    merged = simple.without_rows().partial_fit(table(50, seed=7), target="y").merge(part)
    both = simple.without_rows().partial_fit(pd.concat([table(50, seed=6), table(50, seed=7)]), target="y")
    np.testing.assert_allclose(merged.predict(NEW), both.predict(NEW), atol=1e-8)
    with pytest.raises(FingerprintError, match="columns became numbers in the same way"):
        simple.without_rows().merge(fixed().fit(table(50).replace("red", "pink"), target="y"))


@UNMET
def test_files_and_serving_say_the_same(simple, path):
    simple.save(path)
    loaded, light = sparsegp.load(path), serving.load(path)
    rows = NEW.copy()
    rows.loc[0, "colour"], rows.loc[1, "size"], rows.loc[2, "when"] = "violet", np.nan, pd.NaT
    expected = simple.predict(rows, return_std=True)
    np.testing.assert_array_equal(loaded.predict(rows, return_std=True), expected)
    np.testing.assert_allclose(light.predict(rows[rows.columns[::-1]], return_std=True), expected, atol=1e-9)
    with pytest.warns(UserWarning, match="has not met"):
        light.predict(rows)
    assert light.n_features_in_ == loaded.n_features_in_ == 3
    assert loaded.info_["columns"] == simple.info_["columns"]
    assert loaded.fitted_.columns.encoding == simple.fitted_.columns.encoding


@pytest.mark.parametrize("kind", ["parquet", "csv", "batches", "polars"])
def test_every_way_in_gives_the_same_model(kind, tmp_path):
    frame = table(3000)
    frame.loc[[5, 50], "colour"] = None
    frame.loc[[7, 70], "size"] = np.nan
    frame["city"] = [f"city {k:03d}" for k in np.random.default_rng(8).integers(0, 140, 3000)]
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=900)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    expected = fixed().fit(frame, target="y")
    data = {
        "parquet": tmp_path / "rows.parquet",
        "csv": tmp_path / "rows.csv",
        "batches": lambda: (frame[k : k + 700] for k in range(0, 3000, 700)),
        "polars": pl.from_pandas(frame),
    }[kind]
    found = fixed().fit(data, target="y")
    assert found.info_["columns"] == expected.info_["columns"]
    new = frame[:40].drop(columns="y")
    np.testing.assert_allclose(found.predict(new, return_std=True), expected.predict(new, return_std=True), rtol=1e-8)


class OnDisk(SparseGPRegressor):
    """Rows stay in their file."""

    fit_options = FitOptions(opening=OpeningOptions(most_entries=2000))


def test_rows_that_stay_in_their_file(tmp_path):
    frame = table(300)
    frame.loc[[5, 50], "size"] = np.nan
    frame.loc[[6, 60], "y"] = np.nan
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=90)
    shared = {"approximation": "vfe", "optimizer": None, "noise_var": 0.01, "trend": None}
    shared |= {"kernel": sparsegp.kernels.Matern32(1.0, [1.0]), "normalize": False}
    with pytest.warns(UserWarning, match="missing in 2 of 300 rows"):
        whole = SparseGPRegressor(**shared).fit(frame, target="y")
    with pytest.warns(UserWarning, match="missing in 2 of 300 rows"):
        found = OnDisk(**shared, inducing=whole.inducing_).fit(tmp_path / "rows.parquet", target="y")
    assert found.n_samples_seen_ == 298
    assert found.info_["passes"] > 1
    np.testing.assert_allclose(found.predict(NEW), whole.predict(NEW), rtol=1e-7)
    np.testing.assert_allclose(found.predict(tmp_path / "rows.parquet"), whole.predict(frame), rtol=1e-7)


def test_pipelines_and_searches():
    frame, y = table(80).drop(columns="y"), table(80)["y"]
    steps = make_pipeline(FunctionTransformer(lambda X: X.assign(size=np.log1p(X["size"]))), fixed())
    assert steps.fit(frame, y).score(frame, y) > 0.5
    search = GridSearchCV(fixed(), {"columns": [None, {"when": "ignore"}]}, cv=2).fit(frame, y)
    assert search.best_score_ > 0.3


@pytest.mark.parametrize("cls", [HeteroscedasticGPRegressor, CommitteeGPRegressor])
def test_other_estimators_take_tables(cls, path):
    gp = cls("matern32", optimizer=None, random_state=0).fit(table(120), target="y")
    assert gp.info_["columns"]["colour"] == "category of 3 levels"
    expected = gp.predict(NEW)
    gp.save(path)
    np.testing.assert_allclose(sparsegp.load(path).predict(NEW[NEW.columns[::-1]]), expected, atol=1e-9)


def test_what_is_known_of_columns(path):
    frame = table(80).assign(code=np.arange(80) % 3)
    gp = fixed(categorical=["code"], columns={"when": "ignore"}).fit(frame, target="y")
    assert gp.info_["columns"]["code"] == "category of 3 levels"
    assert gp.info_["columns"]["when"] == "ignored, left out"
    expected = gp.predict(frame.drop(columns=["y", "when"]))
    gp.save(path)
    again = sparsegp.load(path)
    assert again.columns == {"when": "ignore"}
    np.testing.assert_array_equal(again.predict(frame.drop(columns=["y", "when"])), expected)
    arrays = fixed(categorical=[1]).fit(frame[["size", "code"]].to_numpy(), frame["y"])
    assert arrays.info_["columns"]["x1"] == "category of 3 levels"
    assert np.isfinite(arrays.predict(frame[["size", "code"]].to_numpy())).all()


def test_diagnosis_and_relevance_are_by_column(model):
    from sparsegp.display.column_plots import column_lengthscales, column_relevance

    frame = table(120, seed=9)
    found = model.diagnose(frame.drop(columns="y"), frame["y"])
    assert {"size", "colour", "when"} <= set(found.segments.by_quantity)
    assert any(part.part == "= red" for part in found.segments.by_quantity["colour"])
    assert not any("Constant" in finding.what or "say the same" in finding.what for finding in found)
    seen = model.of_numbers()
    rows = model.fitted_.columns.encoding.encode(pa.Table.from_pandas(frame))
    relevance, names = column_relevance(seen, rows, column_lengthscales(seen.kernel_, rows.shape[1]))
    assert names == ["size", "colour", "when"]
    assert (relevance > 0).all()


def test_a_target_that_is_text():
    frame = table(20)
    with pytest.raises(InputError, match=r"target='colour' of the table has type .*expected numbers. Likely reasons"):
        fixed().fit(frame, target="colour")
    with pytest.raises(InputError, match=r"such as 'red'; expected numbers\. Likely reasons"):
        fixed().fit(frame[["size"]], ["red"] * 20)


def test_text_in_arrays_and_nothing_to_learn_from():
    with pytest.raises(InputError, match=r"X is an array of text.*DataFrame"):
        fixed().fit(np.array([["a", "b"]] * 9), np.arange(9.0))
    with pytest.raises(InputError, match="No column of X says anything"):
        fixed().fit(pd.DataFrame({"a": ["x"] * 9, "b": [None] * 9}), np.arange(9.0))
