"""Display classes: they show what the estimators say, for every estimator."""

import sys

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, InputError, SparseGPRegressor, kernels
from sparsegp.display import (
    CalibrationDisplay,
    CoverageDisplay,
    EffectDisplay,
    ImportanceDisplay,
    LearningCurveDisplay,
    MapDisplay,
    PredictionDisplay,
    RelevanceDisplay,
    ResidualsDisplay,
)
from sparsegp.display.column_plots import column_lengthscales
from sparsegp.learn.trace import LearningResult

matplotlib.use("Agg")

NAMES = ["price $", "b_1", "$x^{$"]
KERNEL = kernels.SquaredExponential(1.5, [0.9, 4.0, 9.0])
DISPLAYS = [
    PredictionDisplay,
    MapDisplay,
    CalibrationDisplay,
    CoverageDisplay,
    ResidualsDisplay,
    RelevanceDisplay,
    ImportanceDisplay,
    EffectDisplay,
]
FIXED = {"kernel": KERNEL, "optimizer": None}
MODELS = {
    "vfe": SparseGPRegressor(approximation="vfe", n_inducing=30, noise_var=0.02, **FIXED),
    "pic": SparseGPRegressor(approximation="pic", n_inducing=20, n_blocks=4, noise_var=0.02, random_state=0, **FIXED),
    "heteroscedastic": HeteroscedasticGPRegressor(n_inducing=30, n_noise_inducing=5, noise_mean=-4.0, **FIXED),
    "committee": CommitteeGPRegressor(n_experts=2, noise_var=0.02, **FIXED),
}


def wave(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 3))
    return pd.DataFrame(X, columns=NAMES), np.sin(2 * X[:, 0]) + 0.4 * X[:, 1] + 0.15 * rng.standard_normal(n)


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    matplotlib.pyplot.close("all")


@pytest.fixture(scope="module", params=sorted(MODELS))
def model(request):
    return MODELS[request.param].fit(*wave())


@pytest.fixture(scope="module")
def plain():
    """A model of one column, without names, that has learned."""
    X, y = wave()
    return (
        SparseGPRegressor(approximation="vfe", n_inducing=15, random_state=0).fit(X.to_numpy()[:, :1], y),
        X.to_numpy()[:, :1],
        y,
    )


@pytest.mark.parametrize("display", DISPLAYS, ids=lambda display: display.__name__)
@pytest.mark.filterwarnings("error")
def test_every_display_draws_every_estimator(model, display):
    """Also with column names that would be broken formulas, and again on axes that are given."""
    shown = display.from_estimator(model, *wave(60, seed=1))
    shown.figure_.canvas.draw()
    axes = np.ravel(shown.ax_)
    assert {ax.figure for ax in axes} == {shown.figure_}
    own = Figure().subplots(1, len(axes), squeeze=False)[0]
    assert list(np.ravel(shown.plot(own if len(own) > 1 else own[0]).ax_)) == list(own)
    assert shown.figure_ is own[0].figure


def test_a_slice_holds_the_other_columns_at_their_medians(model):
    X, y = wave(60, seed=1)
    shown = PredictionDisplay.from_estimator(model, X, y, feature="b_1", coverage=0.8, n_points=7)
    at = pd.DataFrame({"price $": X["price $"].median(), "b_1": shown.x, "$x^{$": X["$x^{$"].median()})
    np.testing.assert_allclose(shown.mean, model.predict(at))
    np.testing.assert_allclose([shown.lower, shown.upper], model.predict_interval(at, 0.8))
    assert (shown.x[0], shown.x[-1]) == (X["b_1"].min(), X["b_1"].max())
    assert shown.ax_.get_xlim() == (shown.x[0], shown.x[-1])
    assert shown.is_slice
    assert shown.ax_.get_xlabel() == "b_1"


