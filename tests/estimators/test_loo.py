"""`loo` of every estimator: the answers of fits without the row, wherever the rows are."""

from __future__ import annotations

import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, InputError, SparseGPRegressor, kernels, load
from sparsegp.errors import NegativeVarianceError

N = 36
KERNEL = kernels.Matern32(1.4, [0.8, 1.3])
APPROXIMATIONS = (
    "exact",
    "sor",
    "dtc",
    "vfe",
    "fitc",
    "fic",
    "pitc",
    "pic",
    "pep",
    "block-pep",
    {"dtc": 0.4, "pitc": 0.6},
    {"dtc": 0.3, "fitc": 0.7},
)
BY_BLOCK = ("pitc", "pic", "block-pep", {"dtc": 0.4, "pitc": 0.6})


def rows(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, 3.0 + np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.standard_normal(n)


def model(approximation: Any = "vfe", **changes: Any) -> SparseGPRegressor:
    """Nothing is learned and nothing scaled, so that a fit without a row has the same hyper-parameters."""
    given = {"kernel": KERNEL, "noise_var": 0.05, "inducing": rows(7, seed=5)[0], "optimizer": None, "random_state": 0}
    return SparseGPRegressor(**{**given, "normalize": False, "approximation": approximation, **changes})


def labels_for(approximation: Any, n: int = N) -> dict[str, Any]:
    return {"blocks": np.arange(n) % 4} if approximation in BY_BLOCK else {}


def same(got: Any, expected: Any, rtol: float = 1e-8) -> None:
    for name in ("mean", "std", "log_density"):
        np.testing.assert_allclose(getattr(got, name), getattr(expected, name), rtol, 1e-9, err_msg=name)


@pytest.mark.parametrize("approximation", APPROXIMATIONS, ids=str)
@pytest.mark.parametrize("known", [False, True], ids=["plain", "noise and weights"])
def test_rows_are_predicted_as_by_a_fit_without_them(approximation: Any, known: bool) -> None:
    X, y = rows()
    rng, columns = np.random.default_rng(1), labels_for(approximation)
    if known:
        columns |= {"noise_var": rng.uniform(0.02, 0.2, N), "sample_weight": rng.uniform(0.5, 3.0, N)}
    found = model(approximation).fit(X, y, **columns).loo()
    for i in (0, 7, N - 1):
        others = np.arange(N) != i
        rest = model(approximation).fit(X[others], y[others], **{key: value[others] for key, value in columns.items()})
        label = {"blocks": columns["blocks"][[i]]} if "blocks" in columns else {}
        mean, f_std = rest.predict(X[[i]], return_std=True, latent=True, **label)
        std = np.sqrt(f_std**2 + (columns["noise_var"][i] if known else 0.05))
        density = -0.5 * (np.log(2 * np.pi * std**2) + ((y[i] - mean) / std) ** 2)
        expected = np.concatenate([mean, std, density])
        np.testing.assert_allclose([found.mean[i], found.std[i], found.log_density[i]], expected, rtol=1e-8, atol=1e-9)


def test_units_are_those_of_the_user_and_the_scaling_is_that_of_the_fit() -> None:
    X, y = rows()
    # inducing inputs that learning moves may nearly meet, and then digits are lost
    given = {"approximation": "fitc", "n_inducing": 8, "learn_inducing": False, "trend": None, "random_state": 0}
    learned = SparseGPRegressor(**given).fit(1e3 * X, 50.0 * y)
    found = learned.loo()
    raw = SparseGPRegressor(
        kernel=learned.kernel_,
        approximation="fitc",
        inducing=learned.inducing_,
        noise_var=learned.noise_var_,
        optimizer=None,
        normalize=False,
    ).fit(1e3 * X, 50.0 * y - learned.scaling_.y_mean)
    expected = raw.loo()
    np.testing.assert_allclose(found.mean, expected.mean + learned.scaling_.y_mean, rtol=1e-7)
    np.testing.assert_allclose(found.std, expected.std, rtol=1e-7)
    np.testing.assert_allclose(found.log_density, expected.log_density, atol=1e-6)


@pytest.mark.parametrize("approximation", [*APPROXIMATIONS, "nystrom"], ids=str)
def test_rows_of_weight_zero_get_their_prediction(approximation: Any) -> None:
    X, y = rows()
    weight, columns = np.ones(N), labels_for(approximation)
    weight[[0, 5, 6, N - 1]] = 0.0
    fitted = model(approximation, clip_variances=True).fit(X, y, sample_weight=weight, **columns)
    found = fitted.loo()
    assert found.mean.shape == (N,)
    none = weight == 0
    mean, std = fitted.predict(X[none], return_std=True, **{key: value[none] for key, value in columns.items()})
    np.testing.assert_allclose(found.mean[none], mean)
    np.testing.assert_allclose(found.std[none], std)
    held = ~none
    rest = model(approximation, clip_variances=True)
    rest.fit(X[held], y[held], **{key: value[held] for key, value in columns.items()})
    np.testing.assert_allclose(found.mean[held], rest.loo().mean, rtol=1e-8)


def test_rows_can_be_given_again_in_any_order() -> None:
    X, y = rows()
    order = np.random.default_rng(2).permutation(N)
    for approximation in ("exact", "sod", "vfe", "pic"):
        fitted = model(approximation).fit(X, y)
        there, again = fitted.loo(), fitted.loo(X[order], y[order])
        np.testing.assert_allclose(again.mean, there.mean[order], rtol=1e-9)
        np.testing.assert_allclose(again.std, there.std[order], rtol=1e-9)


def test_a_subset_leaves_its_own_rows_out() -> None:
    X, y = rows()
    fitted = model("sod").fit(X, y)
    found, (mean, std) = fitted.loo(), fitted.predict(X, return_std=True)
    assert int((np.abs(found.std - std) > 1e-6).sum()) == len(fitted.model_.posterior.X)
    assert (found.std >= std - 1e-12).all()
    np.testing.assert_allclose(found.mean[np.abs(found.std - std) < 1e-12], mean[np.abs(found.std - std) < 1e-12])


def test_nystrom_says_what_is_wrong_with_its_variances() -> None:
    X, y = rows()
    assert np.isfinite(model("nystrom", clip_variances=True).fit(X, y).loo().mean).all()
    # with nearly no noise and few inducing inputs the variances of Nystrom are negative
    with pytest.raises(NegativeVarianceError, match="not a probability model"):
        model("nystrom", noise_var=1e-3).fit(X, y).loo()


# Where the rows are


def table_of(n: int) -> pa.Table:
    X, y = rows(n)
    rng = np.random.default_rng(3)
    columns = {"noise": rng.uniform(0.02, 0.2, n), "weight": rng.integers(0, 3, n).astype(float)}
    return pa.table({"a": X[:, 0], "b": X[:, 1], "y": y, **columns})


NAMES = {"target": "y", "noise_var": "noise", "sample_weight": "weight"}
STREAMED = ("vfe", "fitc", "pitc", "pic", {"dtc": 0.4, "pitc": 0.6})


@pytest.mark.parametrize("approximation", STREAMED, ids=str)
def test_out_of_core_is_in_memory(approximation: Any, tmp_path: Path, options: Any) -> None:
    table = table_of(900)
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=130)
    expected = model(approximation, n_blocks=9).fit(table, **NAMES)
    options(opening={"most_entries": 400})
    fitted = model(approximation, n_blocks=9, inducing=expected.inducing_)
    fitted.fit(tmp_path / "rows.parquet", **NAMES)
    assert fitted.info_["passes"] > 1
    # the blocks of a sample are other blocks: those of the fit are compared with the same fit's rows in memory
    options(opening={"most_entries": 10**9})
    in_memory = fitted.loo(table, **NAMES)
    options(opening={"most_entries": 400})
    same(fitted.loo(), in_memory)
    if approximation in ("vfe", "fitc"):
        same(expected.loo(), in_memory)


