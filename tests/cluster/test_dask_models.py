"""What else a cluster does: updates, anytime inference, committees, predictions; and models without dask."""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dask_problems import MODELS, QUICK, D, frame_of, make_data, same_model
from problems import agree, get_row
from sparsegp import CommitteeGPRegressor, FactorizationError, InputError, SparseGPError, SparseGPRegressor, kernels
from sparsegp.committee import shared_learning
from sparsegp.committee.experts import Recipe
from sparsegp.core import reasons
from sparsegp.core.block import Block
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.sum_objective import SumObjective, place
from sparsegp.learn.trace import Terms
from sparsegp.parallel import Executor, Placed, Threads

distributed = pytest.importorskip("distributed")
da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
from sparsegp import cluster as on_cluster  # noqa: E402
from sparsegp.cluster import client  # noqa: E402


def test_client_and_cluster_name_the_same_thing(both: Any) -> None:
    X, y = make_data()
    expected = SparseGPRegressor(**QUICK).fit(X, y)
    for given in ({"client": both.cluster}, {"cluster": both.scheduler.address}):
        got = SparseGPRegressor(**QUICK).fit(X, y, **given)
        same_model(got, expected, 1e-8)
        assert got.info_["cluster"]["workers"] == 2
    with pytest.raises(InputError, match="not both"):
        SparseGPRegressor(**QUICK).fit(X, y, client=both, cluster=both.cluster)


def test_dask_collections_use_the_client_in_use(both: Any) -> None:
    X, y = make_data()
    frame = dd.from_pandas(frame_of(X, y), npartitions=4)
    expected = SparseGPRegressor(**QUICK).fit(X, y)
    with both.as_current():
        got = SparseGPRegressor(**QUICK).fit(frame, target="y")
        dense = SparseGPRegressor("se", approximation="exact", optimizer=None, random_state=0).fit(frame, target="y")
    assert "cluster" in got.info_
    assert "cluster" not in dense.info_
    np.testing.assert_allclose(got.log_evidence_, expected.log_evidence_, rtol=1e-8)


@pytest.mark.parametrize("name", ["vfe", "fitc", "pitc", "pic"])
def test_partial_fit_of_partitions_is_that_of_their_rows(both: Any, name: str) -> None:
    X, y = make_data()
    params = {**MODELS[name], "optimizer": None, "noise_var": 0.05, "random_state": 4}
    got, expected = (SparseGPRegressor(**params).fit(X[:100], y[:100]) for _ in range(2))
    parts = [slice(100, 160), slice(160, 220), slice(220, 300)]
    inputs, targets = da.from_array(X[100:], chunks=((60, 60, 80), 2)), da.from_array(y[100:], chunks=((60, 60, 80),))
    with both.as_current():
        got.partial_fit(inputs, targets)
    for part in parts:
        expected.partial_fit(X[part], y[part])
    same_model(got, expected, 1e-8)
    assert got.info_["innovations"]["rows"] == 200


def test_updates_with_weights_noise_and_half_life(both: Any, tmp_path: Path) -> None:
    X, y = make_data()
    rng = np.random.default_rng(3)
    frame = frame_of(X, y).assign(noise=rng.uniform(0.05, 0.2, len(y)), weight=rng.integers(0, 3, len(y)).astype(float))
    frame[200:].to_parquet(tmp_path / "new.parquet", row_group_size=30)
    columns = {"target": "y", "noise_var": "noise", "sample_weight": "weight"}
    got, expected = (SparseGPRegressor(**QUICK, half_life=150.0).fit(frame[:200], **columns) for _ in range(2))
    got.partial_fit(tmp_path / "new.parquet", **columns, client=both)
    expected.partial_fit(frame[200:], **columns)
    X_new = frame[["a", "b"]][:40]
    agree(got.predict(X_new, return_std=True), expected.predict(X_new, return_std=True), 1e-8)
    assert (got.n_samples_seen_, got.log_evidence_) == pytest.approx((expected.n_samples_seen_, expected.log_evidence_))
    with pytest.raises(InputError, match="noise_var= must be given"):
        got.partial_fit(tmp_path / "new.parquet", target="y", client=both)
    windowed = SparseGPRegressor(**QUICK, window=50).fit(X, y)
    windowed.partial_fit(X, y, client=both)  # rows that a model keeps come to this process
    assert windowed.n_samples_seen_ == 50


