"""Fixtures shared by all tests."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from problems import FEW_ROUNDS
from sparsegp.estimators.estimator import Estimator
from sparsegp.fit.learning_options import LearningOptions
from sparsegp.fit.posing import FitOptions
from sparsegp.learn.schedules import Schedule, Schedules

# Test processes run side by side; a pool of threads in each would only fight for the cores.
torch.set_num_threads(1)


def load_golden() -> dict[str, Any]:
    """Reference values of tests/golden/golden.json."""
    golden: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "golden.json").read_text())
    return golden


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    return load_golden()


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Changes numbers that estimators work with, as in options(auto={"exact_rows": 50})."""

    def change(clock: Any = None, **parts: dict[str, Any]) -> FitOptions:
        before = Estimator.fit_options
        changed = {name: replace(getattr(before, name), **values) for name, values in parts.items()}
        changed |= {} if clock is None else {"clock": clock}
        monkeypatch.setattr(Estimator, "fit_options", replace(before, **changed))
        return Estimator.fit_options

    return change


@pytest.fixture(autouse=True)
def one_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """kernel="auto" has one candidate where the choice is not the matter: it takes seconds."""
    if "every_kernel" in request.fixturenames:
        return
    before = Estimator.fit_options
    kernel = replace(before.kernel, candidates=("se",))
    monkeypatch.setattr(Estimator, "fit_options", replace(before, kernel=kernel))


@pytest.fixture(autouse=True)
def own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget counts the work of this process, whatever else the machine has to do."""
    monkeypatch.setattr(Estimator, "fit_options", replace(Estimator.fit_options, clock=time.process_time))


@pytest.fixture
def every_kernel() -> None:
    """kernel="auto" compares the kernels that it compares for users."""


@pytest.fixture
def brief_learning(options: Any) -> None:
    """A few steps of every optimisation: last digits, which differ with the alignment of memory, cannot grow far, so
    that two fits can be compared closely."""

    def brief(schedule: Schedule) -> Schedule:
        warm_up = min(2, schedule.warm_up_iterations)
        return replace(schedule, warm_up_iterations=warm_up, first_iterations=2, fewest_iterations=1)

    def both_brief(given: Schedules) -> Schedules:
        return replace(given, points=brief(given.points), blocks=brief(given.blocks))

    usual = LearningOptions()
    options(
        learning={
            "schedules": both_brief(usual.schedules),
            "noise_schedules": both_brief(usual.noise_schedules),
            "rounds": replace(FEW_ROUNDS, counts=(3,), iterations=2, n_judged=40, opening_iterations=2),
            "start": replace(usual.start, quick=brief(usual.start.quick)),
            "committee": replace(
                usual.committee,
                schedule=replace(usual.committee.schedule, iterations=(2, 1), inducing_iterations=2),
            ),
        }
    )


@pytest.fixture
def short_start(options: Any) -> None:
    """A start from few and small neighbourhoods, for tests of what comes after it."""
    options(learning={"rounds": FEW_ROUNDS})


PATIENT = {
    "distributed.comm.timeouts.connect": "120s",
    "distributed.comm.timeouts.tcp": "120s",
    "distributed.nanny.environ.OMP_NUM_THREADS": 1,
    "distributed.scheduler.worker-ttl": None,
}
# A cluster that waits for its next test looks after itself fifty times a second by default.
CALM = {
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.tick.cycle": "5s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.memory.monitor-interval": "1s",
    "distributed.worker.profile.enabled": False,
}


@pytest.fixture(scope="session")
def dask_client() -> Iterator[Any]:
    """Of a cluster with two worker processes, the same for all tests."""
    dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
    with dask.config.set(PATIENT | CALM):
        cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
        with cluster, distributed.Client(cluster, set_as_default=False) as client:
            yield client


@pytest.fixture
def both(dask_client: Any) -> Any:
    """The client, with both workers alive again."""
    dask_client.wait_for_workers(2, timeout=120)
    return dask_client
