"""Limits of memory: which there are, and that running into one is an error of ours that says what was needed."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
import torch

import sparsegp
from sparsegp import MemoryLimitError, SparseGPRegressor, kernels, memory
from sparsegp.data.open import OpeningOptions
from sparsegp.data.rows import SourceRows
from sparsegp.memory import Room, rooms

MIB = 2.0**20


def group(folder: Path, version: int, limit: str, used: int, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("max", "current") if version == 2 else ("limit_in_bytes", "usage_in_bytes")
    for name, text in zip(names, (limit, str(used)), strict=True):
        (folder / f"memory.{name}").write_text(f"{text}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")


@pytest.fixture
def system(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:  8000 kB\nMemAvailable:  3000 kB\n")
    return tmp_path


def test_the_machine_says_what_is_free(system: Path) -> None:
    (found,) = (room for room in rooms(system) if room.owner == "the machine")
    assert found.free == 3000 * 1024
    assert found.limit == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_every_group_around_the_process_counts(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("0::/outer/inner\n")
    top = system / "sys/fs/cgroup"
    group(top / "outer/inner", 2, "max", 7)
    group(top / "outer", 2, "5000", 3000, cached=1000)
    assert Room("the container", 5000.0, 3000.0) in rooms(system)
    assert len([room for room in rooms(system) if room.owner == "the container"]) == 1


def test_a_container_that_sees_only_its_own_group(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("0::/docker/abc\n")
    group(system / "sys/fs/cgroup", 2, "900", 100)
    assert Room("the container", 900.0, 800.0) in rooms(system)


def test_groups_of_the_first_version(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("5:cpu,cpuacct:/x\n4:memory:/job\n1:name=systemd:/y\n")
    group(system / "sys/fs/cgroup/memory/job", 1, "700", 100)
    assert Room("the container", 700.0, 600.0) in rooms(system)


def limited(code: str, megabytes: int, *arguments: str) -> tuple[int, str]:
    """What a process says that may have so much more than it has after its imports."""
    start = f"""
import resource, sys, numpy as np, torch, sparsegp
torch.set_num_threads(1)
from sparsegp import SparseGPRegressor, kernels
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {megabytes} * 2**20, resource.RLIM_INFINITY))
def fitted(n, m=10, **options):
    X = np.random.default_rng(0).uniform(-3, 3, (n, 2))
    options = {{"optimizer": None, "noise_var": 0.1, "n_inducing": m, "random_state": 0, **options}}
    return SparseGPRegressor(kernels.SquaredExponential(), "vfe", **options).fit(X, np.sin(X[:, 0]))
try:
    exec(sys.argv[1])
except sparsegp.MemoryLimitError as error:
    print("LIMIT", error)
else:
    print("DONE")
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", start, code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="no limits of processes here")
@pytest.mark.parametrize(
    ("code", "megabytes"),
    [
        ("fitted(50).predict(np.zeros((9000, 2)), return_cov=True)", 500),
        ("fitted(4500, m=4000, inducing='random')", 200),
        ("fitted(50).predict(np.broadcast_to(0.0, (40_000_000, 2)))", 500),
    ],
)
def test_a_limit_of_the_process_is_an_error_of_ours(code: str, megabytes: int) -> None:
    returned, said = limited(code, megabytes)
    assert returned == 0, said
    assert "LIMIT" in said, said
    assert "the process (ulimit)" in said


def test_loading_says_what_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "large.sgp"
    with path.open("wb") as file:
        file.truncate(40 * 2**30)
    for load in (sparsegp.load, sparsegp.serving.load):
        with pytest.raises(MemoryLimitError, match=r"large\.sgp needs about 80\.0 GiB"):
            load(path)


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "rooms", lambda: [Room("the container", 500 * MIB, 100 * MIB)])


