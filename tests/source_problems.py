"""The same rows from every kind of source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from sparsegp.data import Source, open_source

N_ROWS = 157
NAMES = ["depth", "age", "flag"]


def columns(n_rows: int = N_ROWS, seed: int = 0) -> dict[str, np.ndarray]:
    """A float, an integer and a boolean input, a target with a large mean, a noise variance and a weight."""
    rng = np.random.default_rng(seed)
    return {
        "depth": rng.normal(size=n_rows),
        "age": rng.integers(0, 90, n_rows),
        "flag": rng.random(n_rows) < 0.3,
        "y": 1e6 + rng.normal(size=n_rows),
        "noise": rng.uniform(0.1, 0.4, n_rows),
        "weight": rng.integers(0, 3, n_rows).astype(float),
    }


def frame(**changes: Any) -> pd.DataFrame:
    return pd.DataFrame(columns() | changes)


def matrix(table: dict[str, np.ndarray]) -> np.ndarray:
    return np.column_stack([table[name] for name in NAMES]).astype(float)


def write_folder(folder: Path, *frames: pd.DataFrame, row_group_size: int = 20) -> Path:
    folder.mkdir(exist_ok=True)
    for k, part in enumerate(frames):
        table = pa.Table.from_pandas(part, preserve_index=False)
        pq.write_table(table, folder / f"part-{k}.parquet", row_group_size=row_group_size)
    return folder


ROLES = {"target": "y", "noise_var": "noise", "sample_weight": "weight"}
Opener = Callable[[Path], Source]


def batches_of(_: Path) -> Iterator[tuple[np.ndarray, ...]]:
    table = columns()
    X = matrix(table)
    for part in (slice(0, 40), slice(40, 40), slice(40, 150), slice(150, None)):
        yield X[part], table["y"][part], table["noise"][part], table["weight"][part]


def open_arrays(_: Path) -> Source:
    table = columns()
    return open_source(matrix(table), table["y"], noise_var=table["noise"], sample_weight=table["weight"])


def _parquet_folder(folder: Path) -> Source:
    parts = frame().iloc[:60], frame().iloc[60:60], frame().iloc[60:]
    return open_source(write_folder(folder / "parts", *parts), **ROLES, batch_rows=13)


def _parquet_with_index(folder: Path) -> Source:
    frame().set_index(np.arange(N_ROWS)[::-1]).to_parquet(folder / "rows.parquet", row_group_size=50)
    return open_source(str(folder / "rows.parquet"), **ROLES)


def _hive_folder(folder: Path) -> Source:
    """The flag is not in the files: it is the name of their folder."""
    flags = columns()["flag"]
    for k, flag in enumerate(flags.tolist()):
        part = folder / "hive" / f"row={k:03d}" / f"flag={int(flag)}"
        part.mkdir(parents=True)
        frame().drop(columns="flag").iloc[[k]].to_parquet(part / "rows.parquet", index=False)
    return open_source(folder / "hive", **ROLES, features=NAMES)


def _csv(folder: Path) -> Source:
    frame().to_csv(folder / "rows.csv", index=False)
    return open_source(folder / "rows.csv", **ROLES, batch_rows=50)


def _dask_frame(_: Path) -> Source:
    parts = [frame().iloc[:100], frame().iloc[100:100], frame().iloc[100:]]
    return open_source(dd.concat([dd.from_pandas(part, npartitions=1) for part in parts]), **ROLES)


def _dask_arrays(_: Path) -> Source:
    table = columns()
    X = da.from_array(matrix(table), chunks=(50, 2))
    y, noise, weight = (da.from_array(table[name], chunks=60) for name in ("y", "noise", "weight"))
    return open_source(X, y, noise_var=noise, sample_weight=weight)


OPENERS: dict[str, Opener] = {
    "arrays": open_arrays,
    "pandas": lambda _: open_source(frame(), **ROLES, batch_rows=31),
    "polars": lambda _: open_source(pl.from_pandas(frame()), **ROLES),
    "pyarrow": lambda _: open_source(pa.Table.from_pandas(frame()), **ROLES),
    "parquet folder": _parquet_folder,
    "parquet with an index": _parquet_with_index,
    "hive folder": _hive_folder,
    "csv": _csv,
    "dask frame": _dask_frame,
    "dask arrays": _dask_arrays,
    "list of batches": lambda folder: open_source(list(batches_of(folder))),
    "function that makes a generator": lambda folder: open_source(lambda: batches_of(folder)),
    "spooled generator": lambda folder: open_source(batches_of(folder), spool_to=folder / "spool.parquet"),
    "tables": lambda _: open_source([frame().iloc[:30], pl.from_pandas(frame().iloc[30:])], **ROLES),
}
