"""The regressor against the table it wraps, its units, and what scikit-learn expects of it."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from sparsegp import InputError, SparseGPRegressor, kernels
from sparsegp.core.approximations import NAMES
from sparsegp.errors import NegativeVarianceError
from sparsegp.testing import oracle

pytestmark = pytest.mark.usefixtures("short_start")

SPARSE = [name for name in NAMES if name not in ("exact", "sod", "nystrom")]
BLOCKED = ("pitc", "pic", "block-pep")


def wave(n=300, seed=0, n_features=2):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, n_features))
    return X, np.sin(2 * X[:, 0]) + 0.4 * X[:, -1] + 0.15 * rng.standard_normal(n)


def fixed(approximation, **changes):
    settings = {
        "kernel": kernels.SquaredExponential(1.3, [0.9, 1.7]),
        "noise_var": 0.07,
        "inducing": np.random.default_rng(5).uniform(-3, 3, (12, 2)),
        "optimizer": None,
        "normalize": False,
        "n_blocks": 4,
        "random_state": 0,
    }
    return SparseGPRegressor(approximation=approximation, **{**settings, **changes})


def dense_kernel(A, B):
    scale = np.array([0.9, 1.7])
    return 1.3 * np.exp(-0.5 * (((A[:, None] - B[None]) / scale) ** 2).sum(-1))


@pytest.mark.parametrize("approximation", SPARSE)
def test_fixed_model_equals_the_dense_oracle(approximation):
    X, y = wave(60)
    Xs = wave(9, seed=1)[0]
    labels = np.arange(60) % 4 if approximation in BLOCKED else None
    test_labels = np.arange(9) % 4 if approximation in BLOCKED else None
    gp = fixed(approximation).fit(X, y, blocks=labels)
    mean, cov = gp.predict(Xs, return_cov=True, latent=True, blocks=test_labels)
    expected = oracle.predict(approximation, dense_kernel, X, y, gp.inducing_, 0.07, Xs, labels, test_labels, power=0.5)
    np.testing.assert_allclose(mean, expected[0], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(cov, expected[1], rtol=1e-8, atol=1e-10)
    evidence = oracle.log_evidence(approximation, dense_kernel, X, y, gp.inducing_, 0.07, labels, power=0.5)
    assert gp.log_evidence_ == pytest.approx(evidence, rel=1e-9)
    _, std = gp.predict(Xs, return_std=True, blocks=test_labels)
    np.testing.assert_allclose(std, np.sqrt(np.diag(cov) + 0.07), rtol=1e-8)


def test_exact_model_equals_scikit_learn():
    X, y = wave(80)
    peer = GaussianProcessRegressor(ConstantKernel(1.3) * RBF([0.9, 1.7]) + WhiteKernel(0.07), optimizer=None).fit(X, y)
    gp = SparseGPRegressor(kernel=peer.kernel, approximation="exact", optimizer=None, normalize=False).fit(X, y)
    mean, std = gp.predict(X[:10] + 0.1, return_std=True)
    peer_mean, peer_std = peer.predict(X[:10] + 0.1, return_std=True)
    np.testing.assert_allclose(mean, peer_mean, rtol=1e-7)
    np.testing.assert_allclose(std, peer_std, rtol=1e-7)
    assert gp.log_evidence_ == pytest.approx(peer.log_marginal_likelihood_value_, rel=1e-8)


@pytest.mark.parametrize("approximation", [*SPARSE, "exact", "sod"])
def test_learning_explains_the_data(approximation):
    X, y = wave(300)
    Xs, ys = wave(200, seed=3)
    # the evidence of sor and dtc rewards inducing inputs that desert the data (docs/approximations.md)
    gp = SparseGPRegressor(
        approximation=approximation,
        n_inducing=60,
        n_blocks=5,
        learn_inducing=approximation not in ("sor", "dtc"),
        random_state=0,
    ).fit(X, y)
    mean, std = gp.predict(Xs, return_std=True)
    assert np.sqrt(np.mean((mean - ys) ** 2)) < 0.25
    assert 0.85 <= np.mean(np.abs(mean - ys) < 1.96 * std) <= 1.0
    assert gp.score(Xs, ys) > 0.9


def test_refitting_with_the_fitted_parameters_gives_the_same_model():
    """Kernel, noise and inducing inputs are in the user's units, whatever they are."""
    X, y = wave(300)
    X, y = X * [1e5, 1e-3] + [7e5, 2.0], 1e4 * y - 5e5
    gp = SparseGPRegressor(approximation="vfe", n_inducing=40, random_state=0).fit(X, y)
    fitted = {"kernel": gp.kernel_, "noise_var": gp.noise_var_, "inducing": gp.inducing_, "trend": gp.info_["trend"]}
    again = SparseGPRegressor(approximation="vfe", **fitted, optimizer=None).fit(X, y)
    for got, expected in zip(again.predict(X, return_std=True), gp.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_units_do_not_matter():
    X, y = wave(250)
    plain = SparseGPRegressor(approximation="vfe", n_inducing=30, random_state=0).fit(X, y)
    scaled = SparseGPRegressor(approximation="vfe", n_inducing=30, random_state=0).fit(X * [1e-12, 1e12], 1e6 * y + 1e7)
    mean, std = plain.predict(X, return_std=True)
    scaled_mean, scaled_std = scaled.predict(X * [1e-12, 1e12], return_std=True)
    np.testing.assert_allclose((scaled_mean - 1e7) / 1e6, mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(scaled_std / 1e6, std, rtol=1e-3)


@pytest.mark.parametrize("approximation", [*SPARSE, "exact"])
def test_weight_counts_a_row_that_many_times(approximation):
    X, y = wave(40)
    weights = np.random.default_rng(2).integers(0, 4, 40)
    labels = np.arange(40) % 3 if approximation in BLOCKED else None
    repeated = None if labels is None else np.repeat(labels, weights)
    weighted = fixed(approximation, normalize=True).fit(X, y, sample_weight=weights, blocks=labels)
    literal = fixed(approximation, normalize=True).fit(np.repeat(X, weights, 0), np.repeat(y, weights), blocks=repeated)
    new = wave(7, seed=4)[0]
    places = None if labels is None else np.arange(7) % 3
    for got, expected in zip(
        weighted.predict(new, return_std=True, blocks=places),
        literal.predict(new, return_std=True, blocks=places),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-7)
    assert weighted.log_evidence_ == pytest.approx(literal.log_evidence_, rel=1e-8)


def test_known_noise_is_used_row_by_row():
    X, y = wave(60)
    noise = np.random.default_rng(3).uniform(0.01, 0.5, 60)
    gp = fixed("fitc").fit(X, y, noise_var=noise)
    mean, cov = oracle.predict("fitc", dense_kernel, X, y, gp.inducing_, noise, X[:5])
    got, got_cov = gp.predict(X[:5], return_cov=True, latent=True)
    np.testing.assert_allclose(got, mean, rtol=1e-8)
    np.testing.assert_allclose(got_cov, cov, rtol=1e-8, atol=1e-12)
    assert gp.noise_var_ == pytest.approx(noise.mean())


def test_a_combination_of_rows_lies_between_them():
    X, y = wave(80)
    labels = np.arange(80) % 4
    gp = fixed({"dtc": 0.3, "pitc": 0.7}).fit(X, y, blocks=labels)
    mu, _, evidence = oracle.combination({"dtc": 0.3, "pitc": 0.7}, dense_kernel, X, y, gp.inducing_, 0.07, labels)
    assert gp.log_evidence_ == pytest.approx(evidence, rel=1e-9)
    np.testing.assert_allclose(gp.predict(gp.inducing_), mu, rtol=1e-6)


def test_nystrom_says_that_variances_are_negative_and_clips_on_request():
    X, y = wave(60)
    gp = fixed("nystrom", inducing=X[:4], noise_var=0.001).fit(X, y)
    _, cov = gp.predict(X, return_cov=True, latent=True)
    assert np.diag(cov).min() < 0
    with pytest.raises(NegativeVarianceError, match="clip_variances=True"):
        gp.predict(X, return_std=True, latent=True)
    clipped = fixed("nystrom", inducing=X[:4], noise_var=0.001, clip_variances=True).fit(X, y)
    assert (clipped.predict(X, return_std=True, latent=True)[1] > 0).all()


def test_intervals_quantiles_densities_and_samples_agree():
    X, y = wave(200)
    gp = SparseGPRegressor(approximation="vfe", n_inducing=40, calibration=None, random_state=0).fit(X, y)
    mean, std = gp.predict(X[:5], return_std=True)
    lower, upper = gp.predict_interval(X[:5], coverage=0.9)
    np.testing.assert_allclose((lower + upper) / 2, mean)
    np.testing.assert_allclose(gp.predict_quantiles(X[:5], [0.05, 0.95]), np.column_stack([lower, upper]))
    density = -0.5 * np.log(2 * np.pi * std**2) - (y[:5] - mean) ** 2 / (2 * std**2)
    np.testing.assert_allclose(gp.log_density(X[:5], y[:5]), density)
    _, epistemic, aleatoric = gp.predict_components(X[:5])
    np.testing.assert_allclose(epistemic**2 + aleatoric**2, std**2)
    draws = gp.sample_y(X[:5], 4000, random_state=0)
    np.testing.assert_allclose(draws.mean(1), mean, atol=0.02)
    np.testing.assert_allclose(draws.std(1), std, rtol=0.05)
    assert gp.sample_y(X[:5], 2, random_state=1).tolist() == gp.sample_y(X[:5], 2, random_state=1).tolist()


def test_float32_is_close_to_float64():
    X, y = wave(300)
    double = fixed("vfe").fit(X, y).predict(X, return_std=True)
    single = fixed("vfe", dtype="float32").fit(X, y).predict(X, return_std=True)
    for a, b in zip(single, double, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_works_in_pipelines_searches_and_scoring():
    X, y = wave(120)
    gp = SparseGPRegressor(approximation="vfe", n_inducing=20, random_state=0)
    assert make_pipeline(StandardScaler(), gp).fit(X, y).score(X, y) > 0.9
    assert cross_val_score(gp, X, y, cv=3).min() > 0.8
    search = GridSearchCV(gp, {"approximation": ["vfe", "fitc"]}, cv=2).fit(X, y)
    assert search.best_params_["approximation"] in ("vfe", "fitc")


def test_clone_and_pickle():
    X, y = wave(120)
    gp = SparseGPRegressor(
        kernel=kernels.Matern32() + kernels.Linear(), approximation="pic", n_inducing=20, random_state=0
    )
    fitted = clone(gp).fit(X, y)
    loaded = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    assert not hasattr(gp, "kernel_")


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pa.table])
def test_frames_keep_their_column_names(frame):
    X, y = wave(80)
    table = frame({"east": X[:, 0], "north": X[:, 1], "height": y})
    gp = SparseGPRegressor(approximation="vfe", n_inducing=15, random_state=0).fit(table, target="height")
    assert gp.feature_names_in_.tolist() == ["east", "north"]
    features = table.select(["east", "north"]) if hasattr(table, "select") else table[["east", "north"]]
    plain = SparseGPRegressor(approximation="vfe", n_inducing=15, random_state=0).fit(X, y)
    np.testing.assert_allclose(gp.predict(features), plain.predict(X))


def test_target_must_be_a_column():
    X, y = wave(20)
    with pytest.raises(InputError, match="'a', 'b'"):
        SparseGPRegressor(approximation="vfe").fit(pd.DataFrame({"a": X[:, 0], "b": y}), target="c")
    with pytest.raises(InputError, match="not both"):
        SparseGPRegressor(approximation="vfe").fit(pd.DataFrame({"a": X[:, 0], "b": y}), y, target="b")
    with pytest.raises(InputError, match="named columns"):
        SparseGPRegressor(approximation="vfe").fit(X, target="b")


def test_callbacks_can_stop_learning():
    callback = pytest.importorskip("sklearn.callback", reason="scikit-learn before 1.9 has no callbacks")

    class StopAtOnce:
        steps = 0

        def setup(self, estimator, context):
            pass

        def on_fit_task_begin(self, estimator, context, **_):
            pass

        def on_fit_task_end(self, estimator, context, **_):
            self.steps += context.task_name == "learning step"
            return True

        def teardown(self, estimator, context):
            pass

    stop = StopAtOnce()
    assert isinstance(stop, callback.FitCallback)
    X, y = wave(200)
    gp = SparseGPRegressor(approximation="vfe", n_inducing=20, random_state=0).set_callbacks(stop).fit(X, y)
    assert stop.steps == 1
    assert gp.info_["evaluations"] < 10
    assert np.isfinite(gp.predict(X)).all()


def test_verbose_prints_progress(capsys):
    X, y = wave(500)
    SparseGPRegressor(approximation="vfe", n_inducing=50, random_state=0, verbose=1000).fit(X, y)
    assert "log evidence per row" in capsys.readouterr().err


@pytest.mark.usefixtures("brief_learning")
def test_passes_the_checks_of_scikit_learn():
    check_estimator(
        SparseGPRegressor(approximation="vfe", random_state=0),
        expected_failed_checks={
            "check_sample_weight_equivalence_on_dense_data": "the k-means start sees rows, not weights; "
            "equality holds with given inducing inputs (test_weight_counts_a_row_that_many_times)",
        },
    )