def test_rows_are_streamed_where_memory_is_short(
    tmp_path: Path, little_room: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (400_000, 2))
    path = tmp_path / "rows.parquet"
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": np.sin(X[:, 0])}).to_parquet(path)
    kernel, seen = kernels.SquaredExponential(), []
    options = {"inducing": X[:5], "optimizer": None, "noise_var": 0.1}
    original = SourceRows.of
    monkeypatch.setattr(SourceRows, "of", lambda *given: seen.append(given) or original(*given))
    streamed = SparseGPRegressor(kernel, "vfe", **options).fit(path, target="y")
    assert len(seen) == 1
    monkeypatch.setattr(memory, "rooms", lambda: [Room("the machine", 2.0**40, 2.0**40)])
    whole = SparseGPRegressor(kernel, "vfe", **options).fit(path, target="y")
    assert len(seen) == 1
    np.testing.assert_allclose(streamed.predict(X[:9]), whole.predict(X[:9]), rtol=1e-8)
    monkeypatch.setattr(memory, "rooms", lambda: [Room("the container", 500 * MIB, 70 * MIB)])
    with pytest.raises(MemoryLimitError, match=r"Holding 400,000 rows of 2 columns in memory needs about 18 MiB"):
        SparseGPRegressor(kernel, "nystrom", n_inducing=5).fit(path, target="y")


@pytest.fixture
def table() -> pd.DataFrame:
    x = np.linspace(-3.0, 3.0, 200)
    return pd.DataFrame({"a": x, "b": x[::-1], "y": np.sin(x)})


def test_no_thread_is_started_where_its_memory_would_be_refused(
    tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less the C library ended the process: cannot allocate memory for thread-local data."""
    table.to_parquet(tmp_path / "rows.parquet")
    monkeypatch.setattr(memory, "rooms", lambda: [Room("the process (ulimit)", 500 * MIB, 9 * MIB)])
    model = SparseGPRegressor("se", "vfe", n_inducing=5, optimizer=None)
    with pytest.raises(MemoryLimitError, match=r"takes a thread, for which 64 MiB must be free; 9 MiB are left"):
        model.fit(tmp_path / "rows.parquet", target="y")


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.feather"])
def test_shortage_while_a_file_is_read_is_no_damage_of_the_file(
    tmp_path: Path, table: pd.DataFrame, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    {"parquet": table.to_parquet, "csv": table.to_csv, "feather": table.to_feather}[path.suffix[1:]](path)

    def short(*given: object, **named: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 128 failed") if name == "rows.csv" else OSError(NO_THREAD)

    places = {
        "parquet": (pq.ParquetFile, "iter_batches"),
        "csv": (pa.csv, "open_csv"),
        "feather": (pa.ipc, "open_file"),
    }
    monkeypatch.setattr(*places[path.suffix[1:]], short)
    with pytest.raises(MemoryLimitError, match="There is not enough memory"):
        SparseGPRegressor("se", "vfe", n_inducing=5, optimizer=None).fit(path, target="y")


NO_THREAD = "Unknown error: Failed to launch worker thread: Resource temporarily unavailable"


def test_rows_in_memory_and_covariances_say_what_they_need(little_room: None) -> None:
    model = SparseGPRegressor(kernels.SquaredExponential(), "vfe", n_inducing=3, optimizer=None)
    X = np.linspace(0, 1, 30)[:, None]
    model.fit(X, X[:, 0])
    with pytest.raises(MemoryLimitError, match=r"covariance of 5,000 rows needs about 763 MiB.*36 MiB.*fewer rows"):
        model.predict(np.zeros((5000, 1)), return_cov=True)
    assert OpeningOptions().within_memory().most_entries == 36 * 2**20 // 64


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_whoever_runs_short_it_is_an_error_of_ours(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*given: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(torch.linalg, "cholesky_ex", short)
    model = SparseGPRegressor(kernels.SquaredExponential(), "vfe", n_inducing=3, optimizer=None)
    X = np.linspace(0, 1, 30)[:, None]
    with pytest.raises(MemoryLimitError, match="not enough memory") as raised:
        model.fit(X, X[:, 0])
    assert raised.value.__cause__ is error


def test_other_errors_stay_as_they_are() -> None:
    @memory.explained
    def failing() -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        failing()
