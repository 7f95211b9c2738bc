"""Rows in and out of a model with learned noise: f as from one pass over all rows under the same noise process."""

from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sparsegp
from sparsegp import HeteroscedasticGPRegressor, InputError, SparseGPRegressor
from sparsegp.core.block import Block, MemoryRows
from sparsegp.noise.bound import BoundState

pytestmark = pytest.mark.usefixtures("brief_learning")

ROWS = ("vfe", "fitc", "pitc", "pic", "exact")


def wave(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    std = 0.05 + 0.4 / (1.0 + np.exp(-2.0 * X[:, 1]))
    return X, np.sin(2 * X[:, 0]) + 0.4 * X[:, 1] + std * rng.standard_normal(n)


def labels_of(X):
    return np.digitize(X[:, 0], [-1.0, 1.0])


FITTED = {}


def fitted(approximation, X, y, **changes):
    """A copy of the model, which is fitted once for all tests that ask for it."""
    name = approximation, X.tobytes(), y.tobytes(), *sorted(changes.items())
    if name not in FITTED:
        blocks = labels_of(X) if approximation in ("pitc", "pic") else None
        chosen = {"n_inducing": 15, "n_noise_inducing": 8, "random_state": 0, "normalize": False, **changes}
        FITTED[name] = HeteroscedasticGPRegressor(approximation=approximation, **chosen).fit(X, y, blocks=blocks)
    return deepcopy(FITTED[name])


def of_batch(model, X):
    return {"blocks": labels_of(X)} if model.approximation in ("pitc", "pic") else {}


def at(model, X):
    return {"blocks": labels_of(X)} if model.approximation == "pic" else {}


def noise_at(model, X):
    """R(x) in the units of y, of a model that does not standardise."""
    return model.model_.process.moments(torch.from_numpy(X)).R.numpy()


def one_pass(model, X, y):
    """The same f by another estimator: fixed hyper-parameters, the noise of each row known."""
    twin = SparseGPRegressor(
        kernel=model.kernel_,
        approximation=model.approximation,
        inducing=model.inducing_,
        n_inducing=len(model.inducing_),
        optimizer=None,
        normalize=False,
    )
    return twin.fit(X, y, noise_var=noise_at(model, X), **of_batch(model, X))


@pytest.mark.parametrize("approximation", ROWS)
def test_f_is_that_of_one_pass_over_all_rows(approximation):
    (X, y), (X_new, y_new), (Xs, _) = wave(), wave(60, seed=1), wave(40, seed=2)
    model = fitted(approximation, X, y)
    noise_before = model.predict_components(Xs, **at(model, Xs))[2]
    first, second = (labels_of(X_new) == 1), (labels_of(X_new) != 1)
    for part in (first, second):
        # blocks of "pitc" do not grow: labels of new rows are blocks of their own
        model.partial_fit(X_new[part], y_new[part], **of_batch(model, X_new[part]))
    X_all, y_all = np.vstack([X, X_new]), np.append(y, y_new)
    twin = one_pass(model, X_all, y_all)
    if approximation == "pitc":
        blocks = np.append(labels_of(X), 3 + labels_of(X_new))
        twin.fit(X_all, y_all, noise_var=noise_at(model, X_all), blocks=blocks)
    mean, epistemic, aleatoric = model.predict_components(Xs, **at(model, Xs))
    expected_mean, expected_epistemic, _ = twin.predict_components(Xs, **at(model, Xs))
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(epistemic, expected_epistemic, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(aleatoric, noise_before)
    assert model.n_samples_seen_ == 180


@pytest.mark.parametrize("approximation", ["pitc", "vfe"])
def test_the_first_batch_of_a_stream_is_one_block(approximation):
    """As in SparseGPRegressor.partial_fit, where every batch is one; approximations by points have none."""
    X, y = wave()
    chosen = {"n_inducing": 15, "n_noise_inducing": 8, "n_blocks": 4, "random_state": 0}
    model = HeteroscedasticGPRegressor(approximation=approximation, **chosen).partial_fit(X, y)
    assert model.info_.get("n_blocks") == (1 if approximation == "pitc" else None)


@pytest.mark.parametrize("approximation", ["vfe", "fitc"])
def test_the_bound_is_that_of_all_rows_at_the_same_noise_process(approximation):
    (X, y), (X_new, y_new) = wave(), wave(60, seed=1)
    model = fitted(approximation, X, y).partial_fit(X_new, y_new, sample_weight=np.full(60, 2.0))
    weight = torch.cat([torch.ones(120), torch.full((60,), 2.0)]).to(torch.float64)
    block = Block(torch.from_numpy(np.vstack([X, X_new])), torch.from_numpy(np.append(y, y_new)), None, weight)
    expected = BoundState.evaluate(model.model_.mean.state.prior, model.model_.process, MemoryRows(block)).value
    assert model.log_evidence_ == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("approximation", ROWS)
def test_rows_that_are_forgotten_leave_no_trace(approximation):
    (X, y), (X_new, y_new), (Xs, _) = wave(), wave(30, seed=1), wave(40, seed=2)
    model = fitted(approximation, X, y)
    before = model.predict_components(Xs, **at(model, Xs)), model.log_evidence_
    model.partial_fit(X_new, y_new, **of_batch(model, X_new)).forget(X_new, y_new, **of_batch(model, X_new))
    for now, then in zip(model.predict_components(Xs, **at(model, Xs)), before[0], strict=True):
        np.testing.assert_allclose(now, then, rtol=1e-6, atol=1e-8)
    assert model.log_evidence_ == pytest.approx(before[1], rel=1e-8)
    assert model.n_samples_seen_ == len(y)


@given(order=st.permutations(range(4)), cuts=st.lists(st.integers(1, 39), min_size=3, max_size=3, unique=True))
@settings(max_examples=15, deadline=None)
def test_neither_order_nor_size_of_batches_matters(order, cuts):
    (X, y), (X_new, y_new), (Xs, _) = wave(80), wave(40, seed=1), wave(20, seed=2)
    settled = {"optimizer": None, "noise_mean": -2.0, "n_inducing": 12}
    whole = fitted("pic", X, y, **settled).partial_fit(X_new, y_new, blocks=labels_of(X_new))
    parts = np.split(np.arange(40), sorted(cuts))
    model = fitted("pic", X, y, **settled)
    for k in order:
        model.partial_fit(X_new[parts[k]], y_new[parts[k]], blocks=labels_of(X_new[parts[k]]))
    for mine, theirs in zip(model.predict_components(Xs), whole.predict_components(Xs), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("approximation", ["vfe", "pic", "exact"])
def test_a_saved_model_goes_on_where_it_was(approximation, tmp_path):
    (X, y), (X_new, y_new), (Xs, _) = wave(), wave(40, seed=1), wave(20, seed=2)
    model = fitted(approximation, X, y, normalize=True)
    model.partial_fit(X_new[:20], y_new[:20], **of_batch(model, X_new[:20]))
    model.save(tmp_path / "model.sgp")
    loaded = sparsegp.load(tmp_path / "model.sgp")
    for each in (model, loaded):
        each.partial_fit(X_new[20:], y_new[20:], **of_batch(model, X_new[20:]))
    for mine, theirs in zip(loaded.predict_components(Xs), model.predict_components(Xs), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-10)
    assert loaded.info_["innovations"] == pytest.approx(model.info_["innovations"])


def test_new_rows_make_predictions_better_where_there_were_none():
    X, y = wave(200)
    left = X[:, 0] < 0
    model = HeteroscedasticGPRegressor(n_inducing=40, approximation="pic", n_blocks=4, random_state=0)
    model.fit(X[left], y[left])
    Xs, ys = wave(200, seed=3)
    Xs, ys = Xs[Xs[:, 0] > 0.5], ys[Xs[:, 0] > 0.5]
    before = -model.log_density(Xs, ys).mean()
    model.partial_fit(X[~left], y[~left])
    assert -model.log_density(Xs, ys).mean() < before - 0.2


def test_the_first_batch_is_a_fit_and_an_empty_one_changes_nothing():
    X, y = wave()
    model = HeteroscedasticGPRegressor(n_inducing=15, n_noise_inducing=8, random_state=0).partial_fit(X, y)
    mean = model.predict(X[:5])
    model.partial_fit(X[:0], y[:0])
    model.partial_fit(X[:3], y[:3], sample_weight=np.zeros(3))
    np.testing.assert_array_equal(model.predict(X[:5]), mean)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (lambda X, y: {"X": X[:, :1], "y": y}, "1 features"),
        (lambda X, y: {"X": np.where(X > 0, np.nan, X), "y": y}, "NaN"),
        (lambda X, y: {"X": X, "y": y, "blocks": np.zeros(len(y), dtype=int)}, "blocks"),
        (lambda X, y: {"X": X, "y": y[:-1]}, "inconsistent"),
    ],
)
def test_a_batch_with_an_error_leaves_the_model_as_it_was(rows, said):
    X, y = wave()
    model = fitted("vfe", X, y)
    mean = model.predict(X[:5])
    with pytest.raises((InputError, ValueError), match=said):
        model.partial_fit(**rows(*wave(10, seed=1)))
    np.testing.assert_array_equal(model.predict(X[:5]), mean)
    assert model.n_samples_seen_ == len(y)


def test_rows_that_were_never_added_are_not_forgotten():
    X, y = wave()
    model = fitted("pic", X, y)
    X_other, y_other = wave(5, seed=9)
    with pytest.raises(InputError, match="added before"):
        model.forget(X_other, y_other, blocks=labels_of(X_other))
    assert model.n_samples_seen_ == len(y)


def test_rows_far_from_the_first_ones_are_noticed():
    X, y = wave()
    model = fitted("vfe", X, y, normalize=True)
    with pytest.warns(UserWarning, match="far behind"):
        model.partial_fit(X + 100.0, y)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (400, 2))
    y = np.sin(2 * X[:, 0]) + np.exp(X[:, 1] - 2.0) * rng.standard_normal(400)
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y})


