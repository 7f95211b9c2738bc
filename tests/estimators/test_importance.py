"""What matters to predictions, by shuffling; effects against brute force; the words of the verdict."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

from sparsegp import InputError, SparseGPRegressor, kernels, report
from sparsegp.display import EffectDisplay, ImportanceDisplay
from sparsegp.estimators.importance import Effect, Importance, ImportanceOptions
from sparsegp.report.numbers import shown

NAMES = ["strong", "wiggly", "none", "level"]


def rows(n=400, seed=0):
    """A strong column with a long lengthscale, a weak one with a short one, one that says nothing, and a few levels."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(-3, 3, (n, 3)), rng.integers(0, 3, n)])
    y = 2.0 * X[:, 0] + 0.3 * np.sin(5 * X[:, 1]) + np.array([0.0, 1.5, 0.5])[X[:, 3].astype(int)]
    return pd.DataFrame(X, columns=NAMES), y + 0.2 * rng.standard_normal(n)


@pytest.fixture(scope="module")
def model():
    kernel = kernels.SquaredExponential(30.0, [6.0, 0.5, 8.0, 1.0])
    return SparseGPRegressor(kernel, approximation="exact", noise_var=0.04, optimizer=None).fit(*rows())


def test_the_column_that_matters_comes_first_whatever_its_lengthscale(model):
    X, y = rows(300, seed=1)
    found = Importance.of(model, X, y)
    assert [found.names[d] for d in found.order[:3]] == ["strong", "level", "wiggly"]
    assert [found.names[d] for d in found.sure] == ["strong", "level", "wiggly"]
    # 1/lengthscale would have had wiggly before strong
    assert model.kernel_.lengthscales[1] < model.kernel_.lengthscales[0]
    assert found.rmse == pytest.approx(np.sqrt(np.mean((y - model.predict(X)) ** 2)))
    # shuffling x in 2 x + rest adds 2 var(2 x) to the squared error
    assert found.growth[0] == pytest.approx(2 * 4 * 3.0, rel=0.15)
    lower, upper = found.interval
    assert (lower <= found.rmse_growth).all()
    assert (found.rmse_growth <= upper).all()
    assert lower[2] < 0.0 < upper[2] + 0.02


def test_error_bars_have_the_size_of_what_other_rows_say(model):
    each = [Importance.of(model, *rows(150, seed=seed)) for seed in range(2, 14)]
    spread = np.std([found.growth[0] for found in each], ddof=1)
    expected = np.sqrt(np.mean([found.error[0] ** 2 for found in each]))
    assert 0.5 < spread / expected < 2.0


def test_tables_and_arrays_say_the_same(model):
    X, y = rows(100, seed=1)
    expected = Importance.of(model, X, y)
    np.testing.assert_allclose(Importance.of(model, pl.from_pandas(X), y).growth, expected.growth)
    np.testing.assert_allclose(Importance.of(model, X.to_numpy(), y).growth, expected.growth)
    effect = Effect.of(model, X, 0)
    for given in (pl.from_pandas(X), X.to_numpy()):
        np.testing.assert_allclose(Effect.of(model, given, 0).mean, effect.mean)


def test_an_effect_is_the_average_prediction_and_its_band_that_of_the_average(model):
    X, _ = rows(60, seed=1)
    effect = Effect.of(model, X, 1, ImportanceOptions(n_points=5))
    assert X["wiggly"].min() < effect.values[0] < effect.values[-1] < X["wiggly"].max()
    for value, mean, lower, upper in zip(effect.values, effect.mean, effect.lower, effect.upper, strict=True):
        at = X.assign(wiggly=value)
        f, cov = model.predict(at, return_cov=True, latent=True)
        assert mean == pytest.approx(f.mean())
        half = 1.959964 * np.sqrt(cov.sum()) / len(X)
        assert (lower, upper) == (pytest.approx(f.mean() - half), pytest.approx(f.mean() + half))
    # surer of the average than of a row
    assert (effect.upper - effect.lower).max() < 2 * 1.96 * model.forecast(X, latent=True).std.mean()


