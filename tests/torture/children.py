"""Commands of the program as processes: forked from one that has imported everything, or with an interpreter afresh.

A forked one begins within milliseconds, and can do to itself at a chosen call what happens to others by chance.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from sparsegp import whole_file
from sparsegp.cli import main
from torture.writes import CALLS, intercepted

PROGRAM = "import sys; sys.argv[0] = 'sparsegp'; from sparsegp.cli import main; main()"
IMPORTED = ["torture.children", "pandas", "pyarrow.csv", "pyarrow.parquet", "sparsegp.cli", "sparsegp.report"]
IMPORTED += ["sklearn.neighbors", "sklearn.cluster", "scipy.optimize", "sparsegp.serving", "rich.console", "rich.table"]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Unless the environment says otherwise."""
SECONDS = 600
KILLABLE = (*CALLS, (whole_file._Unfinished, "write"))
LONGEST_PAUSE = 0.01

Around = Callable[[], AbstractContextManager[Any]]
"""What a forked process puts around its command."""


def killed_at(place: int, before: bool) -> AbstractContextManager[Any]:
    """`kill -9` just before or just after the call of this place; of a write, in the middle."""

    def answer(k: int, name: str, call: Any) -> Any:
        if k != place:
            return call()
        if name == "write":
            unfinished, content = call.args
            call.func(unfinished, bytes(content)[: len(content) // 2])
        elif not before:
            call()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("dead")

    return intercepted(answer, KILLABLE)


def hesitant(seed: int) -> AbstractContextManager[Any]:
    """Pauses before some calls, so that others come between them."""
    rng = np.random.default_rng(seed)

    def answer(k: int, name: str, call: Callable[[], Any]) -> Any:
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0.0, LONGEST_PAUSE))
        return call()

    return intercepted(answer, KILLABLE)


@contextmanager
def counting(path: Path) -> Iterator[None]:
    """The calls of a command at which it could be killed, into a file."""
    try:
        with intercepted(lambda k, name, call: call(), KILLABLE) as seen:
            yield
    finally:
        path.write_text(" ".join(seen))


@dataclass(frozen=True)
class Command:
    """A command that runs. `ended` waits for its exit code and for what it said."""

    ended: Callable[[], tuple[int, str]]
    kill: Callable[[], None]

    def finished(self) -> tuple[int, str]:
        code, said = self.ended()
        assert "Traceback" not in said, said
        return code, said


def afresh(folder: Path, *arguments: str) -> Command:
    """By an interpreter of its own, as the user does."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env={**ONE_THREAD, **os.environ},
    )  # fmt: skip

    def ended() -> tuple[int, str]:
        said, _ = process.communicate(timeout=SECONDS)
        return process.returncode, said

    return Command(ended, process.kill)


def forked(folder: Path, *arguments: str, around: Around = nullcontext) -> Command:
    """By a process that is forked from the one that has imported everything."""
    context = _context()
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(folder, arguments, around, theirs), daemon=True)
    process.start()
    theirs.close()

    def ended() -> tuple[int, str]:
        until, said = time.monotonic() + SECONDS, b""
        while mine.poll(max(0.0, until - time.monotonic())) and (part := os.read(mine.fileno(), 2**16)):
            said += part
        process.join(max(0.0, until - time.monotonic()))
        assert process.exitcode is not None, f"a hang: {arguments} after {SECONDS} seconds"
        mine.close()
        return process.exitcode, said.decode(errors="replace")

    return Command(ended, process.kill)


def counted(folder: Path, *arguments: str) -> int:
    """How many calls a command makes at which it could be killed."""
    code, said = forked(folder, *arguments, around=partial(counting, folder / "calls")).finished()
    assert code == 0, said
    return len((folder / "calls").read_text().split())


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    os.environ |= {**ONE_THREAD, **os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    context.set_forkserver_preload(IMPORTED)
    return context


def _run(folder: Path, arguments: tuple[str, ...], around: Around, said: Connection) -> None:
    os.chdir(folder)
    for handle in (1, 2):
        os.dup2(said.fileno(), handle)
    said.close()
    sys.argv = ["sparsegp", *arguments]
    with around():
        main()