@pytest.mark.parametrize("name", ["fitc", "pic"])
def test_anytime_inference_visits_all_blocks_and_is_exact(both: Any, name: str) -> None:
    X, y = make_data()
    params = {**MODELS[name], "optimizer": None, "noise_var": 0.05, "random_state": 4}
    got = SparseGPRegressor(**params, inference="anytime").fit(X, y, client=both)
    same_model(got, SparseGPRegressor(**params).fit(X, y), 1e-8)
    assert got.info_["budget"]["reason"] == reasons.EXACT
    assert got.info_["budget"]["fraction"] == 1.0
    got.partial_fit(X[:5], y[:5])


def test_anytime_inference_ends_early(both: Any, options: Any) -> None:
    X, y = make_data(4000)
    params = {**QUICK, "inference": "anytime"}
    accurate = SparseGPRegressor(**params, stop_error=0.5).fit(X, y, client=both)
    assert accurate.info_["budget"]["reason"] == reasons.ACCURATE
    assert 0.0 < accurate.info_["budget"]["fraction"] < 1.0
    assert 0 < accurate.n_samples_seen_ < len(y)
    exact = SparseGPRegressor(**QUICK).fit(X, y)
    mean, std = exact.predict(X[:50], return_std=True)
    assert np.abs(accurate.predict(X[:50]) - mean).max() < std.max()
    options(steps={"first_rows": 100})
    hasty = SparseGPRegressor(**params, time_budget=1e-3)
    with pytest.warns(UserWarning, match="shorter than one step"):
        hasty.fit(X, y, client=both)
    assert hasty.info_["budget"]["reason"] == reasons.TOO_SHORT


@pytest.mark.parametrize("name", ["vfe", "fitc"])
def test_an_ample_budget_gives_the_exact_model(both: Any, name: str, options: Any) -> None:
    X, y = make_data()
    options(steps={"first_rows": 50})
    params = {**MODELS[name], "inducing": X[::25], "optimizer": None, "noise_var": 0.05, "random_state": 4}
    got = SparseGPRegressor(**params, time_budget=600.0).fit(X, y, client=both)
    same_model(got, SparseGPRegressor(**params).fit(X, y), 1e-8)
    budget = got.info_["budget"]
    assert (budget["asked"], budget["fraction"], budget["reason"]) == (600.0, 1.0, reasons.ONE_PASS)
    got.partial_fit(X[:5], y[:5])


@pytest.mark.usefixtures("brief_learning")
def test_a_local_model_learns_within_a_budget(both: Any, options: Any) -> None:
    X, y = make_data(600)
    options(steps={"first_rows": 50})
    got = SparseGPRegressor(**MODELS["pic"], time_budget=600.0, random_state=4).fit(X, y, client=both)
    assert got.info_["budget"]["fraction"] == 1.0
    assert np.sqrt(np.mean((got.predict(X) - y) ** 2)) < 0.4
    got.partial_fit(X[:5], y[:5])


def test_auto_is_settled_here_and_fitted_on_workers(both: Any) -> None:
    X, y = make_data(700)
    got = SparseGPRegressor("se", n_inducing=12, optimizer=None, noise_var=0.05, random_state=0)
    got.fit(X, y, client=both)
    choice = got.info_["choice"]
    assert choice["approximation"] == "pic"
    assert got.n_samples_seen_ == 700
    assert got.info_["cluster"]["workers"] == 2
    named = SparseGPRegressor(**{**got.get_params(), "approximation": "pic", "n_blocks": 1}).fit(X, y)
    same_model(got, named, 1e-8)


