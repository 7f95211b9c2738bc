"""Work shared out among threads: order of results, one BLAS thread each, restored afterwards, errors passed on."""

from __future__ import annotations

import threading

import pytest
import torch
from threadpoolctl import threadpool_info

from sparsegp import threads


def test_results_come_in_the_order_of_the_tasks_from_different_threads() -> None:
    meeting = threading.Barrier(3, timeout=20)

    def task(k: int) -> tuple[int, int]:
        meeting.wait()
        return k, torch.get_num_threads()

    results = threads.run([lambda k=k: task(k) for k in range(3)])
    assert results == [(0, 1), (1, 1), (2, 1)]


def test_the_number_of_blas_threads_is_restored_even_after_an_error() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError):
            threads.run([lambda: 1 / 0, lambda: 1.0])
        assert threads.available() == 2
    finally:
        torch.set_num_threads(before)


def test_a_single_task_runs_here() -> None:
    assert threads.run([threading.get_ident]) == [threading.get_ident()]


def openblas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["internal_api"] == "openblas"]


def test_scipy_has_one_thread_beside_ours_and_its_own_afterwards() -> None:
    before, torch_before = openblas_threads(), torch.get_num_threads()
    assert before
    with threads.one_scipy_thread():
        assert set(openblas_threads()) == {1}
        assert torch.get_num_threads() == torch_before
    assert openblas_threads() == before
    inside = threads.run([openblas_threads, openblas_threads])
    assert inside == [[1] * len(before)] * 2
    with pytest.raises(ZeroDivisionError):
        threads.run([lambda: 1 / 0, openblas_threads])
    assert openblas_threads() == before
