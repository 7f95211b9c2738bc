"""A job: one measurement in a fresh process, so that its peak memory and its import state are its own.

The parent writes `problem.npz` and `options.json` into a folder and starts `python -m <module> <folder>`; the
worker reads them, works, and writes `result.json` (and `arrays.npz` when it has arrays to give back).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from resource import RLIMIT_CPU, setrlimit
from signal import SIGKILL, SIGXCPU
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
_MESSAGE_LINES = 12

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class JobResult:
    """What a worker gave back; `error` is None when it finished."""

    facts: dict[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    error: str | None = None


def own_python() -> str:
    return sys.executable


def peers_python() -> str | None:
    """The interpreter with the peers installed, or None when there is none."""
    given = os.environ.get("SPARSEGP_BENCH_PYTHON")
    candidate = Path(given) if given else ROOT / ".venv-bench" / "bin" / "python"
    return str(candidate) if candidate.exists() else None


NO_PEERS = (
    "no python with the peers: create .venv-bench with the packages of the `bench` extra (GPflow, LightGBM, GPBoost, "
    "MAPIE and others), or set SPARSEGP_BENCH_PYTHON to a python that has them"
)


def run_job(
    python: str | None, module: str, problem: Arrays, options: dict[str, Any], cpu_limit: int | None = None
) -> JobResult:
    """Run one worker module in a fresh process of the interpreter `python`; its errors come back as data.

    `cpu_limit` is in seconds of processor time, so that it does not hang on the load of the machine.
    """
    if python is None:
        return JobResult(error=NO_PEERS)
    with tempfile.TemporaryDirectory(prefix="sparsegp-bench-") as name:
        folder = Path(name)
        np.savez(folder / "problem.npz", **problem)
        (folder / "options.json").write_text(json.dumps(options))
        limit = None if cpu_limit is None else lambda: setrlimit(RLIMIT_CPU, (cpu_limit, cpu_limit + 5))
        done = subprocess.run(
            [python, "-m", module, str(folder)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=limit,
        )
        if done.returncode in (-SIGXCPU, -SIGKILL) and cpu_limit is not None:
            return JobResult(error=f"did not end within {cpu_limit} s of processor time")
        if done.returncode != 0 or not (folder / "result.json").exists():
            return JobResult(error=_reason(done))
        facts = json.loads((folder / "result.json").read_text())
        return JobResult(facts, _load_arrays(folder / "arrays.npz"))


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of what the worker said goes into the results; the lines before it to the terminal."""
    lines = (done.stderr or done.stdout or "no message").strip().splitlines()
    print("\n".join(lines[-_MESSAGE_LINES:]), file=sys.stderr)
    return f"ended with code {done.returncode}: {lines[-1].replace(str(ROOT), '.')}"


def _load_arrays(path: Path) -> Arrays:
    if not path.exists():
        return {}
    with np.load(path) as stored:
        return {key: stored[key] for key in stored.files}


def read_job(folder: str) -> tuple[Arrays, dict[str, Any]]:
    """Worker side: the problem's arrays and the options."""
    return _load_arrays(Path(folder) / "problem.npz"), json.loads((Path(folder) / "options.json").read_text())


def write_result(folder: str, facts: dict[str, Any], arrays: Arrays | None = None) -> None:
    """Worker side: hand back scalars and, when there are any, arrays."""
    if arrays:
        np.savez(Path(folder) / "arrays.npz", **arrays)
    (Path(folder) / "result.json").write_text(json.dumps(facts))


def standardise(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Worker side: columns by the mean and deviation of the training rows."""
    mean, std = train.mean(0), train.std(0)
    return (train - mean) / std, (test - mean) / std
