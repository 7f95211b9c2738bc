"""HeteroscedasticGPRegressor: units, approximations, hard input, and what scikit-learn expects."""

import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import KFold
from sklearn.utils.estimator_checks import check_estimator

from sparsegp import HeteroscedasticGPRegressor, InputError, SparseGPRegressor, kernels, metrics
from sparsegp.fit.learning_options import StartOptions
from sparsegp.learn.neighbourhoods import Rounds

pytestmark = pytest.mark.usefixtures("short_start")

DATA = Path(os.environ.get("SPARSEGP_DATA", Path(__file__).parents[3] / "shared" / "data"))
MOTORCYCLE = DATA / "motorcycle.parquet"


def noise_std(X):
    return 0.05 + 0.4 / (1.0 + np.exp(-2.0 * X[:, -1]))


def wave(n=200, seed=0, std=noise_std):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.4 * X[:, 1] + std(X) * rng.standard_normal(n)


def constant_std(X):
    return np.full(len(X), 0.15)


def quick(approximation="vfe", **changes):
    settings = {"n_inducing": 30, "n_noise_inducing": 15, "random_state": 0, "learn_inducing": False}
    settings["n_blocks"] = 4 if approximation in ("pitc", "pic", "block-pep") else None
    return HeteroscedasticGPRegressor(approximation=approximation, **{**settings, **changes})


def nlpd(model, X, y):
    return -model.log_density(X, y).mean()


@pytest.mark.parametrize("approximation", ["vfe", "pic", "exact"])
def test_every_row_learns_where_the_noise_is(approximation):
    X, y = wave()
    Xs, ys = wave(400, seed=1)
    model = quick(approximation).fit(X, y)
    plain = SparseGPRegressor(approximation="vfe", n_inducing=30, random_state=0).fit(X, y)
    _, epistemic, aleatoric = model.predict_components(Xs)
    assert np.abs(np.log(aleatoric / noise_std(Xs))).mean() < 0.35
    assert (epistemic > 0).all()
    assert nlpd(model, Xs, ys) < nlpd(plain, Xs, ys) - 0.2
    lower, upper = model.predict_interval(Xs)
    assert 0.9 <= np.mean((lower <= ys) & (ys <= upper)) <= 0.99


def test_stochastic_inference_agrees_with_natural_gradients():
    X, y = wave(150)
    Xs, ys = wave(300, seed=1)
    exact = quick().fit(X, y)
    other = quick(inference="stochastic", batch_size=75, n_steps=150).fit(X, y)
    assert other.log_evidence_ == pytest.approx(exact.log_evidence_, abs=0.05 * len(y))
    assert nlpd(other, Xs, ys) == pytest.approx(nlpd(exact, Xs, ys), abs=0.1)


def test_refitting_with_the_fitted_parameters_gives_the_same_model():
    """Every fitted parameter is in the user's units, the noise process too."""
    X, y = wave(150)
    X, y = X * [1e5, 1e-3] + [7e5, 2.0], 1e4 * y - 5e5
    model = quick().fit(X, y)
    again = HeteroscedasticGPRegressor(
        kernel=model.kernel_,
        inducing=model.inducing_,
        noise_kernel=model.noise_kernel_,
        noise_inducing=model.noise_inducing_,
        noise_mean=model.noise_mean_,
        trend=model.info_["trend"],
        optimizer=None,
    ).fit(X, y)
    for got, expected in zip(again.predict_components(X), model.predict_components(X), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3)
    assert again.log_evidence_ == pytest.approx(model.log_evidence_, abs=1e-3)
    assert 0.02 * 1e8 < model.noise_var_ < 0.2 * 1e8


def test_units_do_not_matter():
    X, y = wave(120)
    mean, *stds = quick().fit(X, y).predict_components(X)
    scaled_mean, *scaled_stds = quick().fit(X * [1e-9, 1e9], 1e6 * y + 1e7).predict_components(X * [1e-9, 1e9])
    np.testing.assert_allclose((scaled_mean - 1e7) / 1e6, mean, rtol=5e-3, atol=5e-3)
    np.testing.assert_allclose(np.array(scaled_stds) / 1e6, stds, rtol=5e-3, atol=5e-3)


