"""Every call to the system that writes a file fails once: afterwards there is the old file or the new one."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import sparsegp
from sparsegp import SparseGPError, SparseGPRegressor, kernels
from sparsegp.cli import main
from sparsegp.data import open_source
from sparsegp.fit.checkpoint import Checkpoint, LearningState
from torture.campaign import Campaign, Case

CALLS: tuple[tuple[Any, str], ...] = (
    (os, "open"), (os, "fsync"), (os, "replace"), (os, "fchmod"), (os, "unlink"), (os, "scandir"), (os, "close"),
    (fcntl, "flock"),
)  # fmt: skip
SIZES = 12


@contextmanager
def intercepted(
    answer: Callable[[int, str, Callable[[], Any]], Any], calls: Sequence[tuple[Any, str]] = CALLS
) -> Iterator[list[str]]:
    """Within, `answer` takes the number (from 0), the name and the call instead; the names of all are in the list."""
    seen: list[str] = []
    before = [(module, name, getattr(module, name)) for module, name in calls]

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def attempt(*given: Any, **named: Any) -> Any:
            seen.append(name)
            return answer(len(seen) - 1, name, partial(call, *given, **named))

        return attempt

    for module, name, call in before:
        setattr(module, name, wrapped(name, call))
    try:
        yield seen
    finally:
        for module, name, call in before:
            setattr(module, name, call)


def failing(place: int, number: int = errno.EIO) -> AbstractContextManager[list[str]]:
    """Within, the call of this place raises."""

    def answer(k: int, name: str, call: Callable[[], Any]) -> Any:
        if k == place:
            if name == "close":  # the handle is gone even if the disk says that something was wrong
                call()
            raise OSError(number, os.strerror(number))
        return call()

    return intercepted(answer)


@contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """Within, the system refuses to make a file larger than that: what a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


class CommandFailedError(Exception):
    """The exit code of a command, and what it said."""


def command(*arguments: object) -> None:
    """A command of the program, in this process."""
    said, before = StringIO(), sys.argv
    sys.argv = ["sparsegp", *map(str, arguments)]
    try:
        with redirect_stdout(StringIO()), redirect_stderr(said):
            main()
    except SystemExit as end:
        if end.code:
            raise CommandFailedError(end.code, said.getvalue()) from None
    finally:
        sys.argv = before


def rows(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3.0, 3.0, n)
    return pd.DataFrame({"x": x, "y": np.sin(2.0 * x) + 0.1 * rng.normal(size=n)})


def small_model(n: int = 60, seed: int = 0) -> SparseGPRegressor:
    kernel = kernels.SquaredExponential(1.0, 0.7)
    model = SparseGPRegressor(
        kernel, "vfe", inducing=np.linspace(-3, 3, 8)[:, None], noise_var=0.01, optimizer=None, normalize=False
    )
    table = rows(n, seed)
    model.fit(table[["x"]].to_numpy(), table["y"].to_numpy())
    model.name_columns(("x",), "y")
    return model


def operations(folder: Path) -> dict[str, tuple[Path, Callable[[], Any], Callable[[Path], Any]]]:
    """What writes a file: the file, the call, and a look at the file that fails if it is not whole."""
    rows(40, 1).to_csv(folder / "batch.csv", index=False)
    small_model(20, 3).save(folder / "other.sgp")
    model, out = folder / "model.sgp", {name: folder / name for name in ("out.csv", "out.html", "rows.parquet")}
    state = LearningState(0, 1.0, {})
    fresh = small_model()
    spooled = [(rows(30, k)[["x"]].to_numpy(), rows(30, k)["y"].to_numpy()) for k in range(2)]
    return {
        "save": (model, lambda: fresh.save(model), sparsegp.load),
        "update": (model, lambda: command("update", model, folder / "batch.csv"), sparsegp.load),
        "merge": (model, lambda: command("merge", model, folder / "other.sgp", "-o", model), sparsegp.load),
        "predict": (out["out.csv"], lambda: command("predict", model, folder / "batch.csv", "-o", out["out.csv"]),
                    lambda path: require(len(pd.read_csv(path)) == 40)),
        "report": (out["out.html"], lambda: command("report", model, folder / "batch.csv", "-o", out["out.html"]),
                   lambda path: require(path.read_text().rstrip().endswith("</html>"))),
        "checkpoint": (folder / "learning.npz", lambda: Checkpoint(folder / "learning.npz").write("task", 1, state),
                       lambda path: dict(np.load(path))),
        "spool": (out["rows.parquet"], lambda: open_source(iter(spooled), spool_to=out["rows.parquet"]),
                  lambda path: require(len(pd.read_parquet(path)) == 60)),
    }  # fmt: skip


def require(holds: bool) -> None:
    assert holds


def prepare(folder: Path) -> Case:
    found = operations(folder)
    small_model().save(folder / "model.sgp")
    plan: list[tuple[str, str, int]] = []
    for name, (path, call, _) in found.items():
        before = path.read_bytes() if path.exists() else None
        with failing(-1) as seen:
            call()
        size = path.stat().st_size
        plan += [(name, f"call {seen[k]}", k) for k in range(len(seen))]
        plan += [(name, "disk full", int(k)) for k in np.linspace(0, size - 1, SIZES)]
        restore(path, before)

    def case(seed: int) -> str:
        name, fault, place = plan[seed % len(plan)]
        path, call, look = found[name]
        before = path.read_bytes() if path.exists() else None
        try:
            outcome = attempt(call, fault, place)
            if path.exists() and path.read_bytes() != before:
                look(path)
                outcome = f"{outcome}, new file"
            else:
                assert before is None or path.exists(), "the old file is gone"
                assert outcome != "succeeded", "success was reported, but nothing was written"
                outcome = f"{outcome}, old file"
            if fault == "disk full" or fault in ("call open", "call fsync", "call replace"):
                require_tidy(path.parent)
        finally:
            restore(path, before)
        return outcome

    case.plan = plan  # type: ignore[attr-defined]
    return case


def attempt(call: Callable[[], Any], fault: str, place: int) -> str:
    trouble = largest_file(place) if fault == "disk full" else failing(place)
    try:
        with trouble:
            call()
    except SparseGPError:
        return "our error"
    except CommandFailedError as error:
        return require_said(*error.args)
    return "succeeded"


def require_said(code: int, said: str) -> str:
    assert code == 1, (code, said)
    assert "Traceback" not in said, said
    return "our error"


def require_tidy(folder: Path) -> None:
    left = [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]
    assert not left, f"left behind: {left}"


def restore(path: Path, content: bytes | None) -> None:
    for left in path.parent.glob(".*"):
        left.unlink()
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)


CAMPAIGN = Campaign("writes", prepare, share=0.1, goal=500)