@pytest.fixture(scope="module")
def chosen(table):
    """As files of older versions have it: there, "auto" could choose a model that learns the noise."""
    settings = {"kernel": "se", "time_budget": 60, "random_state": 0}
    learned = HeteroscedasticGPRegressor(approximation="exact", n_noise_inducing=32, **settings)
    learned.fit(table[:300], target="y")
    model = SparseGPRegressor(n_inducing=40, **settings)
    model.assign(learned.fitted_)
    return model


def test_a_chosen_model_takes_rows_in_by_the_names_of_their_columns(chosen, table):
    model, new = chosen.to_local(), table[300:]
    model.partial_fit(new[["b", "y", "a"]], target="y")
    scaling = chosen.scaling_
    X_new, X_all = (scaling.tensor(part[["a", "b"]].to_numpy()) for part in (new, table))
    added = chosen.model_.add(Block(X_new, torch.from_numpy(scaling.targets(new["y"].to_numpy()))))
    np.testing.assert_allclose(model.predict(table[["a", "b"]]), added.forecast(X_all, None, scaling).mean)
    assert model.n_samples_seen_ == 400
    assert chosen.n_samples_seen_ == 300


def test_a_chosen_model_gives_rows_back(chosen, table):
    model, new = chosen.to_local(), table[300:320]
    model.partial_fit(new, target="y").forget(new, target="y")
    np.testing.assert_allclose(model.predict(table[["a", "b"]]), chosen.predict(table[["a", "b"]]), rtol=1e-6)


def test_a_chosen_model_is_not_merged_and_takes_no_noise(chosen, table):
    with pytest.raises(InputError, match="cannot be merged"):
        chosen.to_local().merge(chosen)
    with pytest.raises(InputError, match="noise_var"):
        chosen.to_local().partial_fit(table[["a", "b"]], table["y"], noise_var=np.ones(400))
