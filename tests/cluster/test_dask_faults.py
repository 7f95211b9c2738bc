"""Faults on a cluster: a worker, the driver or the scheduler dies, or a row group is bad."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dask_problems import MODELS, QUICK, fitted, frame_of, kill_a_worker, make_data, same_model
from sparsegp import InputError, SparseGPError, SparseGPRegressor
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective

distributed = pytest.importorskip("distributed")
from sparsegp.cluster import client  # noqa: E402


def test_a_bad_row_group_is_named(both: Any, tmp_path: Any) -> None:
    X, y = make_data()
    X[217, 1] = np.nan
    frame_of(X, y).to_parquet(tmp_path / "bad.parquet", row_group_size=20)
    place = r"bad\.parquet', row group 10 \(row 17 .* row 217 of the file\): column 'b'"
    with pytest.raises(InputError, match=place):
        SparseGPRegressor(approximation="vfe", n_inducing=5).fit(tmp_path / "bad.parquet", target="y", client=both)
    model = SparseGPRegressor(**QUICK).fit(frame_of(*make_data()), target="y")
    before = model.log_evidence_
    with pytest.raises(InputError, match=place):
        model.partial_fit(tmp_path / "bad.parquet", target="y", client=both)
    assert model.log_evidence_ == before


def test_a_scheduler_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.ANSWER_SECONDS < 10
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.5)
    X, y = make_data()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(SparseGPError, match="does not answer"):
            fitted(SparseGPRegressor(approximation="vfe", n_inducing=5), X, y, client=address)
    for wrong in ("nonsense", 8786):
        with pytest.raises(InputError, match="tcp://host:8786"):
            fitted(SparseGPRegressor(approximation="vfe", n_inducing=5), X, y, client=wrong)


class Interrupted(Exception):
    """The driver's end."""


def test_a_killed_driver_goes_on_from_its_checkpoint(both: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = make_data()
    path = tmp_path / "learning.npz"
    evaluate, n_evaluations = CollapsedObjective.value_and_gradient, 0

    def dying(self: Any, hyper: Hyperparameters) -> float:
        nonlocal n_evaluations
        n_evaluations += 1
        if n_evaluations == 12:
            raise Interrupted
        return evaluate(self, hyper)

    params = {
        "kernel": "se",
        "approximation": "vfe",
        "n_inducing": 10,
        "learn_inducing": False,
        "random_state": None,
    }
    monkeypatch.setattr(CollapsedObjective, "value_and_gradient", dying)
    with pytest.raises(Interrupted):
        fitted(SparseGPRegressor(**params), X, y, client=both, checkpoint=path)
    with pytest.raises(InputError, match="other data"):
        fitted(SparseGPRegressor(**params), X[:-1], y[:-1], client=both, checkpoint=path)
    values = []
    monkeypatch.setattr(
        CollapsedObjective,
        "value_and_gradient",
        lambda self, hyper: values.append(evaluate(self, hyper)) or values[-1],
    )
    left = float(np.load(path)["value"])
    resumed = fitted(SparseGPRegressor(**params), X, y, client=both, checkpoint=path)
    assert values[0] == pytest.approx(left, rel=1e-10)
    assert resumed.log_evidence_ >= left - 1e-9 * abs(left)
    assert not path.exists()


DRIVER = """
import sys  # noqa: E402
import numpy as np  # noqa: E402
from sparsegp import SparseGPRegressor  # noqa: E402

address, data, checkpoint = sys.argv[1:]
rows = np.load(data)
model = SparseGPRegressor(kernel="se", approximation="vfe", n_inducing=10, learn_inducing=False, random_state=0)
model.fit(rows["X"], rows["y"], client=address, checkpoint=checkpoint)
"""


@pytest.mark.slow
def test_a_driver_process_that_was_killed_is_resumed(both: Any, tmp_path: Path) -> None:
    X, y = make_data(5000)
    data, checkpoint = tmp_path / "rows.npz", tmp_path / "learning.npz"
    np.savez(data, X=X, y=y)
    arguments = [both.scheduler.address, str(data), str(checkpoint)]
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, *arguments])
    try:
        while not checkpoint.exists() and driver.poll() is None:
            time.sleep(0.01)
    finally:
        driver.kill()
        driver.wait(60)
    assert driver.returncode == -signal.SIGKILL, "the driver ended before it was killed"
    left = float(np.load(checkpoint)["value"])
    params = {"kernel": "se", "n_inducing": 10, "learn_inducing": False, "random_state": 0}
    model = SparseGPRegressor(**params).fit(X, y, client=both, checkpoint=checkpoint)
    assert np.isfinite(left)
    expected = SparseGPRegressor(**params).fit(X, y)
    assert model.log_evidence_ == pytest.approx(expected.log_evidence_, rel=1e-3)
    assert not checkpoint.exists()


@pytest.mark.slow
def test_twenty_fits_with_a_worker_killed_at_a_random_moment(both: Any) -> None:
    X, y = make_data(1500)
    params = {**MODELS["fitc"], "random_state": 4}
    started = time.perf_counter()
    expected = fitted(SparseGPRegressor(**params), X, y, client=both)
    seconds = time.perf_counter() - started
    rng = np.random.default_rng(0)
    for delay in rng.uniform(0.0, seconds, 20):
        both.wait_for_workers(2, timeout=600)
        killer = threading.Timer(delay, kill_a_worker, (both, int(rng.integers(2))))
        killer.start()
        got = fitted(SparseGPRegressor(**params), X, y, client=both)
        killer.join()
        same_model(got, expected, 1e-6)


DOCS = Path(__file__).parents[2] / "docs" / "clusters.md"


def commands_of_the_docs(port: int) -> list[list[str]]:
    block = re.search(r"^```bash\n(.*?)^```", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    lines = [line.removesuffix("&").replace("8786", str(port)).split() for line in block[1].splitlines()]
    return [[str(Path(sys.executable).parent / program), *options] for program, *options in lines]


@pytest.mark.slow
def test_the_cluster_of_the_docs() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in commands_of_the_docs(port)
    ]
    try:
        X, y = make_data()
        with distributed.Client(f"tcp://127.0.0.1:{port}", timeout=120) as client:
            client.wait_for_workers(2, timeout=120)
        got = SparseGPRegressor(**QUICK).fit(X, y, cluster=f"tcp://127.0.0.1:{port}")
        same_model(got, SparseGPRegressor(**QUICK).fit(X, y), 1e-8)
        with distributed.Client(f"tcp://127.0.0.1:{port}", timeout=120) as client:
            started[0].send_signal(signal.SIGSTOP)
            with pytest.raises(SparseGPError, match="does not answer"):
                fitted(SparseGPRegressor(**QUICK), X, y, client=client)
            started[0].send_signal(signal.SIGCONT)
    finally:
        started[0].send_signal(signal.SIGCONT)
        for process in reversed(started):
            process.terminate()
            process.wait(60)