def test_columns_with_few_values_are_shown_value_by_value(model):
    X, _ = rows(200, seed=1)
    effect = Effect.of(model, X, 3)
    assert effect.has_levels
    np.testing.assert_array_equal(effect.values, [0.0, 1.0, 2.0])
    np.testing.assert_allclose(effect.shares, X["level"].value_counts(normalize=True).sort_index())
    assert effect.mean[1] - effect.mean[0] == pytest.approx(1.5, abs=0.1)
    display = EffectDisplay(effect).plot()
    assert [label.get_text().split()[0] for label in display.ax_.get_yticklabels()] == ["0", "1", "2"]


def test_displays_stay_within_the_data(model):
    X, y = rows(100, seed=1)
    shown = EffectDisplay.from_estimator(model, X, feature="strong")
    assert X["strong"].min() <= shown.ax_.get_xlim()[0] < shown.ax_.get_xlim()[1] <= X["strong"].max()
    bars = ImportanceDisplay.from_estimator(model, X, y)
    assert bars.ax_.get_yticklabels()[0].get_text() == "strong"
    with pytest.raises(InputError, match="column's name or a number from 0 to 3; got 'weak'"):
        EffectDisplay.from_estimator(model, X, feature="weak")
    with pytest.raises(InputError, match="at least 2 of them; got 1"):
        Importance.of(model, X[:1], y[:1])


def test_the_verdict_says_how_good_and_how_honest(model):
    X, y = rows(300, seed=1)
    found = report.judge(model, X, y)
    assert found.verdict.headline == "Accurate, and honest about its errors."
    line = np.column_stack([np.ones(300), X.to_numpy()])
    in_sample = np.sqrt(np.mean((y - line @ np.linalg.lstsq(line, y)[0]) ** 2))
    assert in_sample < found.baselines.line_rmse < 1.1 * in_sample
    assert f"{1 - found.scores['rmse'] / y.std():.0%} less than guessing the mean ({y.std():.4g})" in str(found.verdict)
    assert f"a straight line ({found.baselines.line_rmse:.4g})" in str(found.verdict)
    assert f"{found.scores['coverage_95']:.1%} of the rows lie inside their 95% interval, as promised" in str(
        found.verdict
    )
    assert found.importance.sure[0] == 0


@pytest.mark.parametrize(
    ("noise_var", "off", "says"),
    [
        (1e-4, 0.0, "Accurate, but its intervals are too narrow."),
        (4.0, 0.0, "Accurate, but its intervals are wider than needed."),
        (0.04, 20.0, "No better than guessing the mean, and its intervals are too narrow."),
    ],
)
def test_the_verdict_has_the_right_words(noise_var, off, says):
    kernel = kernels.SquaredExponential(30.0, [6.0, 0.5, 50.0, 1.0])
    model = SparseGPRegressor(kernel, approximation="exact", noise_var=noise_var, optimizer=None).fit(*rows(600))
    X, y = rows(200, seed=1)
    found = report.judge(model, X, y + off)
    assert found.verdict.headline == says
    wide = [finding for finding in found.findings if finding.what == "The intervals are wider than needed"]
    assert bool(wide) == ("wider" in says)


def test_a_straight_line_is_enough():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (200, 1))
    y = 3.0 * X[:, 0] + 0.3 * rng.standard_normal(200)
    model = SparseGPRegressor("se", approximation="exact", random_state=0).fit(X[:100], y[:100])
    found = report.judge(model, X[100:], y[100:])
    assert found.verdict.headline.startswith("No better than a straight line, but honest")