def test_one_column_shows_rows_and_inducing_inputs(plain):
    model, X, y = plain
    shown = PredictionDisplay.from_estimator(model, X, y)
    assert not shown.is_slice
    np.testing.assert_array_equal(shown.x_rows, X[:, 0])
    np.testing.assert_array_equal(shown.inducing, model.inducing_[:, 0])
    assert "inducing inputs" in [text.get_text() for text in shown.ax_.get_legend().get_texts()]


def test_a_map_is_the_prediction_on_its_grid(model):
    X, y = wave(60, seed=1)
    shown = MapDisplay.from_estimator(model, X, y, features=(2, "price $"), n_points=5)
    at = pd.DataFrame({"price $": shown.y[3], "b_1": X["b_1"].median(), "$x^{$": shown.x[1]}, index=[0])
    mean, std = model.predict(at, return_std=True)
    assert shown.mean[3, 1] == pytest.approx(mean[0])
    assert shown.std[3, 1] == pytest.approx(std[0])
    assert shown.inducing is None  # three columns: they do not lie in the plane
    np.testing.assert_array_equal(shown.rows, X[["$x^{$", "price $"]])
    assert all(ax.lines[-1].get_xdata().tolist() == X["$x^{$"].tolist() for ax in shown.ax_)


def test_a_map_of_many_rows_shows_some(model):
    X, y = wave(1200, seed=1)
    assert len(MapDisplay.from_estimator(model, X, y, n_points=3).rows) == 400


def test_a_map_of_two_columns_shows_inducing_inputs_and_the_edges_of_blocks():
    X, y = wave()
    X = X.to_numpy()[:, :2]
    given = {"kernel": kernels.SquaredExponential(1.5, [0.9, 4.0]), "noise_var": 0.02, "optimizer": None}
    model = SparseGPRegressor(approximation="pic", n_inducing=10, **given).fit(X, y, blocks=(X[:, 0] > 0).astype(int))
    shown = MapDisplay.from_estimator(model, X, y, n_points=20)
    np.testing.assert_array_equal(shown.inducing, model.inducing_)
    assert set(np.unique(shown.blocks)) == {0, 1}
    assert all(len(row) == 1 for row in map(np.flatnonzero, np.diff(shown.blocks, axis=1)))
    assert shown.ax_[0].collections[1].get_segments()


def test_calibration_counts_rows_inside_intervals(model):
    """Also of mixtures: PIT values and intervals are two roads to the same coverage."""
    X, y = wave(60, seed=1)
    shown = CalibrationDisplay.from_estimator(model, X, y)
    for level, observed in zip(shown.levels, shown.observed, strict=True):
        lower, upper = model.predict_interval(X, level)
        assert observed == pytest.approx(np.mean((lower <= y) & (y <= upper)))


def test_residuals_are_in_predicted_standard_deviations(model):
    X, _ = wave(60, seed=1)
    mean, std = model.predict(X, return_std=True)
    shown = ResidualsDisplay.from_estimator(model, X, mean + 2.5 * std)
    np.testing.assert_allclose(shown.residuals, 2.5)
    np.testing.assert_allclose(shown.ax_.collections[0].get_offsets()[:, 0], mean)


def test_a_learning_curve_adds_up_the_stages(plain):
    model = plain[0]
    shown = LearningCurveDisplay.from_estimator(model)
    assert shown.seconds[-1] == pytest.approx(model.info_["learning_seconds"])
    last = model.info_["stages"][-1]
    assert shown.objective_per_row[-1] == pytest.approx(last.objective / last.n_rows)
    assert shown.n_rows[-1] == last.n_rows


def test_a_learning_curve_leaves_out_stages_without_a_value():
    model = SparseGPRegressor(approximation="vfe", **FIXED).fit(*wave(40))
    with pytest.raises(InputError, match="did not learn"):
        LearningCurveDisplay.from_estimator(model)
    broken = LearningResult(float("nan"), 0, 0, 0, 0.0, "interrupted", stopped=True)
    model.info_["stages"] = [LearningResult(-30.0, 10, 1, 2, 0.5, "done"), broken]
    assert LearningCurveDisplay.from_estimator(model).n_rows == [10]


