"""A saved VFE model in production: processes that start, load and predict, one warm prediction, and the file's size."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import seconds_of
from benchmarks.problems import synthetic
from benchmarks.results import machine_facts, number, print_table, write_results

import sparsegp
from sparsegp import SparseGPRegressor

NAME = "product"
N_ROWS, N_FEATURES, N_INDUCING = 20_000, 8, 512
GOALS = {
    "sparsegp --help, seconds": "under 0.5",
    "sparsegp predict, one row of a CSV file, seconds": "under 1.5",
    "sparsegp.serving.load and predict one row, a process, seconds": "under 1.5",
    "sparsegp.load and predict one row, a process, seconds": "",
    "import torch and scikit-learn alone, a process, seconds": "",
    "load, seconds": "",
    "predict one row with std, warm, milliseconds": "under 1",
    "model file, MB": "under 5",
}
PREDICT = "import numpy; from {module} import load; load({path!r}).predict(numpy.zeros((1, {d})), return_std=True)"


def run(quick: bool = False) -> dict[str, Any]:
    n_inducing, repeats = (32, 1) if quick else (N_INDUCING, 5)
    problem = synthetic(N_ROWS, n_inducing, N_FEATURES)
    model = SparseGPRegressor(
        approximation="vfe", inducing=problem["Z"], n_inducing=n_inducing, noise_var=0.1, optimizer=None
    )
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.sgp")
        model.fit(problem["X"], problem["y"]).save(path)
        measured = _measured(path, repeats)
    document = {
        "machine": machine_facts(),
        "problem": {"n_inducing": n_inducing, "n_features": N_FEATURES},
        "measured": measured,
    }
    write_results(NAME, document, quick)
    print_table("a saved model", ["", "measured", "goal"], rows(document))
    return document


def _measured(path: str, repeats: int) -> dict[str, float]:
    command, table = str(Path(sys.executable).with_name("sparsegp")), _one_row(Path(path).with_name("row.csv"))
    processes = {
        "sparsegp --help, seconds": [command, "--help"],
        "sparsegp predict, one row of a CSV file, seconds": [command, "predict", path, table],
        "sparsegp.serving.load and predict one row, a process, seconds": _prediction("sparsegp.serving", path),
        "sparsegp.load and predict one row, a process, seconds": _prediction("sparsegp", path),
        "import torch and scikit-learn alone, a process, seconds": _python("import torch, sklearn.base"),
    }
    measured = {name: _process_seconds(arguments, repeats) for name, arguments in processes.items()}
    loaded = sparsegp.load(path)
    one = synthetic(1, 1, N_FEATURES, seed=1)["X"]
    measured["load, seconds"] = statistics.median(seconds_of(lambda: sparsegp.load(path)) for _ in range(repeats))
    warm = [seconds_of(lambda: loaded.predict(one, return_std=True)) for _ in range(200 * repeats)]
    measured["predict one row with std, warm, milliseconds"] = 1e3 * statistics.median(warm)
    measured["model file, MB"] = Path(path).stat().st_size / 1e6
    return {name: measured[name] for name in GOALS}


def _one_row(path: Path) -> str:
    path.write_text(",".join(f"x{k}" for k in range(N_FEATURES)) + "\n" + ",".join(["0.5"] * N_FEATURES) + "\n")
    return str(path)


def _prediction(module: str, path: str) -> list[str]:
    return _python(PREDICT.format(module=module, path=path, d=N_FEATURES))


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def _process_seconds(arguments: list[str], repeats: int) -> float:
    """The median of several runs after one that warms the file cache."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        subprocess.run(arguments, check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def rows(document: dict[str, Any]) -> list[list[str]]:
    return [[name, number(value), GOALS[name]] for name, value in document["measured"].items()]
