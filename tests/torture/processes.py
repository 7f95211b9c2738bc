"""The program as real processes: killed at random moments, several at once on one file, on a full disk."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import sparsegp
import sparsegp.files
from torture.campaign import Campaign, Case
from torture.children import Command, afresh, counted, forked, hesitant, killed_at
from torture.writes import require_tidy, rows, small_model

ROWS, BATCH = 60, 40
PAGE_BYTES = 4096
AFRESH_EVERY = 10
"""So many cases are forked for one that starts an interpreter, which takes fifty times as long."""
FIT = ("fit", "batch0.csv", "-t", "y", "-a", "vfe", "-m", "5", "--kernel", "se", "--time-budget", "2", "-o")
COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "fit": ((*FIT, "fit.sgp"), "fit.sgp"),
    "update": (("update", "model.sgp", "batch0.csv", "batch1.csv"), "model.sgp"),
    "predict": (("predict", "model.sgp", "batch0.csv", "-o", "out.csv", "--chunk-rows", "5"), "out.csv"),
    "merge": (("merge", "model.sgp", "part.sgp", "-o", "merged.sgp"), "merged.sgp"),
    "report": (("report", "model.sgp", "batch0.csv", "-o", "out.html"), "out.html"),
    "fit again": ((*FIT, "model.sgp"), "model.sgp"),
    "separate": (("update", "model.sgp", "batch0.csv", "--separate", "-o", "apart.sgp"), "apart.sgp"),
    "merge into": (("merge", "model.sgp", "part.sgp", "-o", "model.sgp"), "model.sgp"),
    "parquet": (("predict", "model.sgp", "batch0.csv", "-o", "out.parquet"), "out.parquet"),
}
READERS: dict[str, Callable[[Path], pd.DataFrame]] = {"predict": pd.read_csv, "parquet": pd.read_parquet}
SIZES = {
    "fit": (BATCH,), "fit again": (BATCH,), "separate": (BATCH,), "merge": (ROWS + BATCH,),
    "merge into": (ROWS + BATCH,), "update": (ROWS + BATCH, ROWS + 2 * BATCH),
}  # fmt: skip
"""Rows of the new model: after each step of the command, the last one last."""


def fill(folder: Path) -> None:
    """A model, a part of new rows, and three batches."""
    folder.mkdir()
    model = small_model(ROWS)
    model.save(folder / "model.sgp")
    part = model.without_rows()
    more = rows(BATCH, 9)
    part.partial_fit(more[["x"]].to_numpy(), more["y"].to_numpy())
    sparsegp.files.record_batches(part, "part")
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
    if command in READERS:
        found = READERS[command](path)
        assert len(found) == BATCH, len(found)
        assert np.isfinite(found.to_numpy()).all()
    elif command == "report":
        assert path.read_text().rstrip().endswith("</html>")
    else:
        n_rows = sparsegp.load(path).n_samples_seen_
        assert n_rows in SIZES[command][-1:] if complete else SIZES[command], f"{n_rows} rows"
    return "new file"


# Kills


def prepare_kills(place: Path) -> Case:
    fill(place / "origin")

    @cache
    def seconds(name: str, start: Callable[..., Command]) -> float:
        folder, started = fresh(place / "origin", place / "work"), time.monotonic()
        code, said = start(folder, *COMMANDS[name][0]).finished()
        assert code == 0, said
        return time.monotonic() - started

    @cache
    def n_calls(name: str) -> int:
        return counted(fresh(place / "origin", place / "work"), *COMMANDS[name][0])

    def case(seed: int) -> str:
        rng = np.random.default_rng(seed)
        name = list(COMMANDS)[seed % len(COMMANDS)]
        arguments, output = COMMANDS[name]
        start = afresh if rng.integers(AFRESH_EVERY) == 0 else forked
        is_at_call = start is forked and rng.random() < 0.6
        usual = n_calls(name) if is_at_call else seconds(name, start)
        folder = fresh(place / "origin", place / "work")
        path = folder / output
        before = path.read_bytes() if path.exists() else None
        if is_at_call:
            around = partial(killed_at, int(rng.integers(usual)), bool(rng.random() < 0.5))
            code, said = forked(folder, *arguments, around=around).finished()
            assert code in (-signal.SIGKILL, 0), said
        else:
            process = start(folder, *arguments)
            time.sleep(usual * rng.uniform(0.2, 1.05))
            process.kill()
            process.ended()
        left = require_whole(name, path, before)
        repeat_after_kill(name, folder, before)
        return f"{'at a call' if is_at_call else f'at a time, {start.__name__}'}: {left}"

    return case


def repeat_after_kill(name: str, folder: Path, before: bytes | None) -> None:
    """The same command again succeeds, nothing counts twice, and nothing stays behind.

    A model that is complete refuses to be written or merged again: that is what it should do.
    """
    arguments, output = COMMANDS[name]
    path = folder / output
    is_done = path.exists() and path.read_bytes() != before
    code, said = forked(folder, *arguments).finished()
    refusal = {"separate": "exists", "merge into": "Both models hold"}.get(name, "")
    assert code == 0 or (is_done and refusal and refusal in said), said
    require_whole(name, path, before, complete=True)
    if code == 0:
        require_tidy(folder)


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


@race("predictions into one Parquet file", COMMANDS["parquet"][0], COMMANDS["parquet"][0])
def _a_table(folder: Path, codes: list[int]) -> None:
    assert codes == [0, 0], codes
    require_whole("parquet", folder / "out.parquet", None)


@race("merges into one file", COMMANDS["merge"][0], COMMANDS["merge"][0])
def _merged(folder: Path, codes: list[int]) -> None:
    assert codes == [0, 0], codes
    require_whole("merge", folder / "merged.sgp", None)


@race("a merge into a model, twice", COMMANDS["merge into"][0], COMMANDS["merge into"][0])
def _merged_once(folder: Path, codes: list[int]) -> None:
    assert sorted(codes) == [0, 1], codes
    require_whole("merge into", folder / "model.sgp", None)


@race("parts for one file", COMMANDS["separate"][0], COMMANDS["separate"][0])
def _one_part(folder: Path, codes: list[int]) -> None:
    assert sorted(codes) == [0, 1], codes
    require_whole("separate", folder / "apart.sgp", None)


@race("a fit over a model that is updated", COMMANDS["fit again"][0], ("update", "model.sgp", "batch1.csv"))
def _fitted_then_updated(folder: Path, codes: list[int]) -> None:
    assert codes == [0, 0], codes
    assert sparsegp.load(folder / "model.sgp").n_samples_seen_ in (BATCH, 2 * BATCH)


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
        is_afresh = rng.integers(AFRESH_EVERY) == 0
        for arguments in processes:
            around = partial(hesitant, int(rng.integers(2**31)))
            running.append(afresh(folder, *arguments) if is_afresh else forked(folder, *arguments, around=around))
            time.sleep(rng.choice([0.0, 0.0, rng.uniform(0.0, 0.5 if is_afresh else 0.05)]))
        check(folder, [process.finished()[0] for process in running])
        require_tidy(folder)
        return name

    return case


# A full disk


@contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """Of a process that ends within."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))
    yield