def test_weights_count_rows_exactly():
    X, y = wave(60)
    counts = np.random.default_rng(3).integers(0, 4, 60)
    given = {
        "kernel": kernels.SquaredExponential(1.0, 1.2),
        "noise_kernel": kernels.SquaredExponential(0.8, 2.0),
        "inducing": X[:10],
        "noise_inducing": X[10:16],
        "noise_mean": -2.0,
        "optimizer": None,
        "normalize": False,
    }
    weighted = HeteroscedasticGPRegressor(**given).fit(X, y, sample_weight=counts)
    repeated = HeteroscedasticGPRegressor(**given).fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
    assert weighted.log_evidence_ == pytest.approx(repeated.log_evidence_, rel=1e-6)
    for got, expected in zip(weighted.predict_components(X), repeated.predict_components(X), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-3)


@pytest.mark.parametrize("approximation", ["vfe", "pic"])
def test_constant_noise_costs_next_to_nothing(approximation):
    X, y = wave(200, std=constant_std)
    Xs, ys = wave(1000, seed=1, std=constant_std)
    plain = SparseGPRegressor(approximation=approximation, n_inducing=30, n_blocks=4, random_state=0).fit(X, y)
    model = quick(approximation).fit(X, y)
    reference = nlpd(plain, Xs, ys)
    assert nlpd(model, Xs, ys) < reference + 0.01 * max(1.0, abs(reference))


def test_outliers_widen_the_tails_and_leave_the_mean():
    X, y = wave(200, std=constant_std)
    Xs, ys = wave(300, seed=1, std=constant_std)
    y[::25] += 5.0
    plain = SparseGPRegressor(approximation="vfe", n_inducing=30, calibration=None, random_state=0).fit(X, y)
    model = quick().fit(X, y)
    truth = np.sin(2 * Xs[:, 0]) + 0.4 * Xs[:, 1]
    assert metrics.rmse(truth, model.predict(Xs)) < metrics.rmse(truth, plain.predict(Xs))
    assert nlpd(model, Xs, ys) < nlpd(plain, Xs, ys) - 0.3


def test_noise_does_not_run_away_on_noiseless_or_constant_targets():
    X, _ = wave(80)
    for y in (np.sin(X[:, 0]), np.full(80, 3.0)):
        model = quick().fit(X, y)
        mean, std = model.predict(X, return_std=True)
        assert np.isfinite(std).all()
        assert (std > 0).all()
        np.testing.assert_allclose(mean, y, atol=0.05)


@pytest.mark.parametrize("approximation", ["vfe", "pic"])
def test_fewer_rows_than_inducing_inputs_and_a_single_row(approximation):
    X, y = wave(12)
    model = HeteroscedasticGPRegressor(approximation=approximation, random_state=0).fit(X, y)
    assert np.isfinite(model.log_density(X, y)).all()
    alone = HeteroscedasticGPRegressor(approximation=approximation, n_blocks=50, random_state=0).fit(X[:1], y[:1])
    assert np.isfinite(alone.predict(X, return_std=True)[1]).all()


def test_blocks_of_the_user():
    X, y = wave(120)
    labels = np.arange(120) % 3 * 10
    model = quick("pic", trend=None).fit(X, y, blocks=labels)
    assert model.info_["n_blocks"] == 3
    here = model.predict(X[:5], blocks=labels[:5])
    elsewhere = model.predict(X[:5], blocks=np.roll(labels, 1)[:5])
    assert np.abs(here - elsewhere).max() > 1e-6


def test_pickle_clone_tables_and_joint_covariance():
    X, y = wave(80)
    table = pd.DataFrame(X, columns=["a", "b"]).assign(y=y)
    model = quick(optimizer=None).fit(table, target="y")
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(table[["a", "b"]]), model.predict(table[["a", "b"]]))
    mean, cov = model.predict(table[["a", "b"]], return_cov=True)
    _, std = model.predict(table[["a", "b"]], return_std=True)
    np.testing.assert_allclose(np.sqrt(np.diag(cov)), std, rtol=1e-6)
    assert clone(model).get_params()["n_noise_inducing"] == 15
    assert model.score(table[["a", "b"]], mean) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"approximation": "nystrom"}, "no bound to learn a noise process from"),
        ({"approximation": "pic", "inference": "stochastic"}, "is for approximation='vfe'"),
        ({"inference": "fast"}, "inference must be one of"),
        ({"n_noise_inducing": 0}, "n_noise_inducing must be a whole number"),
        ({"noise_mean": np.inf}, "noise_mean is the log of a noise variance"),
        ({"optimizer": "adam"}, "optimizer must be one of"),
    ],
)
def test_bad_parameters_are_explained(changes, message):
    X, y = wave(20)
    with pytest.raises(InputError, match=message):
        HeteroscedasticGPRegressor(**changes).fit(X, y)


