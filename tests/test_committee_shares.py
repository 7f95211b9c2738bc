"""Experts on workers that share no memory: who has which, sums as in one process, and what happens when one dies."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from problems import agree
from sparsegp import approximations, kernels, threads
from sparsegp.committee import processes, training
from sparsegp.committee.parallel import map_in_threads
from sparsegp.committee.plans import DensePlan, Recipe
from sparsegp.committee.shares import Share, add_up, largest_first, shared_out
from sparsegp.data import Block
from sparsegp.errors import FactorizationError, SparseGPError
from sparsegp.learning.hyperparameters import Hyperparameters

WORK = st.lists(st.floats(0.0, 1e6), max_size=30)
THREADS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 8), min_size=1)


@given(WORK, THREADS)
def test_every_expert_has_one_home_and_no_worker_much_more_than_its_part(
    work: list[float], capacity: dict[str, int]
) -> None:
    shares = shared_out(work, capacity)
    assert sorted(place for share in shares for place in share.places) == list(range(len(work)))
    assert [share.home for share in shares] == list(capacity)
    largest, fair = max(work, default=0.0), sum(work) / sum(capacity.values())
    for share in shares:
        assert sum(work[p] for p in share.places) <= capacity[share.home] * fair + largest + 1e-6


@given(WORK, THREADS, st.data())
def test_experts_with_a_home_keep_it(work: list[float], capacity: dict[str, int], data: st.DataObject) -> None:
    places = st.sets(st.integers(0, len(work) - 1)) if work else st.just(set())
    settled = {place: data.draw(st.sampled_from(sorted(capacity))) for place in data.draw(places)}
    shares = shared_out(work, capacity, settled)
    assert all(place in share.places for share in shares for place, home in settled.items() if home == share.home)
    assert sorted(place for share in shares for place in share.places) == list(range(len(work)))


@given(WORK)
def test_what_is_begun_last_is_smallest(work: list[float]) -> None:
    assert [work[place] for place in largest_first(work)] == sorted(work, reverse=True)


@given(st.permutations(range(5)), st.integers(0, 5))
def test_sums_do_not_depend_on_who_has_which_expert(order: list[int], cut: int) -> None:
    values = [1e16, 1.0, -1e16, 3.0, 0.1]
    hyper = problem("exact")[1]
    answers = [(value, tuple(np.full(p.shape, value) for p in hyper.parameters())) for value in values]
    shares = [Share("a", tuple(sorted(order[:cut]))), Share("b", tuple(sorted(order[cut:])))]
    total = add_up(hyper, shares, [[answers[place] for place in share.places] for share in shares])
    assert total == sum(values)
    assert all((p.grad == sum(values)).all() for p in hyper.parameters())


@pytest.fixture(scope="module")
def crew() -> Iterator[processes.Processes]:
    with processes.started(2) as started:
        yield started


def problem(row: str) -> tuple[list[training.ExpertPlan], Hyperparameters, training.Lesson]:
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.uniform(-3.0, 3.0, (180, 2)))
    y = torch.sin(2.0 * X[:, 0]) + 0.4 * X[:, 1] + 0.1 * torch.from_numpy(rng.standard_normal(180))
    kernel = kernels.Matern52(1.5, [2.0, 0.7])
    recipe = Recipe(approximations.get(row), 6, "random", kernel, torch.ones(2, dtype=torch.float64), rng)
    plans = [recipe.plan(Block(X[a:b], y[a:b])) for a, b in ((0, 40), (40, 140), (140, 180))]
    limits = training.Limits((1e-4, 10.0), X.amin(0), X.amax(0))
    lesson = training.Lesson(limits, "lbfgs", True, rng, schedule=training.Schedule(inducing_iterations=2))
    return plans, Hyperparameters(kernel, 0.1, X[:1], learn_inducing=False), lesson


@pytest.mark.parametrize("row", ["exact", "vfe"])
def test_processes_add_up_and_learn_as_threads_do(crew: processes.Processes, row: str) -> None:
    plans, shared, lesson = problem(row)
    local = training.Threads(1)
    for one, other in (
        (plans, plans),
        (crew.with_learned_inducing(plans, shared, lesson), local.with_learned_inducing(plans, shared, lesson)),
    ):
        objective, expected = crew.objective(one, shared), local.objective(other, shared)
        assert objective.n_rows == expected.n_rows == 180
        got = objective.value_and_gradient(shared), shared.gradient().copy()
        agree(got, (expected.value_and_gradient(shared), shared.gradient().copy()), 1e-9)
        trained = crew.train(one, shared, one[0]), local.train(other, shared, other[0])
        values = [[expert.log_evidence for expert in experts] for experts in trained]
        np.testing.assert_allclose(values[0], values[1], rtol=1e-9)


@dataclass(frozen=True)
class Hopeless(DensePlan):
    """An expert whose matrix is not positive definite."""

    @property
    def objective(self) -> training.Objective:
        raise FactorizationError("K is not positive definite.")


def test_errors_of_an_expert_come_back_as_they_are(crew: processes.Processes) -> None:
    plans, shared, _ = problem("exact")
    assert isinstance(plans[0], DensePlan)
    with pytest.raises(FactorizationError, match="positive definite"):
        crew.objective([Hopeless(plans[0].block)], shared)
    assert np.isfinite(crew.objective(plans, shared).value_and_gradient(shared))


def test_a_process_keeps_its_experts_however_large_they_are(crew: processes.Processes) -> None:
    """loky replaces processes that have grown by 300 MB, unless told not to."""
    plans, shared, _ = problem("exact")
    objective = crew.objective(plans, shared)
    value = objective.value_and_gradient(shared)
    for pool in crew.pools:
        pool.submit(_grow, 400 * 2**20).result()
    time.sleep(1.5)
    for pool in crew.pools:
        pool.submit(int).result()
    assert objective.value_and_gradient(shared) == pytest.approx(value, rel=1e-12)


_kept = []


def _grow(n_bytes: int) -> None:
    _kept.append(np.ones(n_bytes // 8))


def test_an_objective_that_was_replaced_says_so(crew: processes.Processes) -> None:
    plans, shared, _ = problem("exact")
    old, new = crew.objective(plans, shared), crew.objective(plans[:2], shared)
    assert np.isfinite(new.value_and_gradient(shared))
    with pytest.raises(SparseGPError, match="other experts"):
        old.value_and_gradient(shared)


def test_after_an_error_nobody_begins_another_expert() -> None:
    begun: list[int] = []

    def work(k: int) -> None:
        begun.append(k)
        if k == 0:
            raise FactorizationError("K is not positive definite.")
        time.sleep(0.2)

    with pytest.raises(FactorizationError):
        map_in_threads(work, range(20), 2)
    assert len(begun) < 5


def test_a_process_that_dies_is_said_to_have() -> None:
    plans, shared, _ = problem("exact")
    with processes.started(1) as crew:
        dying = crew.pools[0].submit(os._exit, 1)
        with pytest.raises(SparseGPError, match="backend='threads'"):
            crew.train(plans, shared)
        assert dying.exception() is not None
        with pytest.raises(SparseGPError, match="backend='threads'"):
            crew.objective(plans, shared)


def test_work_in_one_thread_leaves_the_number_as_it_was() -> None:
    before = threads.available()
    with threads.single():
        assert threads.available() == 1
        assert all(pool["num_threads"] == 1 for pool in threadpool_info() if pool["user_api"] == "openmp")
    with suppress(ZeroDivisionError), threads.single():
        raise ZeroDivisionError
    assert threads.available() == before


@pytest.mark.parametrize("row", ["exact", "vfe"])
def test_more_rows_are_more_work(row: str) -> None:
    small, large, _ = problem(row)[0]
    assert 0.0 < small.work < large.work


def test_the_variance_of_targets_does_not_depend_on_the_number_of_threads() -> None:
    y = torch.from_numpy(np.random.default_rng(0).standard_normal(200_000))
    block, before, found = Block(y[:, None], y), threads.available(), set()
    try:
        for n_threads in (1, 2, 4):
            torch.set_num_threads(n_threads)
            found.add(block.target_variance)
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1
