"""Faults on a cluster: a worker, the driver or the scheduler dies, or a row group is bad."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import pytest

from dask_problems import MODELS, QUICK, fitted, frame_of, kill_a_worker, make_data, same_model
from sparsegp import InputError, SparseGPError, SparseGPRegressor
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective

distributed = pytest.importorskip("distributed")
from sparsegp.cluster import DaskExecutor, client, executor_of  # noqa: E402
from sparsegp.parallel import itself  # noqa: E402


def test_a_bad_row_group_is_named(both: Any, tmp_path: Any) -> None:
    X, y = make_data()
    X[217, 1] = np.inf
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


def _append(item: tuple[Any, ...], number: int) -> tuple[tuple[Any, ...], int]:
    return (*item, number), len(item)


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """The answer or the error of a call that must not hang."""
    outcome: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:
            outcome.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        answer, error = outcome.get(timeout=seconds)
    except Empty:
        pytest.fail(f"no answer within {seconds} seconds")
    if error is not None:
        raise error
    return answer


def test_all_workers_are_lost_and_new_ones_come(both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE_SECONDS", 600.0)  # new workers may be slow to start
    with executor_of(both) as executor:
        placed, _ = executor.step(_append, executor.place([(k,) for k in range(4)]), 10)
        for pid in both.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)
        while set(both.scheduler_info(n_workers=-1)["workers"]) & set(executor.threads):
            time.sleep(0.05)
        assert within(600, lambda: executor.map(itself, placed)) == [(k, 10) for k in range(4)]


@pytest.fixture
def brief_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LOOK_SECONDS", 0.1), ("ANSWER_SECONDS", 0.5), ("PATIENCE_SECONDS", 1.0)):
        assert getattr(client, name) <= 60.0
        monkeypatch.setattr(client, name, seconds)


HELD = threading.Event()


def _held(item: Any) -> Any:
    HELD.wait()
    return item


@pytest.fixture
def one_thread() -> Iterator[Any]:
    """A cluster of one worker in this process."""
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    HELD.clear()
    with distributed.LocalCluster(**options) as cluster:
        yield cluster
        HELD.set()


def test_workers_that_do_not_come_back_are_not_waited_for(one_thread: Any, brief_patience: None) -> None:
    with executor_of(one_thread) as executor:
        placed = executor.place([1, 2])
        one_thread.scale(0)
        while executor.client.scheduler_info(n_workers=-1)["workers"]:
            time.sleep(0.05)
        with pytest.raises(SparseGPError, match=r"workers of the Dask cluster are gone, and none came within 1 sec"):
            within(60, lambda: executor.map(itself, placed))


def test_work_that_lasts_is_waited_for(one_thread: Any, brief_patience: None) -> None:
    with executor_of(one_thread) as executor:
        placed = executor.place([3])
        threading.Timer(2.0, HELD.set).start()
        assert within(60, lambda: executor.map(_held, placed)) == [3]


@pytest.fixture
def processes() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address and the process of a scheduler with one worker."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    program = str(Path(sys.executable).parent / "dask")
    commands = (
        ["scheduler", "--port", address.rsplit(":", 1)[1], "--no-dashboard"],
        ["worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard"],
    )
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen([program, *command], **quiet) for command in commands]
    try:
        with distributed.Client(address, timeout=120, set_as_default=False) as early:
            early.wait_for_workers(1, timeout=120)
        yield address, started[0]
    finally:
        for process in started:
            process.kill()
            process.wait(60)


def test_a_scheduler_that_falls_silent_or_dies_ends_the_fit(processes: Any, brief_patience: None) -> None:
    address, scheduler = processes
    with distributed.Client(address, timeout=5, set_as_default=False) as connection:
        executor = client_executor(connection)
        placed = executor.place([60.0])
        threading.Timer(0.5, scheduler.send_signal, (signal.SIGSTOP,)).start()
        with pytest.raises(SparseGPError, match="does not answer"):
            within(60, lambda: executor.map(time.sleep, placed))
        scheduler.send_signal(signal.SIGCONT)
        threading.Timer(0.5, scheduler.kill).start()
        for task in (time.sleep, itself):
            with pytest.raises(SparseGPError, match="scheduler"):
                within(60, lambda task=task: executor.map(task, placed))


def client_executor(connection: Any) -> DaskExecutor:
    return DaskExecutor(connection, client.worker_threads(connection))


def _failing_part(frame: Any) -> Any:
    if frame["a"].iloc[0] > 0:
        raise RuntimeError("the store is away")
    return frame


def test_a_partition_that_raises_is_an_input_error(one_thread: Any) -> None:
    dd = pytest.importorskip("dask.dataframe")
    X, y = make_data(60)
    frame = frame_of(X, y)
    frame["a"] = np.arange(60)
    collection = dd.from_pandas(frame, npartitions=3).map_partitions(_failing_part, meta=frame)
    model = SparseGPRegressor(**QUICK)
    with pytest.raises(InputError, match=r"(?s)cannot be read on the workers.*store is away"):
        within(60, lambda: model.fit(collection, target="y", client=one_thread))
    with pytest.raises(InputError, match=r"(?s)Partition 1 cannot be computed.*store is away"):
        within(60, lambda: model.fit(collection, target="y"))
    model.fit(frame_of(X, y), target="y")
    before = model.predict(X[:3])
    with pytest.raises(InputError, match="cannot be read on the workers"):
        within(60, lambda: model.partial_fit(collection, target="y", client=one_thread))
    assert np.array_equal(model.predict(X[:3]), before)


def test_inputs_and_target_as_parts_of_one_dask_frame(one_thread: Any) -> None:
    dd, da = pytest.importorskip("dask.dataframe"), pytest.importorskip("dask.array")
    X, y = make_data(60)
    collection = dd.from_pandas(frame_of(X, y).assign(w=np.linspace(0.5, 2.0, 60)), npartitions=3)
    inputs = collection[["a", "b"]]
    expected = SparseGPRegressor(**QUICK).fit(frame_of(X, y)[["a", "b"]], y, sample_weight=np.linspace(0.5, 2.0, 60))
    for where in ({"client": one_thread}, {}):
        got = SparseGPRegressor(**QUICK).fit(inputs, collection["y"], sample_weight=collection["w"], **where)
        same_model(got, expected, 1e-6)
        assert list(got.feature_names_in_) == ["a", "b"]
    model = SparseGPRegressor(**QUICK)
    for wrong in (y, da.from_array(y, chunks=20), collection["y"].repartition(npartitions=2)):
        with pytest.raises(InputError, match="y must"):
            model.fit(inputs, wrong, client=one_thread)
    with pytest.raises(InputError, match="y must be a dask array"):
        model.fit(da.from_array(X, chunks=(20, 2)), collection["y"])


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
