"""The same numbers from rows on workers: a real cluster of two worker processes."""

from __future__ import annotations

import itertools
import platform
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_problems import MODELS, QUICK, D, fitted, frame_of, kill_a_worker, make_data, same_model
from problems import INDUCING_ROWS, KERNELS, agree, get_row
from sparsegp import InputError, SparseGPRegressor, memory
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.partition import Blocking, Partition
from sparsegp.core.prior import SparsePrior
from sparsegp.core.trend import Trend
from sparsegp.data import Moments, open_source
from sparsegp.fit.scaling import Scaling
from sparsegp.infer import batch
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective
from sparsegp.testing import check_rows

pytest.importorskip("distributed")
from sparsegp import cluster as on_cluster
from sparsegp.cluster.dask_rows import block_ranges
from sparsegp.cluster.shares import shared_out

CHANGES = ("plain", "noise", "weights")


def make_block(change: str = "plain") -> Block:
    X, y = make_data()
    rng = np.random.default_rng(1)
    noise = torch.from_numpy(rng.uniform(0.05, 0.3, len(y))) if change == "noise" else None
    weight = torch.from_numpy(rng.integers(1, 4, len(y)).astype(float)) if change == "weights" else None
    return Block(torch.from_numpy(X - [10.0, -1.0]), torch.from_numpy(y - 5.0), noise, weight)


def make_hyper(kernel: str = "se-ard", n_inducing: int = 11) -> Hyperparameters:
    rng = np.random.default_rng(2)
    Z = torch.from_numpy(rng.uniform(-2.0, 2.0, (n_inducing, D)) * [3.0, 0.5])
    Z[:, 0] = torch.linspace(-6.0, 6.0, n_inducing, dtype=torch.float64)
    return Hyperparameters(KERNELS[kernel](rng, D), 0.07, Z)


def blocking_of(block: Block) -> Blocking:
    return Blocking(Partition(block.X[::50].clone()), torch.ones(D, dtype=torch.float64))


def on_workers(client: Any, block: Block, by_block: bool = False) -> on_cluster.DaskRows:
    numbers = [None if part is None else part.numpy() for part in (block.noise_var, block.weight)]
    source = open_source(block.X.numpy(), block.y.numpy(), noise_var=numbers[0], sample_weight=numbers[1])
    rows = on_cluster.scanned(client, source, seed=0).load(Scaling.identity(D))
    blocking = blocking_of(block)
    return rows.in_blocks(blocking.nearest, blocking.n_blocks) if by_block else rows


def here(block: Block, by_block: bool = False) -> MemoryRows:
    if not by_block:
        return MemoryRows(block)
    blocking = blocking_of(block)
    return MemoryRows(block).in_blocks(blocking.nearest, blocking.n_blocks)


def gradient_of(objective: Any, hyper: Hyperparameters) -> tuple[float, np.ndarray]:
    value = objective.value_and_gradient(hyper)
    return value, hyper.gradient().copy()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_moments_of_shares_join_to_those_of_all_rows(seed: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    X, weight = rng.normal(1e6, 0.3, (sum(sizes), D)), rng.uniform(0.5, 2.0, sum(sizes))
    cuts = np.cumsum(sizes)[:-1]
    parts = zip(np.split(X, cuts), np.split(weight, cuts), strict=True)
    got, expected = reduce(add, (Moments.of(*part) for part in parts)), Moments.of(X, weight)
    np.testing.assert_allclose(got.mean, expected.mean, rtol=1e-15)
    np.testing.assert_allclose(got.std, expected.std, rtol=1e-9, atol=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(1, 5))
def test_shares_are_consecutive_and_lose_nothing(sizes: list[int], n_shares: int) -> None:
    shares = shared_out(range(len(sizes)), sizes, n_shares)
    assert len(shares) == n_shares
    assert [piece for share in shares for piece in share] == list(range(len(sizes)))
    ranges = block_ranges(np.array(sizes), n_shares)
    assert (ranges[0], ranges[-1], len(ranges)) == (0, len(sizes), n_shares + 1)
    assert (np.diff(ranges) >= 0).all()
    most = max(sum(sizes[a:b]) for a, b in itertools.pairwise(ranges))
    assert most <= sum(sizes) / n_shares + max(sizes)


@pytest.mark.parametrize("by_block", [False, True], ids=["no blocks", "blocks"])
@pytest.mark.parametrize("change", CHANGES)
def test_rows_on_workers_conform(both: Any, change: str, by_block: bool) -> None:
    block = make_block(change)
    check_rows(on_workers(both, block, by_block), here(block, by_block))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", INDUCING_ROWS)
def test_statistics_value_and_gradient_are_those_of_one_machine(both: Any, name: str, change: str) -> None:
    row, block, hyper = get_row(name), make_block(change), make_hyper()
    rows, local = on_workers(both, block, row.by_block), here(block, row.by_block)
    assert len(rows.shares) == 2
    assert min(rows.counts) > 0
    prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, row)
    sums, expected = batch.statistics_of(prior, rows), batch.statistics_of(prior, local)
    assert sums.fingerprint == expected.fingerprint
    agree((sums.precision, sums.shift, sums.n_rows), (expected.precision, expected.shift, expected.n_rows), 1e-11)
    scalars = [(s.noise_logdet, s.target_sq, s.penalty) for s in (sums, expected)]
    np.testing.assert_allclose(*scalars, rtol=1e-11)
    agree(
        gradient_of(CollapsedObjective(rows, row), hyper),
        gradient_of(CollapsedObjective(local, row), hyper),
        1e-8,
    )


