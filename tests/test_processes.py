"""Processes: items stay at home, one thread each, errors explained, and workers that die."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparsegp import processes
from sparsegp.errors import SparseGPError
from sparsegp.processes import Processes
from sparsegp.testing import check_executor


@pytest.fixture(scope="module")
def two_processes() -> Iterator[Processes]:
    with Processes(2) as executor:
        yield executor


def test_processes_conform(two_processes: Processes) -> None:
    check_executor(two_processes)


def test_one_process_conforms() -> None:
    with Processes(1) as executor:
        check_executor(executor)


def _process(item: Any) -> int:
    return os.getpid()


def _slow_process(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def _stay(item: Any, *given: Any) -> tuple[Any, int]:
    return item, os.getpid()


def test_an_item_stays_in_its_process_and_costs_are_divided(two_processes: Processes) -> None:
    placed = two_processes.place(list(range(4)), [5.0, 1.0, 2.0, 2.0])
    stepped, first = two_processes.step(_stay, placed)
    assert first[1] == first[2] == first[3] != first[0]
    again, second = two_processes.step(_stay, stepped)
    assert second == first
    assert two_processes.map(_process, again) == first
    beside = two_processes.place(["large", "small"], [7.0, 1.0], beside=again)
    assert two_processes.step(_stay, beside)[1] == [*first, first[0], first[1]]


def test_a_process_that_is_done_takes_over_what_waits(two_processes: Processes) -> None:
    # Costs that mislead: by them one process has the four slow ones.
    placed = two_processes.place([0.4] * 4 + [0.0], [1.0] * 4 + [4.0])
    homes = two_processes.step(_stay, placed)[1]
    assert len(set(homes[:4])) == 1
    assert len(set(two_processes.map(_slow_process, placed)[:4])) == 2


def test_processes_have_one_thread_each(two_processes: Processes) -> None:
    assert set(two_processes.map(_n_threads, two_processes.place(range(4)))) == {1}


def _n_threads(item: Any) -> int:
    return torch.get_num_threads()


def test_a_process_keeps_its_items_however_large_they_are(two_processes: Processes) -> None:
    """loky replaces processes that have grown by 300 MB, unless told not to."""
    placed, before = two_processes.step(_grow, two_processes.place(range(2)), 400 * 2**20)
    time.sleep(1.5)
    assert two_processes.map(_process, placed) == before


def _grow(item: Any, n_bytes: int) -> tuple[Any, int]:
    return np.ones(n_bytes // 8), os.getpid()


def test_items_that_nobody_has_are_forgotten(two_processes: Processes) -> None:
    gc.collect()
    two_processes.map(_n_held, two_processes.place(range(2)))
    before = two_processes.map(_n_held, two_processes.place(range(2)))
    placed = two_processes.place(range(2))
    for _ in range(10):
        placed, _ = two_processes.step(_stay, placed)
    gc.collect()
    now = two_processes.map(_n_held, placed)
    assert all(count <= start + 1 for count, start in zip(now, before, strict=True))


def _n_held(item: Any) -> int:
    return len(processes._held)


def test_a_process_that_dies_is_said_to_have() -> None:
    with Processes(1) as executor:
        placed = executor.place([1])
        for ask in (executor.map, executor.step):
            with pytest.raises(SparseGPError, match="backend='threads'"):
                ask(_die, placed)
        with pytest.raises(SparseGPError, match="backend='threads'"):
            executor.place([2])


def _die(item: Any) -> None:
    os._exit(1)


def test_processes_end_with_a_parent_that_was_killed(tmp_path: Any) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent("""
            import os, time
            from sparsegp.processes import Processes

            def process(item):
                return os.getpid()

            if __name__ == "__main__":
                executor = Processes(1)
                print(*executor.map(process, executor.place([0])), flush=True)
                time.sleep(600)
        """)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 10 * processes.PARENT_SECONDS
    while _is_running(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _is_running(child)


def _is_running(process: int) -> bool:
    with suppress(OSError):
        os.kill(process, 0)
        status = open(f"/proc/{process}/stat").read() if sys.platform == "linux" else ""  # noqa: SIM115, PTH123
        return status.rpartition(")")[2].split()[:1] != ["Z"]
    return False


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is no signal to a process there")
def test_an_interrupt_ends_the_wait_and_leaves_the_processes(two_processes: Processes, tmp_path: Path) -> None:
    placed = two_processes.place([tmp_path / "first", tmp_path / "second"])
    before = two_processes.map(_process, placed)

    def interrupt_while_both_work() -> None:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        time.sleep(0.1)
        # to this thread: sent to the process, it may go to one that does not wake the waiting one
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    presser = threading.Thread(target=interrupt_while_both_work)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        two_processes.step(_work_until_released, placed)
    presser.join()
    (tmp_path / "released").touch()
    assert two_processes.map(_process, placed) == before


def _work_until_released(file: Path) -> tuple[Path, None]:
    file.touch()
    while not file.with_name("released").exists():
        time.sleep(0.01)
    return file, None