COMMITTEE = {"n_experts": 4, "n_inducing": 8, "n_noise_inducing": 5, "random_state": 0}


@pytest.mark.parametrize(
    ("expert", "aggregation", "optimizer", "rtol"),
    [
        ("exact", "grbcm", None, 1e-8),
        ("vfe", "grbcm", None, 1e-8),
        ("vshgp", "rbcm", None, 1e-8),
        pytest.param("vfe", "rbcm", "lbfgs", 1e-4, marks=pytest.mark.slow),
        pytest.param("vshgp", "rbcm", "lbfgs", 1e-3, marks=pytest.mark.slow),
    ],
)
def test_committees_have_their_experts_on_workers(
    both: Any, expert: str, aggregation: str, optimizer: str | None, rtol: float
) -> None:
    X, y = make_data(240)
    model = CommitteeGPRegressor("se", expert, aggregation=aggregation, optimizer=optimizer, **COMMITTEE)
    got = CommitteeGPRegressor(**model.get_params()).fit(X, y, cluster=both.scheduler.address)
    expected = model.fit(X, y)
    X_new = make_data(40, seed=9)[0]
    agree(got.predict(X_new, return_std=True), expected.predict(X_new, return_std=True), rtol)
    agree((got.log_evidence_,), (expected.log_evidence_,), rtol)


@pytest.mark.parametrize("expert", ["exact", "vfe"])
def test_committees_on_workers_keep_a_budget_and_take_rows(both: Any, expert: str) -> None:
    """Rows of a dask collection come here, whatever client is in use."""
    X, y = make_data(240)
    model = CommitteeGPRegressor("se", expert, time_budget=20.0, **COMMITTEE)
    with both.as_current():
        model.fit(dd.from_pandas(frame_of(X[:200], y[:200]), npartitions=3), target="y", client=both)
    assert model.info_["budget"]["asked"] == 20.0
    assert model.info_["budget"]["fraction"] == 1.0
    assert model.info_["evaluations"] > 5
    evidence = model.log_evidence_
    model.partial_fit(frame_of(X[200:], y[200:]), target="y")
    assert model.n_samples_seen_ == model.model_.n_rows == 240
    model.forget(frame_of(X[200:], y[200:]), target="y")
    assert model.log_evidence_ == pytest.approx(evidence, rel=1e-8)


def three_experts(rng: np.random.Generator) -> tuple[list[Any], Hyperparameters, shared_learning.Limits]:
    X, y = (torch.from_numpy(values) for values in make_data(180))
    kernel = kernels.Matern52(1.5, [2.0, 0.7])
    recipe = Recipe(get_row("vfe"), 6, "random", kernel, torch.ones(D, dtype=torch.float64), rng)
    specs = [recipe.spec(Block(X[k : k + 60], y[k : k + 60] - 5.0)) for k in (0, 60, 120)]
    limits = shared_learning.Limits((1e-4, 10.0), X.amin(0), X.amax(0))
    return specs, Hyperparameters(kernel, 0.1, X[:1], learn_inducing=False), limits


def test_experts_on_workers_add_up_and_learn(both: Any) -> None:
    rng = np.random.default_rng(0)
    specs, shared, limits = three_experts(rng)
    schedule = shared_learning.Schedule(inducing_iterations=2)

    def found(executor: Executor) -> list[tuple[float, np.ndarray]]:
        lesson = shared_learning.Lesson(Terms(limits, rng), True, executor, schedule)
        placed = place(specs, executor)
        better = shared_learning.with_own_inducing(shared_learning.Learned(specs, placed), shared, lesson).placed
        return [_evaluated(experts, shared, executor) for experts in (placed, better)]

    with on_cluster.executor_of(both) as workers:
        on_workers = found(workers)
    for got, expected in zip(on_workers, found(Threads(1)), strict=True):
        agree(got, expected, 1e-7)
    assert on_workers[1][0] > on_workers[0][0]