def test_what_the_model_does_not_know_is_said():
    X, y = rows(300)
    model = SparseGPRegressor(
        kernels.SquaredExponential(30.0, [3.0, 0.5, 50.0, 1.0]), approximation="exact", noise_var=0.04, optimizer=None
    ).fit(X[X["strong"] < 0.0], y[X["strong"] < 0.0])
    told = " ".join(report.judge(model, *rows(200, seed=1)).unknowns)
    assert "It knows least about rows with strong above" in told
    near = report.judge(model, *(part[rows(200, seed=1)[0]["strong"] < 0.0] for part in rows(200, seed=1))).unknowns
    assert near[-1] == "None of these rows is far from what it has seen."
    far = rows(200, seed=1)[0].assign(strong=30.0)
    assert "100.0% of these rows are far from what it has seen" in report.judge(model, far, y[:200]).unknowns[-1]


def dated(n=300, seed=0):
    """Text that is a date, whole numbers that go up with it, and a category, so that columns become several numbers."""
    rng = np.random.default_rng(seed)
    day = np.sort(rng.integers(0, 360, n))
    when = pd.Timestamp("2023-01-01") + pd.to_timedelta(day, unit="D")
    table = pd.DataFrame(
        {
            "kind": rng.choice(["u", "v"], n),
            "weak": rng.normal(size=n),
            "month": when.month.to_numpy(),
            "when": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "strong": rng.uniform(-3, 3, n),
        }
    )
    return table, 2.0 * table["strong"].to_numpy() + day / 100 + 0.2 * rng.standard_normal(n)


@pytest.fixture(scope="module")
def of_dates():
    given = {"kernel": "matern32", "noise_var": 0.04, "optimizer": None, "calibration": None}
    return SparseGPRegressor(approximation="exact", **given).fit(*dated())


def test_the_effect_of_text_that_is_a_date_is_a_curve_over_time(of_dates):
    table, _ = dated(80, seed=1)
    effect = Effect.of(of_dates, table, 3, ImportanceOptions(n_points=4))
    assert not effect.has_levels
    assert effect.values.dtype.kind == "M"
    for value, mean in zip(effect.values, effect.mean, strict=True):
        at = table.assign(when=f"{value}Z")
        assert mean == pytest.approx(of_dates.predict(at, latent=True).mean())
    display = EffectDisplay(effect).plot()
    assert len(display.ax_.get_xticks()) <= 8


def test_effects_of_whole_numbers_are_at_whole_numbers(of_dates):
    table, _ = dated(80, seed=1)
    values = Effect.of(of_dates, table, 2).values
    np.testing.assert_array_equal(values, np.arange(values[0], values[-1] + 1))


def test_a_page_on_columns_of_many_numbers(of_dates, tmp_path):
    table, y = dated(80, seed=1)
    text = report.write(of_dates, table, y, tmp_path / "page.html").read_text()
    assert "It goes up and down with when" in text or "It goes up and down with month" in text
    picture = text[text.index("Map of the two columns") :]
    assert 0 < picture.index("strong") < picture.index("</svg>")
    assert "weak" not in picture[: picture.index("</svg>")]


def test_values_that_are_new_are_said_once(of_dates, tmp_path):
    table, y = dated(80, seed=1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        report.write(of_dates, table.assign(kind=["w", *table["kind"][1:]]), y, tmp_path / "page.html")
    assert sum("that the fit has not met" in str(one.message) for one in said) == 1


def test_a_few_rows_are_no_verdict(model):
    X, y = rows(9, seed=1)
    assert report.judge(model, X, y).verdict.headline == "Too few rows to judge by."
    assert "On 1 row the typical error" in str(report.judge(model, X[:1], y[:1]).verdict)


def test_the_index_of_a_frame_is_not_pointed_out(model):
    X, _ = rows(50, seed=1)
    shuffled = X.sample(20, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model.predict(shuffled)
    np.testing.assert_allclose(found, model.predict(X)[shuffled.index])


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0.0, "0"),
        (17.0, "17"),
        (736.012, "736"),
        (-12345.6, "-12,350"),
        (2034.4, "2034"),
        (9999.96, "10,000"),
        (0.00123456, "0.001235"),
        (1e-7, "1e-07"),
        (3e12, "3e+12"),
        (np.nan, "nan"),
    ],
)
def test_numbers_of_a_page_have_few_digits(number, words):
    assert shown(number) == words
