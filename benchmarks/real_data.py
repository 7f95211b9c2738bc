"""Real datasets: one Parquet file each, last column the target, split the same way for every method."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
from benchmarks.jobs import ROOT, Arrays

TRAIN_FRACTION = 0.9
SPLIT_SEED = 1


def data_folder() -> Path:
    given = os.environ.get("SPARSEGP_DATA")
    return Path(given) if given else ROOT.parent / "shared" / "data"


def is_available(name: str) -> bool:
    return (data_folder() / f"{name}.parquet").exists()


def not_available_message(name: str) -> str:
    return (
        f"skipped {name}: no {name}.parquet in the data folder; set SPARSEGP_DATA to the folder with the "
        "Parquet files (numeric columns, the last one is the target)"
    )


def load_values(name: str) -> np.ndarray:
    """All columns as one array, the target last."""
    table = parquet.read_table(data_folder() / f"{name}.parquet")
    return np.column_stack([column.to_numpy() for column in table.itercolumns()]).astype(np.float64)


def load_split(name: str, max_rows: int | None = None) -> Arrays:
    """Training and test rows (random 90 % / 10 %), y standardised by the training mean and deviation."""
    values = load_values(name)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(values))
    train, test = np.split(values[order], [int(TRAIN_FRACTION * len(values))])
    if max_rows is not None:
        train, test = train[:max_rows], test[:max_rows]
    mean, std = train[:, -1].mean(), train[:, -1].std()
    return {
        "X": np.ascontiguousarray(train[:, :-1]),
        "y": (train[:, -1] - mean) / std,
        "X_test": np.ascontiguousarray(test[:, :-1]),
        "y_test": (test[:, -1] - mean) / std,
    }