@pytest.mark.parametrize("name", ["vfe", "fitc", "pic"])
def test_a_trend_travels(both: Any, name: str) -> None:
    row, block, hyper = get_row(name), make_block("plain"), make_hyper()
    hyper.trend = Trend((0, 1))
    rows, local = on_workers(both, block, row.by_block), here(block, row.by_block)
    sums, expected = (batch.statistics_of(hyper.prior(row), where) for where in (rows, local))
    agree((sums.precision, sums.shift), (expected.precision, expected.shift), 1e-11)
    gradients = [gradient_of(CollapsedObjective(where, row), hyper) for where in (rows, local)]
    agree(gradients[0], gradients[1], 1e-8)


@pytest.mark.parametrize("kernel", ["matern32", "se+linear", "product"])
def test_any_kernel_travels(both: Any, kernel: str) -> None:
    row, block, hyper = get_row("pep"), make_block(), make_hyper(kernel)
    got = gradient_of(CollapsedObjective(on_workers(both, block), row), hyper)
    agree(got, gradient_of(CollapsedObjective(MemoryRows(block), row), hyper), 1e-8)


def test_blocks_are_whole_and_in_order(both: Any) -> None:
    block = make_block("noise")
    rows, expected = on_workers(both, block, by_block=True).store(), here(block, by_block=True)
    assert rows.offsets is not None
    assert expected.offsets is not None
    assert rows.offsets.tolist() == expected.offsets.tolist()
    assert torch.equal(rows.all.X, expected.all.X)
    assert torch.equal(rows.all.noise_var, expected.all.noise_var)


def test_some_blocks_and_random_parts(both: Any) -> None:
    block = make_block()
    rows = on_workers(both, block, by_block=True)
    chosen = np.array([4, 0, 3])
    part = rows.subset_of_blocks(torch.from_numpy(chosen))
    local = here(block, by_block=True).subset_of_blocks(torch.tensor([0, 3, 4]))
    assert len(part) == len(local)
    assert part.n_blocks == 3
    got = gradient_of(CollapsedObjective(part, get_row("pitc")), make_hyper())
    agree(got, gradient_of(CollapsedObjective(local, get_row("pitc")), make_hyper()), 1e-8)
    points = on_workers(both, block)
    _, *parts = points.parts([30, 60, 150], np.random.default_rng(7), by_block=False)
    small, large = (part.store().all.y.tolist() for part in parts)
    assert len(small) == 60
    assert set(small) < set(large) < set(block.y.tolist())


def test_messages_stay_within_four_matrices_a_worker(both: Any) -> None:
    M = 120
    for name in ("vfe", "fitc", "pitc"):
        row = get_row(name)
        rows = on_workers(both, make_block(), row.by_block)
        before = replace(rows.executor.traffic)
        CollapsedObjective(rows, row).value_and_gradient(make_hyper(n_inducing=M))
        assert rows.executor.traffic.rounds - before.rounds == 2
        # each message passes the scheduler once in and once out
        assert 2 * (rows.executor.traffic.total - before.total) <= 4 * len(rows.shares) * M**2 * 8
    model = SparseGPRegressor(approximation="vfe", n_inducing=M, learn_inducing=False, random_state=0)
    reported = fitted(model, *make_data(), client=both).info_["cluster"]
    assert reported["rounds"] > 2
    assert 2 * reported["bytes_per_evaluation"] <= 4 * reported["workers"] * M**2 * 8


