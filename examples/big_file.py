"""A folder of Parquet files as one table: planned, fitted and predicted without naming an array."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import sparsegp
from sparsegp import SparseGPRegressor


def write_folder(folder: Path, n_files: int, rows_per_file: int) -> None:
    """Files that would not have to fit into memory together."""
    rng = np.random.default_rng(0)
    for k in range(n_files):
        x, t = rng.uniform(-3, 3, rows_per_file), rng.uniform(0, 1000, rows_per_file)
        y = 20 + np.sin(2 * x) + t / 500 + 0.1 * rng.standard_normal(rows_per_file)
        pq.write_table(pa.table({"x": x, "t": t, "y": y}), folder / f"part-{k}.parquet", row_group_size=10_000)


def main(n_files: int = 5, rows_per_file: int = 100_000) -> SparseGPRegressor:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_folder(folder, n_files, rows_per_file)
        gp = SparseGPRegressor(approximation="vfe", n_inducing=64, random_state=0)
        print(sparsegp.plan(folder, target="y", estimator=gp))
        gp.fit(folder, target="y")
        mean, std = gp.predict(folder / "part-0.parquet", return_std=True)  # columns are found by name
    print(f"{gp.n_samples_seen_:,} rows in {gp.info_['seconds']:.1f} s; the first is {mean[0]:.2f} +- {std[0]:.2f}")
    return gp


if __name__ == "__main__":
    main()
