"""Work shared out among threads: order of results, one BLAS thread each, restored afterwards, errors passed on."""

from __future__ import annotations

import threading

import pytest
import torch

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