@pytest.mark.parametrize("trend", [None, "linear"])
@pytest.mark.parametrize("name", MODELS)
def test_fit_without_learning_is_that_of_one_machine(both: Any, name: str, trend: str | None) -> None:
    X, y = make_data()
    model = SparseGPRegressor(**MODELS[name], optimizer=None, noise_var=0.05, trend=trend, random_state=4)
    got = fitted(SparseGPRegressor(**model.get_params()), X, y, client=both)
    same_model(got, model.fit(X, y), 1e-8)


@pytest.mark.parametrize(
    ("name", "rtol"),
    [
        ("fitc", 1e-6),
        pytest.param("vfe", 2e-5, marks=pytest.mark.slow),
        pytest.param("pic", 1e-6, marks=pytest.mark.slow),
    ],
)
def test_learning_from_the_same_start_gives_the_same_model(both: Any, name: str, rtol: float) -> None:
    X, y = make_data()
    # Free inducing inputs have nearly flat directions, along which rounding errors grow from step to step.
    model = SparseGPRegressor(**{**MODELS[name], "learn_inducing": False}, random_state=4)
    got = fitted(SparseGPRegressor(**model.get_params()), X, y, client=both)
    same_model(got, model.fit(X, y), rtol)
    assert got.info_["cluster"]["workers"] == 2


def test_the_same_model_from_files_and_dask_collections(both: Any, tmp_path: Any) -> None:
    dd, da = pytest.importorskip("dask.dataframe"), pytest.importorskip("dask.array")
    X, y = make_data()
    frame = frame_of(X, y)
    (tmp_path / "rows").mkdir()
    frame[:170].to_parquet(tmp_path / "rows" / "0.parquet", row_group_size=40)
    frame[170:170].to_parquet(tmp_path / "rows" / "1.parquet")
    frame[170:].to_parquet(tmp_path / "rows" / "2.parquet", row_group_size=90)
    expected = SparseGPRegressor(**QUICK).fit(X, y)
    partitioned = dd.from_pandas(frame, npartitions=5)
    sources: list[tuple[Any, Any, str | None]] = [
        (tmp_path / "rows", None, "y"),
        (partitioned, None, "y"),
        (partitioned[partitioned.a > -1e9], None, "y"),
        (da.from_array(X, chunks=(80, 1)), da.from_array(y, chunks=45), None),
    ]
    for data, targets, target in sources:
        got = fitted(SparseGPRegressor(**QUICK), data, targets, target=target, client=both)
        np.testing.assert_allclose(got.log_evidence_, expected.log_evidence_, rtol=1e-8)
        np.testing.assert_allclose(got.inducing_, expected.inducing_, rtol=1e-8)
        if target is not None:
            assert list(got.feature_names_in_) == ["a", "b"]


def test_what_cannot_be_done_on_a_cluster_says_so(both: Any) -> None:
    X, y = make_data()
    for params, said in (
        ({"approximation": "exact"}, "exact"),
        ({"window": 5}, "window"),
        ({"optimizer": "srgp"}, "srgp"),
    ):
        with pytest.raises(InputError, match=said):
            fitted(SparseGPRegressor(n_inducing=5, **params), X, y, client=both)
    with pytest.raises(InputError, match="not by workers"):
        fitted(SparseGPRegressor(approximation="vfe", n_inducing=5), lambda: iter([(X, y)]), client=both)


@pytest.mark.parametrize("by_block", [False, True])
def test_a_worker_killed_between_rounds_changes_no_bit(both: Any, by_block: bool) -> None:
    row, block, hyper = get_row("pitc" if by_block else "fitc"), make_block(), make_hyper()
    rows = on_workers(both, block, by_block)
    objective = CollapsedObjective(rows, row)
    before = gradient_of(objective, hyper)
    kill_a_worker(both)
    after = gradient_of(objective, hyper)
    assert after[0] == before[0]
    np.testing.assert_array_equal(after[1], before[1])


def test_workers_keep_their_memory(both: Any) -> None:
    expected = platform.libc_ver()[0] == "glibc"
    assert set(both.run(memory.keep_freed).values()) == {expected}