def test_relevance_does_not_depend_on_units():
    X, y = wave(50)
    scale = np.array([1e3, 0.01, 7.0])
    model = SparseGPRegressor(approximation="vfe", noise_var=0.02, **FIXED).fit(X, y)
    stretched = kernels.SquaredExponential(1.5, KERNEL.lengthscales.detach().numpy() * scale)
    other = SparseGPRegressor(approximation="vfe", kernel=stretched, noise_var=0.02, optimizer=None).fit(X * scale, y)
    shown = RelevanceDisplay.from_estimator(model, X, y)
    np.testing.assert_allclose(RelevanceDisplay.from_estimator(other, X * scale, y).relevance, shown.relevance)
    np.testing.assert_allclose(shown.relevance, X.std(ddof=0) / [0.9, 4.0, 9.0], rtol=1e-9)
    assert [tick.get_text() for tick in shown.ax_.get_yticklabels()] == NAMES


def test_lengthscales_are_found_inside_composed_kernels():
    inner = kernels.Matern32(1.0, [2.0, 3.0], active_dims=[0, 1])
    kernel = kernels.Sum(inner**2, kernels.SquaredExponential(1.0, 5.0), active_dims=[3, 1]) * kernels.Linear(1.0)
    np.testing.assert_allclose(column_lengthscales(kernel, 4), [np.inf, 3.0, np.inf, 2.0])


def test_what_cannot_be_drawn_is_explained(plain):
    model, X, y = plain
    with pytest.raises(InputError, match="use PredictionDisplay"):
        MapDisplay.from_estimator(model, X, y)
    with pytest.raises(InputError, match="name or a number from 0 to 0"):
        PredictionDisplay.from_estimator(model, X, y, feature="missing")
    with pytest.raises(InputError, match="2 matplotlib axes"):
        CalibrationDisplay.from_estimator(model, X, y, ax=Figure().subplots())
    linear = SparseGPRegressor(
        kernels.Linear(1.0), approximation="vfe", n_inducing=1, noise_var=0.1, optimizer=None
    ).fit(X, y)
    with pytest.raises(InputError, match="no lengthscales"):
        RelevanceDisplay.from_estimator(linear, X, y)


def test_without_matplotlib_the_error_says_what_to_install(plain, monkeypatch):
    model, X, y = plain
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"sparsegp\[plot\]"):
        ResidualsDisplay.from_estimator(model, X, y)


def test_coverage_shows_each_part_and_marks_those_that_fail(model):
    X, y = wave(600, seed=1)
    loud = np.where(X["b_1"] > 1.8, 3.0, 0.0) * np.random.default_rng(2).standard_normal(600)
    shown = CoverageDisplay.from_estimator(model, X, y + loud, coverage=0.9)
    assert shown.quantities[0] == "b_1"
    assert [label.get_text() for label in shown.ax_.get_yticklabels()] == shown.quantities
    assert set(shown.quantities) == {*NAMES, "the forecast", "the std of the forecast"}
    assert len(shown.ax_.containers) == len(shown.segments.parts)
    squares = [bar for bar in shown.ax_.containers if bar[0].get_marker() == "s"]
    assert len(squares) == len(shown.segments.failing) > 0
    assert shown.segments.options.coverage == 0.9
    drawn = sorted(float(bar[0].get_xdata()[0]) for bar in shown.ax_.containers)
    assert drawn == pytest.approx(sorted(part.coverage for part in shown.segments.parts))


def test_no_share_is_drawn_beyond_0_and_1(model):
    shown = CoverageDisplay.from_estimator(model, *wave(300, seed=1))
    assert max(part.coverage + 2.0 * part.error for part in shown.segments.parts) > 1.0
    ends = [bar[2][0].get_segments()[0][:, 0] for bar in shown.ax_.containers]
    assert np.min(ends) >= 0.0
    assert np.max(ends) <= 1.0