def test_an_evaluation_after_one_that_failed_starts_from_the_one_before(both: Any) -> None:
    specs, shared, _ = three_experts(np.random.default_rng(0))
    with on_cluster.executor_of(both) as workers:
        objective = SumObjective.of(place(specs, workers), shared, workers)
        value, good = objective.value_and_gradient(shared), shared.vector()
        shared.load_vector(np.full_like(good, np.nan))
        with pytest.raises(FactorizationError):
            objective.value_and_gradient(shared)
        shared.load_vector(good)
        assert objective.value_and_gradient(shared) == pytest.approx(value, rel=1e-9)


class Failing:
    """A client whose results are an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def gather(self, futures: list[Any], **options: Any) -> list[Any]:
        raise self.error


def test_errors_of_the_cluster_say_what_to_do_and_others_stay_as_they_are() -> None:
    for error in (CancelledError("share"), distributed.comm.CommClosedError("closed")):
        with pytest.raises(SparseGPError, match="connection to the Dask scheduler was lost"):
            client.gathered(Failing(error), [])
    with pytest.raises(ZeroDivisionError):
        client.gathered(Failing(ZeroDivisionError()), [])


def _evaluated(specs: Placed, shared: Hyperparameters, executor: Executor) -> tuple[float, np.ndarray]:
    """The second evaluation: experts go on from where the first one left them."""
    objective = SumObjective.of(specs, shared, executor)
    objective.value_and_gradient(shared)
    return objective.value_and_gradient(shared), shared.gradient().copy()


def test_predictions_on_workers(both: Any) -> None:
    X, y = make_data()
    model = SparseGPRegressor(**QUICK).fit(X, y)
    expected = model.predict(X, return_std=True)
    agree(on_cluster.predict(model, X, client=both, return_std=True), expected, 1e-12)
    chunks = da.from_array(X, chunks=(70, 1))
    agree((on_cluster.predict(model, chunks, client=both),), expected[:1], 1e-12)


def test_predictions_of_dask_collections_are_dask_arrays(both: Any) -> None:
    X, y = make_data()
    frame = frame_of(X, y)
    model = SparseGPRegressor(**QUICK).fit(frame, target="y")
    expected = model.predict(frame[["a", "b"]], return_std=True)
    mean, std = model.predict(dd.from_pandas(frame[["a", "b"]], npartitions=3), return_std=True)
    assert isinstance(mean, da.Array)
    with both.as_current():
        agree((mean.compute(), std.compute()), expected, 1e-12)
    plain = SparseGPRegressor(**QUICK).fit(X, y)
    latent = plain.predict(da.from_array(X, chunks=(70, 1)), latent=True)
    assert latent.shape == (300,)
    agree((latent.compute(scheduler="synchronous"),), (plain.predict(X, latent=True),), 1e-12)
    with pytest.raises(InputError, match="row by row"):
        plain.predict(da.from_array(X), return_cov=True)


PLAIN = """
import pickle, sys  # noqa: E402
import numpy as np  # noqa: E402

model = pickle.load(open(sys.argv[1], "rb"))
model.predict(np.zeros((2, model.n_features_in_)))
assert not {"dask", "distributed"} & set(sys.modules), "dask was imported"
"""


def test_a_local_model_has_no_dask_inside(both: Any, tmp_path: Path) -> None:
    X, y = make_data()
    weight = np.where(np.arange(len(y)) % 7 == 0, 0.0, 2.0)
    got = SparseGPRegressor(**QUICK).fit(X[:250], y[:250], sample_weight=weight[:250], client=both).to_local()
    model = SparseGPRegressor(**QUICK).fit(X[:250], y[:250], sample_weight=weight[:250])
    same_model(got, model, 1e-8)
    for estimator in (got, model):
        estimator.partial_fit(X[250:], y[250:], sample_weight=weight[250:])
    same_model(got, model, 1e-8)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(got))
    subprocess.run([sys.executable, "-c", PLAIN, str(tmp_path / "model.pkl")], check=True, timeout=300)
