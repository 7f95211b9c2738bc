"""Tables in memory, whoever made them: narwhals and the Arrow stream interface read them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from source_problems import NAMES, ROLES, columns, frame, matrix
from sparsegp.data import is_read_in_batches, open_source
from sparsegp.data.tables import is_table, to_arrow
from sparsegp.errors import InputError


class Stream:
    """Nothing but the Arrow stream interface."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.Table.from_pandas(frame()).__arrow_c_stream__(requested_schema)


def relation() -> Any:
    rows = frame()  # noqa: F841, DuckDB finds it by its name
    return duckdb.sql("select * from rows")


TABLES: dict[str, Callable[[], Any]] = {
    "pandas": frame,
    "pandas with an index": lambda: frame().set_index(np.arange(len(frame()))[::-1]),
    "pandas on pyarrow": lambda: frame().convert_dtypes(dtype_backend="pyarrow"),
    "polars": lambda: pl.from_pandas(frame()),
    "polars lazy": lambda: pl.from_pandas(frame()).lazy(),
    "pyarrow": lambda: pa.Table.from_pandas(frame()),
    "record batch": lambda: pa.RecordBatch.from_pandas(frame()),
    "record batch reader": lambda: pa.Table.from_pandas(frame()).to_reader(max_chunksize=40),
    "duckdb": relation,
    "arrow stream": Stream,
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_table_gives_the_same_rows(kind: str) -> None:
    table = TABLES[kind]()
    assert is_table(table)
    assert not is_read_in_batches(table)
    source, expected = open_source(table, **ROLES, batch_rows=50), columns()
    for _ in range(2):
        batches = list(source)
        np.testing.assert_array_equal(np.concatenate([batch.X for batch in batches]), matrix(expected))
        np.testing.assert_array_equal(np.concatenate([batch.noise_var for batch in batches]), expected["noise"])
    assert source.feature_names == tuple(NAMES)
    assert source.n_rows == len(expected["y"])


@pytest.mark.parametrize(
    "other", [np.ones((2, 2)), [[1.0]], {"a": [1]}, "rows.csv", 3.0, None, pd.Series([1.0]), pa.array([1.0])], ids=type
)
def test_what_is_no_table(other: Any) -> None:
    assert not is_table(other)


def test_tables_that_cannot_be_read_say_why() -> None:
    with pytest.raises(InputError, match=r"the table has a column of mixed types.*column a"):
        to_arrow(pd.DataFrame({"a": [1, "x"]}, dtype=object))
    with pytest.raises(InputError, match="unique column names"):
        to_arrow(pd.DataFrame(np.ones((1, 2)), columns=["a", "a"]))
    with pytest.raises(InputError, match=r"polars LazyFrame, cannot be read: .*nowhere"):
        to_arrow(pl.DataFrame({"a": [1]}).lazy().select("nowhere"))
    with pytest.raises(InputError, match="duckdb"):
        to_arrow(duckdb.sql("select error('nowhere') as a"))
