"""Fixtures shared by all tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

# Test processes run side by side; a pool of threads in each would only fight for the cores.
torch.set_num_threads(1)


def load_golden() -> dict[str, Any]:
    """Reference values of tests/golden/golden.json."""
    golden: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "golden.json").read_text())
    return golden


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    return load_golden()


PATIENT = {
    "distributed.comm.timeouts.connect": "120s",
    "distributed.comm.timeouts.tcp": "120s",
    "distributed.nanny.environ.OMP_NUM_THREADS": 1,
    "distributed.scheduler.worker-ttl": None,
}


@pytest.fixture(scope="session")
def dask_client() -> Iterator[Any]:
    """Of a cluster with two worker processes, the same for all tests."""
    dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
    with dask.config.set(PATIENT):
        cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
        with cluster, distributed.Client(cluster, set_as_default=False) as client:
            yield client


@pytest.fixture
def both(dask_client: Any) -> Any:
    """The client, with both workers alive again."""
    dask_client.wait_for_workers(2, timeout=120)
    return dask_client
