"""A trend behind the estimators: chosen, learned around, streamed, saved, served, never worse than a straight line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

import sparsegp
from problems import agree
from sparsegp import HeteroscedasticGPRegressor, SparseGPRegressor, kernels, serving
from sparsegp.core.block import Block, MemoryRows
from sparsegp.errors import FingerprintError, InputError
from sparsegp.fit.trends import TrendOptions, trend_of

APPROXIMATIONS = ("exact", "sod", "sor", "dtc", "fitc", "fic", "pitc", "pic", "vfe", "pep", "block-pep", "nystrom")
UPDATED = ("vfe", "fitc", "pitc", "pic", "sor")
GIVEN: dict[str, Any] = {"n_inducing": 12, "optimizer": None, "noise_var": 0.05, "trend": "linear", "random_state": 0}


def wavy(n: int = 120, seed: int = 0, wave: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, 2)) * [3.0, 0.5] + [10.0, -1.0]
    return X, 3.0 * X[:, 0] - 4.0 * X[:, 1] + np.sin(wave * X[:, 0]) + 0.2 * rng.normal(size=n)


def plane(n: int, n_columns: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, n_columns))
    return X, X @ rng.normal(size=n_columns) + 0.5 * rng.normal(size=n)


def model(approximation: str, **changes: Any) -> SparseGPRegressor:
    kernel = kernels.Matern32(2.0, [2.0, 1.0])
    return SparseGPRegressor(kernel, approximation, n_blocks=4, **{**GIVEN, "clip_variances": True, **changes})


X, Y = wavy()
X_NEW = np.vstack([wavy(6, seed=9)[0], [[40.0, -1.0], [10.0, 5.0]]])


@pytest.mark.parametrize("name", APPROXIMATIONS)
def test_a_file_predicts_as_the_model_to_the_last_bit(name: str, tmp_path: Path) -> None:
    gp = model(name).fit(X, Y)
    gp.save(tmp_path / "model.sgp")
    again = sparsegp.load(tmp_path / "model.sgp")
    for got, expected in zip(again.predict(X_NEW, return_std=True), gp.predict(X_NEW, return_std=True), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert again.model_.trend == gp.model_.trend
    assert gp.info_["trend"] == "linear"


@pytest.mark.parametrize("trend", ["linear", "constant"])
@pytest.mark.parametrize("name", ["vfe", "fitc", "sor"])
def test_serving_needs_no_torch_for_a_trend(name: str, trend: str, tmp_path: Path) -> None:
    gp = model(name, trend=trend).fit(X, Y)
    gp.save(tmp_path / "model.sgp")
    agree(
        serving.load(tmp_path / "model.sgp").predict(X_NEW, return_std=True),
        gp.predict(X_NEW, return_std=True),
        rtol=1e-10,
    )


def test_a_file_with_updates_goes_on(tmp_path: Path) -> None:
    gp = model("vfe").fit(X[:80], Y[:80]).partial_fit(X[80:100], Y[80:100])
    gp.save(tmp_path / "model.sgp")
    again = sparsegp.load(tmp_path / "model.sgp").partial_fit(X[100:], Y[100:])
    agree(again.predict(X_NEW, return_std=True), gp.partial_fit(X[100:], Y[100:]).predict(X_NEW, return_std=True))


@pytest.mark.parametrize("name", ["fitc", "pitc", "vfe"])
def test_a_file_whose_trend_does_not_fit_is_refused(name: str) -> None:
    from sparsegp.errors import ModelFileError
    from sparsegp.estimators import record_parts

    gp = model(name).fit(X, Y)
    values = record_parts.describe_inducing(gp.model_.posterior.prior, gp.model_.posterior.q)
    with pytest.raises(ModelFileError, match="15 means do not fit 12"):
        record_parts.restore_prior(values, gp.model_.kernel, gp.model_.approx)


@pytest.mark.parametrize("name", UPDATED)
def test_streams_forget_and_merge_as_one_fit(name: str) -> None:
    inducing, parts = X[::10], (slice(0, 50), slice(50, 90), slice(90, 120))
    labels = np.repeat([0, 1, 2], [50, 40, 30])

    def fresh() -> SparseGPRegressor:
        return model(name, inducing=inducing, normalize=False)

    def blocks(part: slice) -> dict[str, Any]:
        return {"blocks": labels[part]} if name in ("pitc", "pic") else {}

    together = fresh().fit(X, Y, **blocks(slice(None)))
    stream = fresh()
    for part in parts:
        stream.partial_fit(X[part], Y[part], **blocks(part))
    there = {"blocks": np.zeros(len(X_NEW), dtype=int)} if name == "pic" else {}
    agree(stream.predict(X_NEW, True, **there), together.predict(X_NEW, True, **there), rtol=1e-7)
    assert stream.log_evidence_ == pytest.approx(together.log_evidence_, rel=1e-9)
    stream.forget(X[parts[1]], Y[parts[1]], **blocks(parts[1]))
    kept = np.r_[0:50, 90:120]
    left = fresh().fit(X[kept], Y[kept], **({"blocks": labels[kept]} if blocks(parts[0]) else {}))
    agree(stream.predict(X_NEW, True, **there), left.predict(X_NEW, True, **there), rtol=1e-6)
    if name != "pic":
        other = fresh().fit(X[parts[1]], Y[parts[1]], **blocks(parts[1]))
        agree(stream.merge(other).predict(X_NEW, True), together.predict(X_NEW, True), rtol=1e-6)


def test_single_rows_take_the_short_way() -> None:
    """One row at a time, in plain numpy: squared exponential and any other kernel."""
    for kernel in (kernels.SquaredExponential(2.0, [2.0, 1.0]), kernels.Matern32(2.0, 1.5)):
        given = {**GIVEN, "inducing": X[::10], "normalize": False}
        together = SparseGPRegressor(kernel, "fitc", **given).fit(X, Y)
        stream = SparseGPRegressor(kernel, "fitc", **given).fit(X[:60], Y[:60])
        for k in range(60, len(X)):
            stream.partial_fit(X[k : k + 1], Y[k : k + 1])
        agree(stream.predict(X_NEW, return_std=True), together.predict(X_NEW, return_std=True), rtol=1e-7)


def test_a_window_is_a_fit_of_its_rows() -> None:
    given = {"inducing": X[::10], "normalize": False}
    stream = model("fitc", window=70, **given).fit(X[:60], Y[:60])
    for k in range(60, 120, 20):
        stream.partial_fit(X[k : k + 20], Y[k : k + 20])
    agree(
        stream.predict(X_NEW, return_std=True),
        model("fitc", **given).fit(X[50:], Y[50:]).predict(X_NEW, return_std=True),
        rtol=1e-7,
    )


def test_models_with_different_trends_do_not_merge() -> None:
    given = {"inducing": X[::10], "normalize": False}
    first = model("vfe", **given).fit(X[:60], Y[:60])
    with pytest.raises(FingerprintError):
        first.merge(model("vfe", **given, trend="constant").fit(X[60:], Y[60:]))


def test_anytime_ends_at_the_exact_pass() -> None:
    X_, y = wavy(600)
    exact, anytime = (model("fitc", inference=inference).fit(X_, y) for inference in ("exact", "anytime"))
    agree(anytime.predict(X_NEW, return_std=True), exact.predict(X_NEW, return_std=True), rtol=1e-8)


@pytest.mark.parametrize("name", APPROXIMATIONS)
def test_far_from_the_data_forecasts_follow_the_trend_with_growing_std(name: str) -> None:
    gp = model(name).fit(X, Y)
    far = np.array([[60.0, -1.0], [110.0, -1.0], [210.0, -1.0]])
    mean, std = gp.predict(far, return_std=True, latent=True)
    np.testing.assert_allclose(np.diff(mean), [3.0 * 50.0, 3.0 * 100.0], rtol=0.15)
    assert mean[2] - mean[1] == pytest.approx(2.0 * (mean[1] - mean[0]), rel=1e-6)
    assert (np.diff(std) > 0.0).all()


@pytest.mark.parametrize("name", ["vfe", "pic", "exact"])
def test_with_starting_values_a_plane_is_found_as_by_least_squares(name: str) -> None:
    X_, y = plane(3000)
    train, test = slice(0, 1500), slice(1500, None)
    line = LinearRegression().fit(X_[train], y[train]).score(X_[test], y[test])
    gp = SparseGPRegressor("se", name, n_inducing=40, optimizer=None, trend="linear", random_state=0)
    assert gp.fit(X_[train], y[train]).score(X_[test], y[test]) >= line - 0.002


def test_a_budget_of_nothing_still_has_the_plane() -> None:
    X_, y = plane(6000)
    train, test = slice(0, 5000), slice(5000, None)
    line = LinearRegression().fit(X_[train], y[train]).score(X_[test], y[test])
    gp = SparseGPRegressor(approximation="vfe", n_inducing=32, time_budget=1e-3, random_state=0)
    with pytest.warns(UserWarning, match="shorter than one step"):
        gp.fit(X_[train], y[train])
    assert gp.score(X_[test], y[test]) >= line - 0.002


def test_a_part_of_the_rows_that_is_behind_the_plane_gives_way_to_all_of_them() -> None:
    """What varies quickly is noise to few rows at starting lengthscales; the plane of all rows is not deceived."""
    X_, y = plane(12_000)
    y += np.sign(np.sin(40.0 * X_[:, 0]))
    train, test = slice(0, 10_000), slice(10_000, None)
    line = LinearRegression().fit(X_[train], y[train]).score(X_[test], y[test])
    gp = SparseGPRegressor(time_budget=1e-3, random_state=0)
    with pytest.warns(UserWarning, match="shorter than one step"):
        gp.fit(X_[train], y[train])
    assert gp.score(X_[test], y[test]) >= line - 0.002
    assert gp.info_["choice"]["approximation"] == "vfe"
    assert "plane" in gp.info_["choice"]["reason"]
    assert gp.info_["budget"]["rows_seen"] > 8_000
    low, high = gp.predict_interval(X_[test])
    assert np.mean((low <= y[test]) & (y[test] <= high)) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("optimizer", ["lbfgs", "ngd", "srgp", "adam"])
def test_every_optimizer_learns_around_a_trend(optimizer: str) -> None:
    X_, y = wavy(500, wave=1.0)
    given = {"n_inducing": 20, "optimizer": optimizer, "random_state": 0}
    gp = SparseGPRegressor("se", "vfe", **given).fit(X_[:400], y[:400])
    assert gp.info_["trend"] == "linear"
    assert np.sqrt(np.mean((gp.predict(X_[400:]) - y[400:]) ** 2)) < 0.27


def test_what_the_trend_leaves_is_not_called_noise() -> None:
    """Median lengthscales are far too long for a wave on a steep plane: learning starts from shorter ones."""
    X_, y = wavy(500)
    gp = SparseGPRegressor("se", "vfe", n_inducing=20, random_state=0).fit(X_[:400], y[:400])
    assert np.sqrt(np.mean((gp.predict(X_[400:]) - y[400:]) ** 2)) < 0.23


@pytest.mark.parametrize(("approximation", "inference"), [("vfe", "exact"), ("pic", "exact"), ("vfe", "stochastic")])
def test_learned_noise_has_a_trend_in_f(approximation: str, inference: str, tmp_path: Path) -> None:
    X_, y = wavy(300)
    given = {"n_noise_inducing": 8, "inference": inference, "n_steps": 200, "random_state": 0}
    gp = HeteroscedasticGPRegressor("se", approximation, n_inducing=20, **given).fit(X_, y)
    assert gp.info_["trend"] == "linear"
    mean, std = gp.predict([[60.0, -1.0], [110.0, -1.0]], return_std=True, latent=True)
    assert mean[1] - mean[0] == pytest.approx(150.0, rel=0.1)
    assert std[1] > std[0]
    gp.save(tmp_path / "model.sgp")
    np.testing.assert_array_equal(sparsegp.load(tmp_path / "model.sgp").predict(X_NEW), gp.predict(X_NEW))


def test_float32_rows_agree_with_float64() -> None:
    single, double = (model("vfe", dtype=dtype).fit(X, Y) for dtype in ("float32", "float64"))
    agree(single.predict(X_NEW, return_std=True), double.predict(X_NEW, return_std=True), rtol=2e-3)


def test_a_kernel_of_the_user_learns_with_a_trend() -> None:
    gp = SparseGPRegressor(kernels.Matern52(1.0, [1.0, 1.0]), "fitc", n_inducing=20, random_state=0).fit(X, Y)
    assert gp.info_["trend"] == "linear"
    assert gp.predict([[60.0, -1.0]])[0] == pytest.approx(184.0, rel=0.1)


def block_of(X: Any, y: Any) -> Block:
    return Block(torch.as_tensor(np.asarray(X, dtype=float)), torch.as_tensor(np.asarray(y, dtype=float)))


def test_auto_is_a_plane_where_rows_speak_for_it() -> None:
    rng = np.random.default_rng(3)
    X_ = rng.normal(size=(200, 3))
    noise = rng.normal(size=200)
    assert trend_of("auto", block_of(X_, X_[:, 0] + noise)).columns == (0, 1, 2)  # type: ignore[union-attr]
    assert trend_of("auto", block_of(X_, np.cos(3.0 * X_[:, 0]) + noise)).columns == ()  # type: ignore[union-attr]
    assert trend_of("auto", block_of(X_[:19], X_[:19, 0])).columns == ()  # type: ignore[union-attr]
    assert trend_of("auto", block_of(X_, X_[:, 0])).columns == (0, 1, 2)  # type: ignore[union-attr]
    assert trend_of("auto", block_of(X_, 0.0 * noise)).columns == ()  # type: ignore[union-attr]
    few = TrendOptions(most_columns=2)
    assert trend_of("auto", block_of(X_, X_[:, 0]), few).columns == ()  # type: ignore[union-attr]


def test_a_constant_column_has_no_slope() -> None:
    X_ = np.column_stack([X, np.full(len(X), 7.0)])
    gp = SparseGPRegressor("se", "vfe", n_inducing=10, random_state=0).fit(X_, Y)
    assert gp.model_.trend.columns == (0, 1)
    far = np.array([[10.0, -1.0, 7.0], [10.0, -1.0, 8.0]])
    assert np.diff(gp.predict(far, return_std=True)[1])[0] < 3.0 * Y.std()


@pytest.mark.parametrize("changes", [{"optimizer": None}, {"normalize": False}, {"trend": None}])
def test_what_is_given_stays_as_given(changes: dict[str, Any]) -> None:
    gp = SparseGPRegressor("se", "vfe", n_inducing=5, random_state=0, **changes).fit(X[:40], Y[:40])
    assert gp.model_.trend is None
    assert gp.info_["trend"] is None


def test_no_trend_is_no_different_from_a_model_without_the_word() -> None:
    gp = model("vfe", trend=None).fit(X, Y)
    assert gp.model_.state.prior.n_features == 12
    assert gp.model_.state.prior.root is gp.model_.state.prior.Luu.factor


@pytest.mark.parametrize("estimator", [SparseGPRegressor, HeteroscedasticGPRegressor])
@pytest.mark.parametrize("trend", ["quadratic", 1, True])
def test_other_words_are_refused(estimator: Any, trend: Any) -> None:
    with pytest.raises(InputError, match="trend must be one of 'auto', 'linear', 'constant', None"):
        estimator(trend=trend).fit(X, Y)


def test_committees_refuse_a_trend() -> None:
    from dataclasses import replace

    from sparsegp.committee import aggregation
    from sparsegp.core.approximations import get
    from sparsegp.core.trend import Trend
    from sparsegp.fit.pipeline import steps
    from sparsegp.fit.problem import CommitteeSpec, Problem, Start

    problem = Problem(get("exact"), Start(kernels.Matern32(), 0.1), "kmeans", 5, np.random.default_rng(0))
    spec = CommitteeSpec(aggregation.get("rbcm"), 2)
    with pytest.raises(InputError, match="no trend in common"):
        steps(replace(problem, committee=spec, trend=Trend()), MemoryRows(block_of(X, Y)), None)  # type: ignore[arg-type]
