"""Bad input teaches, hard input works: finite predictions with std > 0, or an error that says what to do."""

import warnings

import numpy as np
import pandas as pd
import pytest

import sparsegp
from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, InputError, SparseGPRegressor, kernels

pytestmark = pytest.mark.usefixtures("short_start")

ROWS = ["vfe", "fitc", "pic", "exact", "sod", "block-pep"]


def smooth(n=120, n_features=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, n_features))
    return X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(n)


def assert_honest(gp, X):
    mean, std = gp.predict(X, return_std=True)
    _, latent = gp.predict(X, return_std=True, latent=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std > 0).all()
    assert (latent > 0).all()


def fitted(X, y, approximation="vfe", **changes):
    return SparseGPRegressor(approximation=approximation, n_inducing=25, random_state=0, **changes).fit(X, y)


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "inf")])
def test_a_bad_entry_is_named(value, word):
    X, y = smooth()
    X[17, 2] = value
    gp = fitted(*smooth())
    with pytest.raises(InputError, match=rf"{word}: column 2, row 17"):
        gp.predict(X, return_cov=True)
    with pytest.raises(InputError, match=rf"{word}: column 2, row 17"):
        gp.diagnose(X, y)
    if word == "inf":
        with pytest.raises(InputError, match="inf: column 2, row 17"):
            gp.predict(X)
        with pytest.raises(InputError, match="inf: column 2, row 17"):
            SparseGPRegressor(approximation="vfe").fit(X, y)
        X, y = smooth()
        y[5] = value
        with pytest.raises(InputError, match="row 5"):
            SparseGPRegressor(approximation="vfe").fit(X, y)


def test_wrong_shapes_are_refused():
    X, y = smooth()
    with pytest.raises(ValueError, match="inconsistent"):
        SparseGPRegressor(approximation="vfe").fit(X, y[:-1])
    with pytest.raises(ValueError, match="3 features"):
        fitted(X, y).predict(X[:, :2])
    with pytest.raises(InputError, match="sample_weight must have one value"):
        SparseGPRegressor(approximation="vfe").fit(X, y, sample_weight=np.ones(3))
    with pytest.raises(InputError, match="noise_var must be finite and > 0; row 0"):
        SparseGPRegressor(approximation="vfe").fit(X, y, noise_var=np.zeros(len(y)))
    with pytest.raises(InputError, match="one block label a row"):
        SparseGPRegressor(approximation="pic").fit(X, y, blocks=[1, 2])
    with pytest.raises(InputError, match="zero"):
        SparseGPRegressor(approximation="vfe").fit(X, y, sample_weight=np.zeros(len(y)))
    with pytest.raises(ValueError, match="array of text"):
        SparseGPRegressor(approximation="vfe").fit(np.full((5, 2), "red"), y[:5])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"approximation": "fit"}, "fitc"),
        ({"kernel": "sse"}, "matern32"),
        ({"n_inducing": 0}, "at least 1"),
        ({"n_inducing": 2.5}, "whole number"),
        ({"noise_var": -1.0}, "positive"),
        ({"optimizer": "sgd"}, "lbfgs"),
        ({"approximation": "pep", "power": 1.5}, "between 0"),
        ({"inducing": "grid"}, "greedy"),
        ({"inducing": np.zeros((4, 7))}, "3 features"),
        ({"dtype": "float16"}, "float32"),
        ({"n_blocks": -1, "approximation": "pic"}, "at least 1"),
        ({"approximation": {"dtc": 0.5, "pitc": 0.7}}, "add up to 1"),
        ({"approximation": {"dtc": 0.5, "sor": 0.5}}, "test conditional"),
        ({"inference": "sampling"}, "exact"),
        ({"kernel": 3.0}, "kernel"),
    ],
)
def test_parameters_are_checked(settings, message):
    with pytest.raises(InputError, match=message):
        SparseGPRegressor(**{"approximation": "vfe", **settings}).fit(*smooth())


@pytest.mark.parametrize(
    ("X", "y", "said"),
    [
        (np.arange(900.0), np.zeros(900), r"array of shape \(900,\)\.\nReshape your data"),
        (np.ones((900, 1)) + 1j, np.zeros(900), r"Complex data not supported\. Give real numbers"),
        ([["a", 1.0]] * 5, np.zeros(5), "'a'. Give a DataFrame"),
        ({"a": [1.0, 2.0]}, [1.0, 2.0], r"pandas.DataFrame\(X\)"),
        ((row for row in np.eye(3)), np.zeros(3), "page on big files"),
        (None, np.zeros(3), "X is None"),
        (np.eye(3), "price", "target='price'"),
        (pd.DataFrame(np.eye(3), columns=list("abc")), "a", "target='a'"),
        (np.eye(3), np.array(["2020", "2021", "2022"], dtype="datetime64[Y]"), "has dates; expected numbers"),
        (pd.DataFrame(np.eye(3)), pd.Series(pd.to_timedelta([1, 2, 3], unit="h")), "has durations; expected numbers"),
    ],
)
def test_mistakes_are_explained_in_a_few_lines(X, y, said):
    with pytest.raises((ValueError, TypeError), match=said) as caught:
        SparseGPRegressor().fit(X, y)
    assert len(str(caught.value)) < 400


