"""The executor of a Dask cluster: the conformance suite, and what only a cluster has."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparsegp.cluster import DaskExecutor, executor_of
from sparsegp.cluster.client import submit
from sparsegp.errors import SparseGPError
from sparsegp.parallel import itself
from sparsegp.testing import check_executor

distributed = pytest.importorskip("distributed")


def test_a_cluster_conforms(both: Any) -> None:
    with executor_of(both) as executor:
        assert executor.n_workers == 2
        check_executor(executor)


def test_a_cluster_named_by_its_address_conforms_whatever_the_size_of_messages(both: Any) -> None:
    with executor_of(both.scheduler.address) as executor:
        check_executor(replace(executor, most_embedded=0))


def _append(item: tuple[Any, ...], number: int) -> tuple[tuple[Any, ...], str]:
    return (*item, number), distributed.get_worker().address


def test_items_are_where_they_were_placed(both: Any) -> None:
    with executor_of(both) as executor:
        first, second = executor.threads
        placed = executor.place([(0,), (1,), (2,)], homes=[second, first, second])
        assert placed.homes == (second, first, second)
        assert executor.step(_append, placed, 5)[1] == [second, first, second]
        balanced = executor.place([(k,) for k in range(4)], [3.0, 1.0, 1.0, 1.0])
        assert balanced.homes == (first, second, second, second)


def test_the_items_of_a_lost_worker_are_made_again_by_the_same_steps(both: Any) -> None:
    with executor_of(both) as executor:
        placed = executor.place([(k,) for k in range(4)])
        for number in (10, 11):
            placed, _ = executor.step(_append, placed, number)
        both.run(os._exit, 1, workers=[placed.homes[0]], wait=False, on_error="ignore")
        placed, _ = executor.step(_append, placed, 12)
        assert executor.map(itself, placed) == [(k, 10, 11, 12) for k in range(4)]


def test_futures_can_be_adopted_and_taken(both: Any) -> None:
    with executor_of(both) as executor:
        homes = list(executor.threads)
        adopted = executor.adopt([submit(both, tuple, [k], home=home) for k, home in enumerate(homes)], homes)
        assert adopted.homes == tuple(homes)
        stepped, _ = executor.step(_append, adopted, 3)
        futures = executor.futures(stepped + adopted)
        assert both.gather(futures) == [(0, 3), (1, 3), (0,), (1,)]


def test_what_travels_is_counted(both: Any) -> None:
    with executor_of(both) as executor:
        placed = executor.place([np.zeros(100_000)] * 2)
        assert (executor.traffic.sent, executor.traffic.received, executor.traffic.rounds) == (0, 0, 0)
        executor.map(_repeated, placed, np.ones(1000))
        assert 16_000 < executor.traffic.sent < 20_000
        assert 32_000 < executor.traffic.received < 36_000
        assert executor.traffic.rounds == 1


def _repeated(item: Any, message: np.ndarray) -> np.ndarray:
    return np.repeat(message, 2)


def test_tasks_that_read_are_tried_again(both: Any, tmp_path: Path) -> None:
    with executor_of(both) as executor:
        placed = executor.place([str(tmp_path / "first")])
        with pytest.raises(OSError, match="not yet"):
            executor.map(_read_at_the_second_try, placed)
        placed = executor.place([str(tmp_path / "second")])
        assert replace(executor, retries=1).map(_read_at_the_second_try, placed) == ["read"]


def _read_at_the_second_try(path: str) -> str:
    if not Path(path).exists():
        Path(path).touch()
        raise OSError("not yet")
    return "read"


def _n_threads(item: Any) -> int:
    return torch.get_num_threads()


def _step_threads(item: Any) -> tuple[Any, int]:
    return item, torch.get_num_threads()


def test_a_worker_has_as_many_threads_as_it_was_given() -> None:
    before = torch.get_num_threads()
    cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=4, processes=False, dashboard_address=":0")
    with cluster, executor_of(cluster) as executor:
        for n_items, n_threads in ((1, 4), (2, 2), (4, 1), (9, 1)):
            placed = executor.place(range(n_items))
            found = executor.map(_n_threads, placed)
            # one that ends puts the number back while another one in the same process still looks
            assert max(found) == n_threads
            assert len(found) == n_items
        assert executor.step(_step_threads, executor.place([0]))[1] == [4]
        assert executor.step(_step_threads, executor.place([0, 1, 2]))[1] == [1, 1, 1]
    assert torch.get_num_threads() == before


def test_errors_of_the_cluster_say_what_to_do(both: Any) -> None:
    executor = DaskExecutor(_Lost(both), {"a": 1})
    with pytest.raises(SparseGPError, match="connection to the Dask scheduler was lost"):
        executor.map(itself, executor.adopt([None], ["a"]))


class _Lost:
    """A client that loses its scheduler between question and answer."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def submit(self, *given: Any, **options: Any) -> Any:
        return self.client.submit(*given, **options)

    def gather(self, futures: list[Any], **options: Any) -> list[Any]:
        raise distributed.comm.CommClosedError("closed")