def test_blocks_without_block_approximation_and_zero_weights_are_explained():
    X, y = wave(20)
    model = quick(optimizer=None).fit(X, y)
    with pytest.raises(InputError, match="blocks= is for approximations with blocks"):
        model.predict(X, blocks=np.zeros(20, dtype=int))
    with pytest.raises(InputError, match="nothing to learn from"):
        quick().fit(X, y, sample_weight=np.zeros(20))


@pytest.mark.parametrize("optimizer", [None, pytest.param("lbfgs", marks=pytest.mark.slow)])
def test_scikit_learn_conformance(optimizer):
    check_estimator(
        HeteroscedasticGPRegressor(n_inducing=60, n_noise_inducing=10, optimizer=optimizer, random_state=0),
        expected_failed_checks={
            "check_sample_weight_equivalence_on_dense_data": "the k-means start sees rows, not weights; "
            "with given inducing inputs weights are exact, see test_weights_count_rows_exactly"
        },
    )


@pytest.mark.skipif(not MOTORCYCLE.exists(), reason="the motorcycle data are not here")
def test_motorcycle_is_covered_and_better_than_homoscedastic():
    table = pd.read_parquet(MOTORCYCLE)
    X, y = table.iloc[:, :-1].to_numpy("float64"), table["y"].to_numpy("float64")
    inside, ours, theirs = [], [], []
    for train, test in KFold(4, shuffle=True, random_state=0).split(X):
        model = quick().fit(X[train], y[train])
        lower, upper = model.predict_interval(X[test])
        inside.append((lower <= y[test]) & (y[test] <= upper))
        ours.append(model.log_density(X[test], y[test]))
        plain = SparseGPRegressor(approximation="vfe", n_inducing=30, random_state=0).fit(X[train], y[train])
        theirs.append(plain.log_density(X[test], y[test]))
    assert 0.92 <= np.concatenate(inside).mean() <= 0.98
    assert np.concatenate(ours).mean() > np.concatenate(theirs).mean() + 0.2


@pytest.mark.parametrize("inference", ["exact", "stochastic"])
def test_a_budget_ends_learning_and_leaves_a_valid_model(inference):
    X, y = wave(300)
    model = quick(inference=inference, time_budget=1e-3).fit(X, y)
    assert all(stage.iterations <= 1 for stage in model.info_["stages"])
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


@pytest.mark.usefixtures("brief_learning")
def test_an_ample_budget_changes_nothing():
    X, y = wave(150)
    expected = quick("pic").fit(X, y).predict(X)
    np.testing.assert_allclose(quick("pic", time_budget=1e4).fit(X, y).predict(X), expected, rtol=1e-6, atol=1e-8)


def test_learned_noise_is_nowhere_below_its_share_of_the_constant_one(options):
    """A rough kernel passes through every row; a repeated input with another target must not become impossible."""
    usual = StartOptions()
    assert usual.least_noise_fraction > 0
    steps = np.random.default_rng(0).standard_normal(600)
    X, y = np.linspace(0, 1, 600)[:, None], np.cumsum(steps)
    least, floor, density = [], [], []
    for share in (0.0, 0.5):
        options(learning={"start": replace(usual, least_noise_fraction=share), "rounds": Rounds()})
        model = quick("pic", kernel="matern12").fit(X, y)
        least.append(model.predict_components(X)[2].min())
        floor.append(np.sqrt(model.model_.process.limits[0]) * model.scaling_.y_scale)
        density.append(model.log_density(X[:1], y[:1] + y.std())[0])
    assert floor[0] < least[0] < 0.5 * floor[1]
    assert floor[1] <= least[1]
    assert density[1] > 0.2 * density[0]


def test_a_fit_that_fails_leaves_the_model_as_it_was():
    X, y = wave(60)
    model = quick("vfe").fit(X, y)
    before = model.predict(X)
    with pytest.raises(InputError, match="inducing"):
        model.set_params(inducing=np.zeros((3, 7))).fit(100.0 + 10.0 * X, 50.0 * y)
    np.testing.assert_array_equal(model.predict(X), before)