@contextmanager
def small_disk(place: Path, n_pages: int) -> Iterator[Path]:
    """A folder on a disk of its own of so many pages. Only the superuser can make one."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={n_pages * PAGE_BYTES}", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def pages(n_bytes: int) -> int:
    return -(-n_bytes // PAGE_BYTES)


def prepare_disks(place: Path) -> Case:
    fill(place / "origin")
    (place / "disk").mkdir()
    sizes = {}
    for name, (arguments, output) in COMMANDS.items():
        folder = fresh(place / "origin", place / "work")
        assert forked(folder, *arguments).finished()[0] == 0
        sizes[name] = (folder / output).stat().st_size
    inputs = sum(pages(path.stat().st_size) for path in (place / "origin").iterdir())

    def refused(name: str, folder: Path, **more: Any) -> None:
        arguments, output = COMMANDS[name]
        path = folder / output
        before = path.read_bytes() if path.exists() else None
        code, said = forked(folder, *arguments, **more).finished()
        assert code == 1, (code, said)
        assert output in said.replace("\n", ""), said
        after = path.read_bytes() if path.exists() else None
        assert after == before, "the old file was changed"
        require_tidy(folder)

    def case(seed: int) -> str:
        rng = np.random.default_rng(seed)
        name = list(COMMANDS)[seed % len(COMMANDS)]
        if os.geteuid() == 0 and rng.random() < 0.5:
            room = int(rng.integers(pages(sizes[name])))
            with small_disk(place / "disk", inputs + room) as disk:
                for path in (place / "origin").iterdir():
                    shutil.copy(path, disk)
                refused(name, disk)
            return "no room on the disk"
        folder = fresh(place / "origin", place / "work")
        refused(name, folder, around=partial(largest_file, int(rng.uniform(0, sizes[name]))))
        return "file too large"

    return case


KILLS = Campaign("kills", prepare_kills, share=0.15, goal=500)
RACING = Campaign("races", prepare_races, share=0.1, goal=200)
DISKS = Campaign("full disk", prepare_disks, share=0.05, goal=50)