@pytest.mark.parametrize("approximation", STREAMED, ids=str)
def test_dask_is_in_memory(approximation: Any, both: Any, dask_client: Any) -> None:
    frames = pytest.importorskip("dask.dataframe")
    table = table_of(300)
    frame = frames.from_pandas(table.to_pandas(), npartitions=5)
    fitted = model(approximation, n_blocks=5).fit(frame, **NAMES, client=both)
    assert "cluster" in fitted.info_
    same(fitted.loo(), fitted.loo(table, **NAMES))
    local = fitted.to_local()
    same(local.loo(frame, **NAMES, client=both), fitted.loo(table, **NAMES))
    if approximation == "pic":
        held = np.asarray(table["weight"]) > 0
        np.testing.assert_allclose(local.loo().mean, fitted.loo().mean[held], rtol=1e-8)


def test_float32_is_nearly_float64() -> None:
    X, y = rows(200)
    for approximation in ("vfe", "fitc", "pic", "exact"):
        expected = model(approximation).fit(X, y).loo()
        found = model(approximation, dtype="float32").fit(X, y).loo()
        np.testing.assert_allclose(found.mean, expected.mean, atol=2e-3)
        np.testing.assert_allclose(found.std, expected.std, rtol=2e-3)


# When the rows are not at hand


