"""Faults of a Dask cluster in the middle of a fit: the right answer or an error of ours, never a hang."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from dask_problems import MODELS, make_data
from sparsegp import SparseGPError, SparseGPRegressor
from torture.campaign import Campaign, Case

MOST_SECONDS = 240.0
FAULTS = ("one worker", "one worker", "one worker", "one worker", "one worker", "all workers", "scheduler")
"""In a long run of 65: about 47 kills of one worker, 9 of all, 9 of the scheduler."""


def prepare(folder: Path) -> Case:
    import dask
    import distributed

    dask.config.set({"distributed.nanny.environ.OMP_NUM_THREADS": 1, "distributed.comm.timeouts.connect": "10s"})
    X, y = make_data(1200)
    names = sorted(MODELS)
    expected: dict[str, Any] = {}
    seconds: dict[str, float] = {}

    def fit(name: str, client: Any) -> tuple[np.ndarray, np.ndarray]:
        model = SparseGPRegressor(**{**MODELS[name], "random_state": 4}, calibration=None).fit(X, y, client=client)
        mean, std = model.predict(X[:40], return_std=True)
        return mean, std

    def case(seed: int) -> str:
        rng, fault = np.random.default_rng(seed), FAULTS[seed % len(FAULTS)]
        name = names[int(rng.integers(len(names)))]
        options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
        with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster, timeout=20) as client:
            if name not in expected:
                started = time.monotonic()
                expected[name] = fit(name, client)
                seconds[name] = time.monotonic() - started
            pids = sorted(client.run(os.getpid).items())
            timer = threading.Timer(
                float(rng.uniform(0.0, seconds[name])), _strike, (fault, cluster, [pid for _, pid in pids], rng)
            )
            timer.start()
            outcome = within(lambda: fit(name, client), MOST_SECONDS)
            timer.join()
        if isinstance(outcome, SparseGPError):
            return f"{fault}: our error"
        if isinstance(outcome, BaseException):
            raise outcome
        for got, reference in zip(outcome, expected[name], strict=True):
            np.testing.assert_allclose(got, reference, rtol=1e-6)
        return f"{fault}: the right answer"

    return case


def _strike(fault: str, cluster: Any, pids: list[int], rng: np.random.Generator) -> None:
    if fault == "scheduler":
        cluster.loop.add_callback(cluster.scheduler.close)
        return
    for pid in pids if fault == "all workers" else [pids[int(rng.integers(len(pids)))]]:
        os.kill(pid, signal.SIGKILL)


def within(call: Any, seconds: float) -> Any:
    """The answer or the error; waiting longer is a failure."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"no answer within {seconds:g} seconds"
    return found[0]


CAMPAIGN = Campaign("workers", prepare, share=0.1, goal=65)
