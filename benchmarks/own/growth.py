"""Worker: a fit straight from Parquet files, then `sparsegp predict` of them, with the peak memory of each."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.jobs import read_job, write_result

from sparsegp import SparseGPRegressor


def fit(options: dict[str, Any], model_file: Path) -> dict[str, Any]:
    started = time.perf_counter()
    named = {name: options[name] for name in ("approximation", "n_inducing", "n_blocks")}
    model = SparseGPRegressor(kernel="se", random_state=0, **named)
    model.fit(Path(options["folder"]) / "rows", target="y")
    seconds = time.perf_counter() - started
    model.save(model_file)
    return {
        "fit_seconds": seconds,
        "fit_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0,
        "log_evidence_per_row": model.log_evidence_ / options["n_rows"],
    }


def predict(options: dict[str, Any], model_file: Path) -> dict[str, Any]:
    """The command as a process: start, loading and writing included."""
    folder = Path(options["folder"])
    command = [sys.executable, "-m", "sparsegp.cli", "predict", str(model_file), str(folder / "rows")]
    started = time.perf_counter()
    subprocess.run([*command, "--output", str(folder / "predicted.parquet")], check=True, capture_output=True)
    return {
        "predict_seconds": time.perf_counter() - started,
        "predict_peak_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024.0,
    }


def main(folder: str) -> None:
    _, options = read_job(folder)
    model_file = Path(options["folder"]) / f"{options['approximation']}.sgp"
    write_result(folder, {**fit(options, model_file), **predict(options, model_file)})


if __name__ == "__main__":
    main(sys.argv[1])