COPIES = {
    "pickle": lambda fitted, path: pickle.loads(pickle.dumps(fitted)),
    "deepcopy": lambda fitted, path: deepcopy(fitted),
    "file": lambda fitted, path: fitted.save(path) or load(path),
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("approximation", ["exact", "sod", "vfe", "pitc", "nystrom"])
def test_copies_do_not_have_the_rows_and_say_so(approximation: str, copy: str, tmp_path: Path) -> None:
    X, y = rows()
    fitted = model(approximation, clip_variances=True).fit(X, y)
    other = COPIES[copy](fitted, tmp_path / "model.sgp")
    with pytest.raises(InputError, match=r"Give the rows it holds: loo\(X, y\)"):
        other.loo()
    same(other.loo(X, y), fitted.loo())


@pytest.mark.parametrize("copy", COPIES)
def test_a_local_model_has_its_rows(copy: str, tmp_path: Path) -> None:
    X, y = rows()
    fitted = model("pic", n_blocks=4).fit(X, y)
    same(COPIES[copy](fitted, tmp_path / "model.sgp").loo(), fitted.loo())


def test_the_rows_are_no_copy() -> None:
    X, y = rows()
    fitted = model().fit(X, y)
    assert fitted.fitted_.given.X is X
    y[3] += 1.0
    with pytest.raises(InputError, match="not the rows of the model"):
        fitted.loo()


@pytest.mark.parametrize("approximation", ["vfe", "pitc", "pic"])
def test_after_updates_the_rows_that_the_model_holds_are_asked_for(approximation: str) -> None:
    X, y = rows()
    labels = {} if approximation == "vfe" else {"blocks": np.arange(N) % 3}
    parts = [{key: value[part] for key, value in labels.items()} for part in (slice(0, 20), slice(20, N))]
    fitted = model(approximation).fit(X[:20], y[:20], **parts[0]).partial_fit(X[20:], y[20:], **parts[1])
    blocks = dict(labels)
    if approximation == "pitc":  # rows of a later call are blocks of their own
        blocks = {"blocks": np.where(np.arange(N) < 20, labels["blocks"], 10 + labels["blocks"])}
    expected = model(approximation).fit(X, y, **blocks).loo()
    same(fitted.loo(X, y, **blocks), expected)
    if approximation == "pic":
        same(fitted.loo(), expected)
    else:
        with pytest.raises(InputError, match="rows of the fit are not at hand"):
            fitted.loo()
    with pytest.raises(InputError, match="not the rows of the model"):
        fitted.loo(X[:20], y[:20], **parts[0])


def test_forgotten_and_merged_rows() -> None:
    X, y = rows()
    one, other = model().fit(X[:20], y[:20]), model().fit(X[20:], y[20:])
    one.merge(other)
    with pytest.raises(InputError, match="not at hand"):
        one.loo()
    same(one.loo(X, y), model().fit(X, y).loo())
    one.forget(X[30:], y[30:])
    with pytest.raises(InputError, match="not at hand"):
        one.loo()
    same(one.loo(X[:30], y[:30]), model().fit(X[:30], y[:30]).loo())


@pytest.mark.parametrize("approximation", ["vfe", "pic"])
def test_a_window_has_its_rows(approximation: str) -> None:
    X, y = rows()
    fitted = model(approximation, window=15).fit(X[:20], y[:20]).partial_fit(X[20:], y[20:])
    expected = fitted.loo(X[-15:], y[-15:])
    same(fitted.loo(), expected)
    if approximation == "vfe":
        same(expected, model().fit(X[-15:], y[-15:]).loo())


def test_rows_that_have_faded_are_given_with_the_weight_that_is_left() -> None:
    X, y = rows()
    fitted = model(half_life=10.0).fit(X[:20], y[:20]).partial_fit(X[20:], y[20:])
    with pytest.raises(InputError, match="not the rows of the model"):
        fitted.loo(X, y)
    weight = np.where(np.arange(N) < 20, 0.5 ** (16 / 10), 1.0)
    assert np.isfinite(fitted.loo(X, y, sample_weight=weight).log_density).all()


@pytest.mark.parametrize("approximation", ["exact", "sod", "vfe", "fitc", "pitc", "pic", "nystrom"])
def test_other_rows_are_refused(approximation: str) -> None:
    X, y = rows()
    fitted = model(approximation).fit(X, y)
    wrong = {"targets": (X, y[::-1].copy()), "inputs": (X + 0.01, y), "fewer": (X[:-1], y[:-1])}
    for what, given in wrong.items():
        if approximation == "sod" and what == "fewer":
            continue  # the last row may not be one of the subset
        with pytest.raises(InputError, match="not the rows of the model"):
            fitted.loo(*given)
    with pytest.raises(InputError, match="noise_var= must not be given"):
        fitted.loo(X, y, noise_var=np.full(N, 0.1))


def test_models_without_a_closed_form_say_why() -> None:
    X, y = rows(60)
    noisy = HeteroscedasticGPRegressor(n_inducing=6, n_noise_inducing=4, optimizer=None).fit(X, y)
    with pytest.raises(InputError, match="noise process depends on every row"):
        noisy.loo()
    partly = model(inference="anytime", stop_error=1e9)
    for progress in partly.fit_iter(*rows(20_000)):
        if progress.fraction < 1.0:
            break
    with pytest.raises(InputError, match=r"the model holds 4,096|rests on a part of its rows"):
        partly.loo()


# Committees


def committee(expert: str, aggregation: str, **changes: Any) -> CommitteeGPRegressor:
    given = {"kernel": KERNEL, "expert": expert, "aggregation": aggregation, "n_experts": 3, "n_inducing": 5}
    fixed = {"noise_var": 0.05, "optimizer": None, "normalize": False, "random_state": 0, "skip_tolerance": 0.0}
    return CommitteeGPRegressor(**{**given, **fixed, **changes})


@pytest.mark.parametrize("aggregation", ["poe", "gpoe", "bcm", "rbcm", "tpoe", "grbcm"])
@pytest.mark.parametrize("expert", ["exact", "vfe", "fitc", "pitc", "pic"])
def test_committees_leave_rows_out_of_their_experts(expert: str, aggregation: str) -> None:
    """Rows leave by `forget`, which keeps experts, inducing inputs and blocks as they are."""
    X, y = rows()
    fitted = committee(expert, aggregation).fit(X, y)
    found = fitted.loo()
    for i in (0, 3, 11, 20, N - 1):
        rest = deepcopy(fitted).forget(X[[i]], y[[i]])
        mean, std = rest.predict(X[[i]], return_std=True)
        np.testing.assert_allclose([found.mean[i], found.std[i]], np.concatenate([mean, std]), rtol=1e-8)


def test_committees_with_weights_noise_labels_and_a_random_split() -> None:
    X, y = rows()
    rng = np.random.default_rng(4)
    columns = {"noise_var": rng.uniform(0.02, 0.2, N), "sample_weight": rng.integers(0, 3, N).astype(float)}
    for changes, labels in (({}, {"blocks": np.arange(N) % 3}), ({"partition": "random"}, {})):
        fitted = committee("exact", "rbcm", **changes).fit(X, y, **columns, **labels)
        found, weight = fitted.loo(), columns["sample_weight"]
        mean, f_std, _ = fitted.predict_components(X)
        none = weight == 0
        np.testing.assert_allclose(found.mean[none], mean[none])
        np.testing.assert_allclose(found.std[none] ** 2, f_std[none] ** 2 + columns["noise_var"][none])
        i = int(np.flatnonzero(weight > 0)[5])
        own = {key: value[[i]] for key, value in {**columns, **labels}.items()}
        rest = deepcopy(fitted).forget(X[[i]], y[[i]], **own)
        assert found.mean[i] == pytest.approx(rest.predict(X[[i]])[0], rel=1e-8)


def test_committees_refuse_other_rows_and_learned_noise() -> None:
    X, y = rows(60)
    fitted = committee("exact", "rbcm").fit(X, y)
    with pytest.raises(InputError, match="1 rows of its experts are not among these"):
        fitted.loo(X[1:], y[1:])
    with pytest.raises(InputError, match="not at hand"):
        deepcopy(fitted).loo()
    same(deepcopy(fitted).loo(X, y), fitted.loo())
    subset = committee("sod", "rbcm").fit(X, y)
    assert np.isfinite(subset.loo().log_density).all()
    noisy = CommitteeGPRegressor(
        expert="vshgp", n_experts=2, n_inducing=8, n_noise_inducing=4, optimizer=None, random_state=0
    )
    with pytest.raises(InputError, match="noise process depends on every row"):
        noisy.fit(X, y).loo()
