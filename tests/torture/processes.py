"""The program as real processes: killed at random moments, several at once on one file, on a full disk."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import sparsegp
from torture.campaign import Campaign, Case
from torture.writes import require_tidy, rows, small_model

PROGRAM = "import sys; sys.argv[0] = 'sparsegp'; from sparsegp.cli import main; main()"
SECONDS = 600
ROWS, BATCH = 60, 40
COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "fit": (
        (
            "fit",
            "batch0.csv",
            "-t",
            "y",
            "-o",
            "fit.sgp",
            "-a",
            "vfe",
            "-m",
            "5",
            "--kernel",
            "se",
            "--time-budget",
            "2",
        ),
        "fit.sgp",
    ),
    "update": (("update", "model.sgp", "batch0.csv", "batch1.csv"), "model.sgp"),
    "predict": (("predict", "model.sgp", "batch0.csv", "-o", "out.csv", "--chunk-rows", "5"), "out.csv"),
    "merge": (("merge", "model.sgp", "part.sgp", "-o", "merged.sgp"), "merged.sgp"),
    "report": (("report", "model.sgp", "batch0.csv", "-o", "out.html"), "out.html"),
}


def start(folder: Path, *arguments: str, limit: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, preexec_fn=limit,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=SECONDS)
    assert "Traceback" not in said, said
    return process.returncode, said


def fill(folder: Path) -> None:
    """A model, a part of new rows, and three batches."""
    folder.mkdir()
    model = small_model(ROWS)
    model.save(folder / "model.sgp")
    part = model.without_rows()
    more = rows(BATCH, 9)
    part.partial_fit(more[["x"]].to_numpy(), more["y"].to_numpy())
    part.save(folder / "part.sgp")
    for k in range(3):
        rows(BATCH, k + 1).to_csv(folder / f"batch{k}.csv", index=False)


def fresh(origin: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(origin, folder)
    return folder


def require_whole(command: str, path: Path, before: bytes | None, complete: bool = False) -> str:
    """There is the old file or a whole new one."""
    if not complete and (path.read_bytes() if path.exists() else None) == before:
        return "old file"
    if command == "predict":
        found = pd.read_csv(path)
        assert len(found) == BATCH, len(found)
        assert np.isfinite(found.to_numpy()).all()
    elif command == "report":
        assert path.read_text().rstrip().endswith("</html>")
    else:
        expected = {"fit": (BATCH,), "merge": (ROWS + BATCH,), "update": (ROWS + BATCH, ROWS + 2 * BATCH)}[command]
        n_rows = sparsegp.load(path).n_samples_seen_
        assert n_rows in (expected[-1:] if complete else expected), f"{n_rows} rows"
    return "new file"


# Kills


def prepare_kills(place: Path) -> Case:
    fill(place / "origin")
    usual = {}
    for name, (arguments, _) in COMMANDS.items():
        started = time.monotonic()
        code, said = finished(start(fresh(place / "origin", place / "work"), *arguments))
        assert code == 0, said
        usual[name] = time.monotonic() - started

    def case(seed: int) -> str:
        rng = np.random.default_rng(seed)
        name = list(COMMANDS)[seed % len(COMMANDS)]
        arguments, output = COMMANDS[name]
        folder = fresh(place / "origin", place / "work")
        path = folder / output
        before = path.read_bytes() if path.exists() else None
        process = start(folder, *arguments)
        time.sleep(usual[name] * rng.uniform(0.4, 1.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        left = require_whole(name, path, before)
        code, said = finished(start(folder, *arguments))
        assert code == 0, said
        require_whole(name, path, before, complete=True)
        require_tidy(folder)
        return f"{name}, {left}"

    return case


# Races


RACES: dict[str, tuple[tuple[tuple[str, ...], ...], Callable[[Path, list[int]], None]]] = {}


def race(name: str, *processes: tuple[str, ...]) -> Callable[[Any], Any]:
    def register(check: Callable[[Path, list[int]], None]) -> Callable[[Path, list[int]], None]:
        RACES[name] = processes, check
        return check

    return register


@race("updates of one model", *(("update", "model.sgp", f"batch{k}.csv") for k in range(3)))
def _all_batches(folder: Path, codes: list[int]) -> None:
    assert codes == [0, 0, 0], codes
    assert sparsegp.load(folder / "model.sgp").n_samples_seen_ == ROWS + 3 * BATCH


@race("the same update twice", *[("update", "model.sgp", "batch0.csv")] * 2)
def _once(folder: Path, codes: list[int]) -> None:
    assert codes == [0, 0], codes
    assert sparsegp.load(folder / "model.sgp").n_samples_seen_ == ROWS + BATCH


@race("updates into one new file", *(("update", "model.sgp", f"batch{k}.csv", "-o", "new.sgp") for k in range(2)))
def _one_is_refused(folder: Path, codes: list[int]) -> None:
    assert sorted(codes) == [0, 1], codes
    assert sparsegp.load(folder / "new.sgp").n_samples_seen_ == ROWS + BATCH


@race(
    "predictions into one file",
    *(("predict", "model.sgp", f"batch{k}.csv", "-o", "out.csv", "--chunk-rows", "3") for k in range(2)),
)
def _one_of_them(folder: Path, codes: list[int]) -> None:
    assert codes == [0, 0], codes
    found = pd.read_csv(folder / "out.csv")["mean"].to_numpy()
    model = sparsegp.load(folder / "model.sgp")
    each = [model.predict(pd.read_csv(folder / f"batch{k}.csv")[["x"]]) for k in range(2)]
    assert any(np.allclose(found, mean, rtol=1e-9) for mean in each), "a mixture of both"


@race("an update while others predict", ("update", "model.sgp", "batch0.csv"), COMMANDS["predict"][0])
def _old_or_new(folder: Path, codes: list[int]) -> None:
    assert codes == [0, 0], codes
    require_whole("predict", folder / "out.csv", None)
    assert sparsegp.load(folder / "model.sgp").n_samples_seen_ == ROWS + BATCH


@race("reports into one file", COMMANDS["report"][0], COMMANDS["report"][0])
def _a_page(folder: Path, codes: list[int]) -> None:
    assert codes == [0, 0], codes
    require_whole("report", folder / "out.html", None)


@race("fits into one file", COMMANDS["fit"][0], COMMANDS["fit"][0])
def _a_model(folder: Path, codes: list[int]) -> None:
    assert codes == [0, 0], codes
    require_whole("fit", folder / "fit.sgp", None)


@race(
    "a merge into a model that is updated",
    ("merge", "model.sgp", "part.sgp", "-o", "model.sgp"),
    ("update", "model.sgp", "batch0.csv"),
)
def _both(folder: Path, codes: list[int]) -> None:
    assert codes == [0, 0], codes
    assert sparsegp.load(folder / "model.sgp").n_samples_seen_ == ROWS + 2 * BATCH


def prepare_races(place: Path) -> Case:
    fill(place / "origin")

    def case(seed: int) -> str:
        rng = np.random.default_rng(seed)
        name = list(RACES)[seed % len(RACES)]
        processes, check = RACES[name]
        folder, running = fresh(place / "origin", place / "work"), []
        for arguments in processes:
            running.append(start(folder, *arguments))
            time.sleep(rng.choice([0.0, 0.0, rng.uniform(0.0, 0.5)]))
        check(folder, [finished(process)[0] for process in running])
        require_tidy(folder)
        return name

    return case


# A full disk


def prepare_disks(place: Path) -> Case:
    fill(place / "origin")
    sizes = {}
    for name, (arguments, output) in COMMANDS.items():
        folder = fresh(place / "origin", place / "work")
        assert finished(start(folder, *arguments))[0] == 0
        sizes[name] = (folder / output).stat().st_size

    def case(seed: int) -> str:
        rng = np.random.default_rng(seed)
        name = list(COMMANDS)[seed % len(COMMANDS)]
        arguments, output = COMMANDS[name]
        folder, most = fresh(place / "origin", place / "work"), int(rng.uniform(0, sizes[name]))
        path = folder / output
        before = path.read_bytes() if path.exists() else None

        def limit() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

        code, said = finished(start(folder, *arguments, limit=limit))
        assert code == 1, (code, said)
        assert output in said, said
        after = path.read_bytes() if path.exists() else None
        assert after == before, "the old file was changed"
        require_tidy(folder)
        return f"{name} refused"

    return case


KILLS = Campaign("kills", prepare_kills, share=0.15, goal=500)
RACING = Campaign("races", prepare_races, share=0.1, goal=200)
DISKS = Campaign("full disk", prepare_disks, share=0.05, goal=50)
