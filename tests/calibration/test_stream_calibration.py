"""Streams: intervals follow noise that changes."""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest

from sparsegp import SparseGPRegressor
from sparsegp.calibration.mixture import Shape


def stream(n, noise_std, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (n, 1))
    return X, np.sin(2.0 * X[:, 0]) + noise_std * rng.standard_normal(n)


def inside(model, X, y):
    low, high = model.predict_interval(X, 0.95)
    return (low < y) & (y < high)


def test_a_stream_whose_noise_doubles_is_covered_again_after_two_thousand_rows():
    model = SparseGPRegressor(approximation="vfe", kernel="se", n_inducing=20, random_state=0)
    model.fit(*stream(1500, 0.1, 0))
    held = []
    for k in range(80):
        X, y = stream(50, 0.2, k + 1)
        held.append(inside(model, X, y))
        model.partial_fit(X, y)
    early, late = np.concatenate(held[:4]).mean(), np.concatenate(held[40:]).mean()
    assert early < 0.85
    # 2,000 rows: one standard error is half a point
    assert 0.94 <= late <= 0.96
    assert model.calibration_.n_rows > 4000


def flights_in_time_order():
    table = parquet.read_table(Path(__file__).parents[2] / "examples/data/flights_nyc2013_sample.parquet")
    time = [(name, "ascending") for name in ("month", "day_of_month", "dep_time")]
    in_order = table.take(pc.sort_indices(table, time))
    values = np.column_stack([column.to_numpy() for column in in_order.columns]).astype(np.float64)
    return values[:, :6], values[:, -1]


def test_flights_in_time_order_stay_covered_from_winter_to_spring():
    X, y = flights_in_time_order()
    model = SparseGPRegressor(approximation="vfe", kernel="matern32", n_inducing=40, random_state=0)
    model.fit(X[:2000], y[:2000])
    held = []
    for start in range(2000, 14_000, 100):
        new = slice(start, start + 100)
        held.append(inside(model, X[new], y[new]).mean())
        model.partial_fit(X[new], y[new])
    # days differ from one another: a thousand flights in a row spread by more than chance
    assert 0.94 <= np.mean(held) <= 0.965
    assert all(0.92 <= part.mean() <= 0.985 for part in np.array_split(np.array(held), 12))


def test_a_steady_stream_stays_covered():
    model = SparseGPRegressor(approximation="vfe", kernel="se", n_inducing=20, random_state=0)
    model.fit(*stream(1500, 0.1, 0))
    held = []
    for k in range(80):
        X, y = stream(50, 0.1, k + 1)
        held.append(inside(model, X, y))
        model.partial_fit(X, y)
    assert 0.935 <= np.concatenate(held).mean() <= 0.965


def loud_on_the_right(n, factor, seed):
    """Noise that is ten times as loud for x > 1, and `factor` times what it was everywhere."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (n, 1))
    noise_std = factor * np.where(X[:, 0] > 1.0, 0.5, 0.05)
    return X, np.sin(2.0 * X[:, 0]) + noise_std * rng.standard_normal(n)


@pytest.mark.parametrize("approximation", ["vfe", "pic"])
def test_drift_is_more_than_the_calibration_expects(approximation):
    options = {"kernel": "se", "n_inducing": 20, "n_blocks": 15, "random_state": 0}
    model = SparseGPRegressor(approximation=approximation, **options).fit(*loud_on_the_right(2000, 1.0, 0))
    assert model.info_["calibration"]["kind"] == "scale"
    X, y = loud_on_the_right(600, 1.0, 1)
    for batch in np.array_split(np.argsort(X[:, 0]), 6):  # the loudest rows come last, and count most
        model.partial_fit(X[batch], y[batch])
    assert 0.7 < model.info_["innovations"]["mean_square"] < 1.3
    model.partial_fit(*loud_on_the_right(300, 3.0, 2))
    assert model.info_["innovations"]["drift"]


def test_rows_that_leave_and_models_that_join_keep_the_calibration():
    X, y = stream(400, 0.1, 0)
    model = SparseGPRegressor(approximation="vfe", kernel="se", n_inducing=20, random_state=0).fit(X, y)
    before = model.calibration_
    model.forget(X[:50], y[:50])
    assert model.calibration_ is before
    other = model.without_rows().partial_fit(X[:50], y[:50])
    model.merge(other)
    assert model.calibration_ is before
    assert model.n_samples_seen_ == 400


def test_a_step_with_residuals_of_the_shape_itself_hardly_changes_it():
    shape = Shape(np.array([0.3, 0.7]), np.array([1.4, -0.6]), np.array([0.5, 0.8]))
    drawn = shape.sample((20_000,), np.random.default_rng(0))
    after = shape
    for part in np.split(drawn, 200):
        after = after.after(part, 500.0)
    assert after.var == pytest.approx(shape.var, rel=0.15)
    levels = np.array([0.025, 0.5, 0.975])
    assert np.allclose(after.quantiles(levels), shape.quantiles(levels), atol=0.25)


def test_one_batch_or_many_small_ones_are_much_the_same():
    shape = Shape.gaussian()
    r = 2.0 * np.random.default_rng(0).standard_normal(1000)
    small = shape
    for value in r:
        small = small.after(np.array([value]), 200.0)
    assert small.var == pytest.approx(4.0, rel=0.3)
    assert shape.after(r, 200.0).var == pytest.approx(4.0, rel=0.1)