NO_TARGETS = {
    "two columns": np.ones((30, 2)),
    "a number": 3.0,
    "too large": [10**400] * 30,
    "ragged": [[1.0, 2.0], [3.0]] * 15,
    "text": ["a"] * 30,
    "complex": np.ones(30) + 1j,
    "dates": pd.date_range("2020", periods=30).to_numpy(),
    "masked": np.ma.array(np.ones(30), mask=np.arange(30) == 2),
}


@pytest.mark.parametrize("named", [False, True], ids=["array", "table"])
@pytest.mark.parametrize("name", NO_TARGETS)
def test_targets_that_are_none_are_an_error_of_ours_wherever_they_are_given(name, named, tmp_path):
    """Of the estimator and of the model that is served; some were a foreign error, and some were taken for numbers."""
    X, y = smooth(30)
    X = pd.DataFrame(X, columns=["a", "b", "c"]) if named else X
    gp, wrong = fitted(X, y, optimizer=None), NO_TARGETS[name]
    gp.save(tmp_path / "model.sgp")
    light = sparsegp.serving.load(tmp_path / "model.sgp")
    for call in (gp.fit, gp.partial_fit, gp.forget, gp.score, gp.log_density, gp.forecast(X).crps, light.log_density):
        with pytest.raises(InputError):
            call(wrong) if call.__name__ == "crps" else call(X, wrong)
    if name not in ("two columns", "a number"):  # the same for all rows
        for column in ("sample_weight", "noise_var"):
            with pytest.raises(InputError, match=column):
                gp.fit(X, y, **{column: wrong})


def test_what_is_asked_of_a_model_is_checked():
    X, y = smooth(30)
    gp = fitted(X, y, "pic", n_blocks=3, optimizer=None)
    for wrong in (list("abcde"), np.full(5, 0.5), [[1], [1, 2]] * 2, [10**400] * 5, np.ones((5, 2), int)):
        with pytest.raises(InputError, match="blocks"):
            gp.predict(X[:5], blocks=wrong)
    for wrong in ("a", None, [0.5, 0.6]):
        with pytest.raises(InputError, match="coverage"):
            gp.predict_interval(X[:5], wrong)
    for wrong in (-1, 1.5, "a", None):
        with pytest.raises(InputError, match="n_samples"):
            gp.sample_y(X[:5], wrong)
    with pytest.raises(InputError, match="q has values such as 'a'"):
        gp.predict_quantiles(X[:5], ["a"])
    with pytest.raises(InputError, match="inhomogeneous"):
        gp.predict([[1.0], [2.0, 3.0]])
    for wrong in ("a", -1):
        with pytest.raises(InputError, match=r"seed|Seed|SeedSequence|non-negative"):
            SparseGPRegressor(random_state=wrong).fit(X, y)
    with pytest.raises(InputError, match="sample_weight='a' names a column"):
        SparseGPRegressor().fit(pd.DataFrame(X, columns=["a", "b", "c"]), y, sample_weight="a")


