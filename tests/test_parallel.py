"""Threads and executors: order, homes by cost, one BLAS thread each, errors passed on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from sparsegp import SparseGPRegressor, parallel
from sparsegp.core.block import Block
from sparsegp.errors import FactorizationError, InputError, SparseGPError
from sparsegp.parallel import Placed, Threads, homes_by_cost, largest_first, n_workers
from sparsegp.testing import check_executor

# Threads of the hot loops


def test_results_come_in_the_order_of_the_tasks_from_different_threads() -> None:
    meeting = threading.Barrier(3, timeout=20)

    def task(k: int) -> tuple[int, int]:
        meeting.wait()
        return k, torch.get_num_threads()

    results = parallel.run([lambda k=k: task(k) for k in range(3)])
    assert results == [(0, 1), (1, 1), (2, 1)]


def test_the_number_of_blas_threads_is_restored_even_after_an_error() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError):
            parallel.run([lambda: 1 / 0, lambda: 1.0])
        assert parallel.available() == 2
    finally:
        torch.set_num_threads(before)


def test_a_single_task_runs_here() -> None:
    assert parallel.run([threading.get_ident]) == [threading.get_ident()]


def openblas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["internal_api"] == "openblas"]


def test_scipy_has_one_thread_beside_ours_and_its_own_afterwards() -> None:
    before, torch_before = openblas_threads(), torch.get_num_threads()
    assert before
    with parallel.one_scipy_thread():
        assert set(openblas_threads()) == {1}
        assert torch.get_num_threads() == torch_before
    assert openblas_threads() == before
    inside = parallel.run([openblas_threads, openblas_threads])
    assert inside == [[1] * len(before)] * 2
    with pytest.raises(ZeroDivisionError):
        parallel.run([lambda: 1 / 0, openblas_threads])
    assert openblas_threads() == before


def test_work_in_one_thread_leaves_the_number_as_it_was() -> None:
    usual = parallel.available()
    torch.set_num_threads(2)
    try:
        before = threadpool_info()
        with parallel.single():
            assert parallel.available() == 1
            assert all(pool["num_threads"] == 1 for pool in threadpool_info() if pool["user_api"] == "openmp")
        assert parallel.available() == 2
        assert threadpool_info() == before
        with suppress(ZeroDivisionError), parallel.single():
            raise ZeroDivisionError
        assert parallel.available() == 2
    finally:
        torch.set_num_threads(usual)


def test_threads_that_overlap_leave_scipy_its_threads() -> None:
    """Who comes second and leaves last must not take what the first has set for what there was before.

    OpenBLAS takes more threads from the main thread alone, so that one leaves last.
    """
    before, inside, done = openblas_threads(), threading.Event(), threading.Event()

    def first() -> None:
        with parallel.one_scipy_thread():
            inside.set()
            done.wait(20)

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(20)
    with parallel.one_scipy_thread():
        done.set()
        thread.join()
    assert openblas_threads() == before


def test_a_fit_and_its_predictions_leave_the_number_of_threads_as_it_was() -> None:
    usual, X = parallel.available(), np.random.default_rng(0).standard_normal((1500, 2))
    torch.set_num_threads(2)
    try:
        gp = SparseGPRegressor(time_budget=2, random_state=0).fit(X, np.sin(X[:, 0]))
        assert parallel.available() == 2
        gp.predict(X, return_std=True)
        assert parallel.available() == 2
    finally:
        torch.set_num_threads(usual)


SHARED_WORK = """
import os, signal, sys
import numpy as np, torch
from sklearn.cluster import KMeans
from sparsegp import SparseGPRegressor

X = np.random.default_rng(0).standard_normal((2000, 2))
gp = SparseGPRegressor("se", "vfe", n_inducing=20, optimizer=None).fit(X, X[:, 0])

def work():
    torch.set_num_threads(2)
    torch.ones(2**21).exp_()
    KMeans(3, n_init=1, random_state=0).fit(X)
    return gp.predict(X)

