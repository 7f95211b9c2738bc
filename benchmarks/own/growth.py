"""Worker: a fit straight from Parquet files, or `sparsegp predict` of them, with its peak memory.

They are processes of their own: the system counts what a parent holds when it starts a child as that of the child.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.jobs import Arrays, read_job, write_result


def fit(problem: Arrays, options: dict[str, Any], model_file: Path) -> dict[str, Any]:
    from sparsegp import SparseGPRegressor, kernels

    started = time.perf_counter()
    kernel = kernels.SquaredExponential(variance=float(problem["variance"]), lengthscales=problem["lengthscales"])
    given = {"kernel": kernel, "noise_var": float(problem["noise_var"]), "optimizer": None, "random_state": 0}
    model = SparseGPRegressor(**given, **{name: options[name] for name in ("approximation", "n_inducing", "n_blocks")})
    model.fit(Path(options["folder"]) / "rows", target="y")
    seconds = time.perf_counter() - started
    model.save(model_file)
    return {
        "fit_seconds": seconds,
        "fit_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0,
        "log_evidence_per_row": model.log_evidence_ / options["n_rows"],
    }


def predict(_: Arrays, options: dict[str, Any], model_file: Path) -> dict[str, Any]:
    """The command as a process: start, loading and writing included."""
    folder = Path(options["folder"])
    command = [sys.executable, "-m", "sparsegp.cli", "predict", str(model_file), str(folder / "new")]
    started = time.perf_counter()
    subprocess.run([*command, "--output", str(folder / "predicted.parquet")], check=True, capture_output=True)
    return {
        "predict_seconds": time.perf_counter() - started,
        "predict_peak_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024.0,
    }


def main(folder: str) -> None:
    problem, options = read_job(folder)
    model_file = Path(options["folder"]) / f"{options['approximation']}.sgp"
    write_result(folder, {"fit": fit, "predict": predict}[options["work"]](problem, options, model_file))


if __name__ == "__main__":
    main(sys.argv[1])