def test_the_target_among_the_columns_is_pointed_out():
    X, y = smooth()
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(price=y)
    with pytest.warns(UserWarning, match="column 'price' has its value in every row"):
        fitted(table, y, optimizer=None)
    with pytest.warns(UserWarning, match="column 'price' has its value in every row"):
        fitted(table.assign(kind=["u", "v"] * 60), y, optimizer=None)
    with pytest.warns(UserWarning, match="column 3 has its value"):
        fitted(table.to_numpy(), y, optimizer=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SparseGPRegressor(approximation="vfe", n_inducing=9, optimizer=None).fit(table, target="price")


def test_blocks_belong_to_block_rows():
    X, y = smooth()
    with pytest.raises(InputError, match="pitc, pic"):
        SparseGPRegressor(approximation="vfe").fit(X, y, blocks=np.zeros(len(y), int))
    with pytest.raises(InputError, match="pitc, pic"):
        fitted(X, y).predict(X, blocks=np.zeros(len(y), int))


@pytest.mark.parametrize("approximation", ROWS)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_handful_of_rows(approximation, n):
    X, y = smooth(n)
    assert_honest(fitted(X, y, approximation), smooth(20, seed=1)[0])


@pytest.mark.parametrize("approximation", ROWS)
@pytest.mark.parametrize(
    "kind",
    [
        "constant column",
        "constant target",
        "duplicates",
        "scales",
        "noise-free",
        "pure noise",
        "wide",
        "integers",
    ],
)
def test_hard_data(approximation, kind):
    X, y = smooth()
    rng = np.random.default_rng(1)
    if kind == "constant column":
        X[:, 1] = 4.2
    elif kind == "constant target":
        y = np.full(len(y), 3.3)
    elif kind == "duplicates":
        X, y = np.repeat(X[:15], 8, axis=0), np.repeat(y[:15], 8)
    elif kind == "scales":
        X = X * [1e-12, 1.0, 1e12] + [1e-9, 0.0, 1e13]
    elif kind == "noise-free":
        y = np.sin(X[:, 0])
    elif kind == "pure noise":
        y = rng.standard_normal(len(y))
    elif kind == "wide":
        X = rng.standard_normal((len(y), 100))
    elif kind == "integers":
        X, y = rng.integers(0, 5, X.shape), rng.integers(0, 9, len(y))
    gp = fitted(X, y, approximation)
    assert_honest(gp, X)
    assert_honest(gp, X + (10 if kind == "integers" else 10 * X.std(axis=0)))


@pytest.mark.parametrize("kind", [SparseGPRegressor, HeteroscedasticGPRegressor, CommitteeGPRegressor])
@pytest.mark.parametrize(("n", "said"), [(1, "a single row, 5"), (4, "4 rows with the same target, 5")])
def test_equal_targets_say_nothing_about_the_width_of_intervals(kind, n, said):
    X, y = smooth(n)[0], np.full(n, 5.0)
    with pytest.warns(UserWarning, match=said):
        kind(random_state=0).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        kind(optimizer=None).fit(X, y)  # the width is the user's own


def test_constant_target_is_predicted_exactly():
    X, _ = smooth()
    mean, std = fitted(X, np.full(len(X), 3.3)).predict(X, return_std=True)
    np.testing.assert_allclose(mean, 3.3, atol=1e-6)
    assert std.max() < 2.0


def test_pure_noise_is_called_noise():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((800, 2)), 5.0 * rng.standard_normal(800)
    gp = fitted(X, y)
    assert gp.noise_var_ == pytest.approx(y.var(), rel=0.1)
    assert np.abs(gp.predict(X)).max() < 2.5


def test_far_away_the_prediction_returns_to_the_prior():
    X, y = smooth()
    gp = fitted(X, y, trend=None, calibration=None)
    _, std = gp.predict(X + 1e3, return_std=True)
    np.testing.assert_allclose(std**2, gp.kernel_.variance.item() + gp.noise_var_, rtol=1e-6)


def test_memory_layouts_and_dtypes_give_one_answer():
    X, y = smooth()
    expected = fitted(X, y).predict(X)
    np.testing.assert_allclose(fitted(np.asfortranarray(X), y).predict(np.asfortranarray(X)), expected)
    padded = np.zeros((240, 6))
    padded[::2, ::2] = X
    np.testing.assert_allclose(fitted(padded[::2, ::2], y).predict(padded[::2, ::2]), expected)
    np.testing.assert_allclose(fitted(X.astype(np.float32), y).predict(X.astype(np.float32)), expected, atol=1e-2)


def test_inputs_are_not_changed():
    X, y = smooth()
    X_before, y_before = X.copy(), y.copy()
    fitted(X, y, "pic").predict(X)
    np.testing.assert_array_equal(X, X_before)
    np.testing.assert_array_equal(y, y_before)


def test_a_kernel_that_is_no_covariance_gives_a_typed_error():
    class Broken(kernels.Kernel):
        def forward(self, X, Z):
            return -((X[:, None] - Z[None]) ** 2).sum(-1)

    with pytest.raises(ArithmeticError, match="check_kernel"):
        SparseGPRegressor(approximation="vfe", kernel=Broken(), optimizer=None, n_inducing=10).fit(*smooth())


def test_no_warnings_on_ordinary_data():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gp = fitted(*smooth(), "pic")
        gp.predict(smooth(seed=2)[0], return_std=True)


def test_a_kernel_in_the_wrong_units_is_pointed_out():
    X, y = smooth()
    with pytest.warns(UserWarning, match="units of the data"):
        fitted(X * [1e4, 1.0, 1.0], y, kernel=kernels.Matern32())