expected = work()
for generation in range(2):
    if (child := os.fork()) == 0:
        signal.alarm(60)
        np.testing.assert_allclose(work(), expected, rtol=1e-12)
        continue
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_forked_processes_compute_in_several_threads_as_well() -> None:
    """The threads of OpenMP stay behind in a fork. A child that waits for them waits forever."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", SHARED_WORK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def test_the_variance_of_targets_does_not_depend_on_the_number_of_threads() -> None:
    y = torch.from_numpy(np.random.default_rng(0).standard_normal(200_000))
    block, before, found = Block(y[:, None], y), parallel.available(), set()
    try:
        for n_threads in (1, 2, 4):
            torch.set_num_threads(n_threads)
            found.add(block.target_variance)
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


# Homes by cost

COSTS = st.lists(st.floats(0.0, 1e6), max_size=30)
CAPACITY = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 8), min_size=1)


@given(COSTS, CAPACITY)
def test_every_item_has_one_home_and_no_worker_much_more_than_its_part(
    costs: list[float], capacity: dict[str, int]
) -> None:
    homes = homes_by_cost(costs, capacity)
    assert len(homes) == len(costs)
    largest, fair = max(costs, default=0.0), sum(costs) / sum(capacity.values())
    for home in capacity:
        load = sum(cost for cost, mine in zip(costs, homes, strict=True) if mine == home)
        assert load <= capacity[home] * fair + largest + 1e-6


@given(COSTS, COSTS, CAPACITY)
def test_items_beside_others_go_where_those_leave_room(
    before: list[float], costs: list[float], capacity: dict[str, int]
) -> None:
    settled = Placed((None,) * len(before), homes_by_cost(before, capacity), tuple(before))
    homes = homes_by_cost(costs, capacity, settled)
    largest, fair = max([*before, *costs], default=0.0), sum([*before, *costs]) / sum(capacity.values())
    together = list(zip([*before, *costs], [*settled.homes, *homes], strict=True))
    for home in capacity:
        assert sum(cost for cost, mine in together if mine == home) <= capacity[home] * fair + largest + 1e-6


def test_items_of_equal_cost_are_spread_evenly_and_always_in_the_same_way() -> None:
    for cost in (0.0, 1.0):
        assert homes_by_cost([cost] * 6, {"a": 1, "b": 2}) == homes_by_cost([cost] * 6, {"a": 1, "b": 2})
        assert sorted(homes_by_cost([cost] * 6, {"a": 1, "b": 2})) == ["a"] * 2 + ["b"] * 4


@given(COSTS)
def test_what_is_begun_last_is_smallest(costs: list[float]) -> None:
    assert [costs[k] for k in largest_first(costs)] == sorted(costs, reverse=True)


# All executors


@pytest.mark.parametrize("executor", [Threads(1), Threads(2), Threads(5), Threads()], ids=str)
def test_executors_of_this_process_conform(executor: parallel.Executor) -> None:
    check_executor(executor)


class Changed:
    """Threads with something wrong."""

    n_workers = 2
    threads = Threads(2)

    def place(self, items: Any, costs: Any = None, beside: Placed | None = None) -> Placed:
        return self.threads.place(items, costs, beside)

    def map(self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Any = None) -> list[Any]:
        return self.threads.map(fn, placed, *broadcast, each=each)

    def step(self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Any = None) -> Any:
        return self.threads.step(fn, placed, *broadcast, each=each)


class AsTheyCome(Changed):
    def map(self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Any = None) -> list[Any]:
        return super().map(fn, placed, *broadcast, each=each)[::-1]


class Single(Changed):
    def map(self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Any = None) -> list[Any]:
        answers = super().map(fn, placed, *broadcast, each=each)
        return [float(np.float32(a)) if isinstance(a, float) else a for a in answers]


class Wrapping(Changed):
    def map(self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Any = None) -> list[Any]:
        try:
            return super().map(fn, placed, *broadcast, each=each)
        except SparseGPError as error:
            if isinstance(error, InputError):
                raise
            raise RuntimeError(str(error)) from error


class Forgetful(Changed):
    def step(self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Any = None) -> Any:
        return placed, super().step(fn, placed, *broadcast, each=each)[1]


class Hasty(Changed):
    """Items are replaced one by one."""

    def place(self, items: Any, costs: Any = None, beside: Placed | None = None) -> Placed:
        placed = super().place([[item] for item in items], costs)
        return placed if beside is None else beside + placed

    def map(self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Any = None) -> list[Any]:
        bare = replace(placed, handles=tuple(handle[0] for handle in placed.handles))
        return super().map(fn, bare, *broadcast, each=each)

    def step(self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Any = None) -> Any:
        answers = []
        for k in range(len(placed)):
            (result,) = self.map(fn, placed.subset([k]), *broadcast, each=None if each is None else each[k : k + 1])
            placed.handles[k][0] = result[0]
            answers.append(result[1])
        return placed, answers


class Locked(Changed):
    lock = threading.Lock()

    def map(self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Any = None) -> list[Any]:
        self.lock.acquire()
        return super().map(fn, placed, *broadcast, each=each)


@pytest.mark.parametrize(
    ("executor", "what"),
    [
        (AsTheyCome(), "map over"),
        (Single(), "sum over answers"),
        (Wrapping(), "an error in map"),
        (Forgetful(), "answers of a step"),
        (Hasty(), "items before them"),
        (Locked(), "deadlock"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_wrong_with_an_executor_is_named(executor: Any, what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        check_executor(executor, seconds=2.0 if isinstance(executor, Locked) else 60.0)


# Threads


def _map(fn: Callable[..., Any], items: Sequence[Any], n_jobs: int | None, costs: Any = None) -> list[Any]:
    executor = Threads(n_jobs)
    return executor.map(fn, executor.place(items, costs))


def test_threads_keep_order_and_leave_torch_as_it_was() -> None:
    before = torch.get_num_threads()
    assert _map(lambda k: k * k, range(11), 4) == [k * k for k in range(11)]
    assert _map(lambda k: k, range(0), 2) == []
    assert torch.get_num_threads() == before
    assert (n_workers(4, 2), n_workers(2, 9), n_workers(None, 100), n_workers(3, 0)) == (2, 2, before, 1)


def test_a_thread_that_is_done_takes_the_next_item() -> None:
    others_done, done = threading.Event(), []

    def work(k: int) -> bool:
        if k == 0:
            return others_done.wait(20)
        done.append(k)
        if len(done) == 7:
            others_done.set()
        return True

    assert _map(work, range(8), 2) == [True] * 8


def test_the_costliest_is_begun_first() -> None:
    begun: list[int] = []
    assert _map(begun.append, range(4), 1, [1.0, 3.0, 2.0, 3.0]) == [None] * 4
    assert begun == [1, 3, 2, 0]


def test_an_error_in_a_thread_is_the_callers_error() -> None:
    with pytest.raises(ZeroDivisionError):
        _map(lambda k: 1 / k, [1, 0, 2], 2)


def test_after_an_error_nobody_begins_another_item() -> None:
    begun: list[int] = []

    def work(k: int) -> None:
        begun.append(k)
        if k == 0:
            raise FactorizationError("K is not positive definite.")
        time.sleep(0.2)

    with pytest.raises(FactorizationError):
        _map(work, range(20), 2)
    assert len(begun) < 5
