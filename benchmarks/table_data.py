"""Tables as they come: text, categories, dates and missing values, split the same way for every method."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
from benchmarks.jobs import ROOT, Arrays

TRAIN_FRACTION = 0.9
SPLIT_SEED = 1
KNOWN_AFTER_LANDING = ("arr_time", "air_time")
KNOWN_AT_DEPARTURE = ("dep_delay", "dep_time")


@dataclass(frozen=True)
class Target:
    """A column of a table to predict; `without` are columns that nobody would know in time."""

    table: str
    column: str
    without: tuple[str, ...] = ()
    log: bool = False


TARGETS = {
    "flights, departed": Target("flights_raw", "arr_delay", KNOWN_AFTER_LANDING),
    "flights, before": Target("flights_raw", "arr_delay", (*KNOWN_AFTER_LANDING, *KNOWN_AT_DEPARTURE)),
    "diamonds": Target("diamonds", "price"),
    "diamonds, log": Target("diamonds", "price", log=True),
    "wages": Target("wages", "lwage"),
    "workinghours": Target("workinghours", "hours"),
}


@dataclass(frozen=True)
class Split:
    """Arrow tables of inputs, targets standardised by the training rows, and the unit of the target."""

    train: pa.Table
    y: np.ndarray
    test: pa.Table
    y_test: np.ndarray
    unit: float


def tables_folder() -> Path:
    given = os.environ.get("SPARSEGP_DATA")
    return (Path(given) if given else ROOT.parent / "shared" / "data") / "tables"


def is_available(name: str) -> bool:
    return (tables_folder() / f"{TARGETS[name].table}.parquet").exists()


def load_split(name: str, max_rows: int | None = None) -> Split:
    """A random 90 % to fit and the rest to test; rows without a target are left out of both."""
    target = TARGETS[name]
    table = parquet.read_table(tables_folder() / f"{target.table}.parquet")
    order = np.random.default_rng(SPLIT_SEED).permutation(table.num_rows)
    parts = np.split(order, [int(TRAIN_FRACTION * table.num_rows)])
    y = table[target.column].to_numpy().astype(np.float64)
    inputs = table.drop_columns([target.column, *target.without])
    known = [part[~np.isnan(y[part])][:max_rows] for part in parts]
    values = [np.log(y[part]) if target.log else y[part] for part in known]
    mean, std = values[0].mean(), values[0].std()
    train, test = (inputs.take(pa.array(part)) for part in known)
    return Split(train, (values[0] - mean) / std, test, (values[1] - mean) / std, float(std))


def coded(split: Split) -> Arrays:
    """As trees take tables: text and categories as codes of the training levels, dates as seconds, NaN where missing.

    `categories` are the columns that are codes.
    """
    train, test = (_dated(part.to_pandas()) for part in (split.train, split.test))
    is_category = [isinstance(train[name].dtype, pd.CategoricalDtype) or _is_text(train[name]) for name in train]
    for name in train.columns[is_category]:
        levels = train[name].astype("category").dtype
        train[name], test[name] = (_codes(part[name].astype(levels)) for part in (train, test))
    X, X_test = (part.to_numpy(dtype=np.float64) for part in (train, test))
    return {"X": X, "y": split.y, "X_test": X_test, "categories": np.flatnonzero(is_category)}


def _codes(column: pd.Series) -> pd.Series:
    codes = column.cat.codes
    return codes.where(codes >= 0, np.nan)


def _is_text(column: pd.Series) -> bool:
    return pd.api.types.is_string_dtype(column.dtype)


def _dated(frame: pd.DataFrame) -> pd.DataFrame:
    for name in frame:
        if _is_text(frame[name]) and frame[name].dropna().head(50).str.match(r"\d{4}-\d\d-\d\d").all():
            when = pd.to_datetime(frame[name], utc=True)
            frame[name] = (when - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    return frame
