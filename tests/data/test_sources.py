"""Sources: the same rows from anywhere, one scan of them, and errors that name the place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from source_problems import N_ROWS, NAMES, OPENERS, ROLES, batches_of, columns, frame, matrix, open_arrays, write_folder
from sparsegp.data import Batch, Moments, Source, open_source, scan
from sparsegp.data.batches import prefetched
from sparsegp.errors import InputError
from sparsegp.fit.scaling import Scaling


def exact_moments(X: np.ndarray, weight: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column by their definition, in extended precision."""
    wide = X.astype(np.longdouble)
    mean = np.average(wide, axis=0, weights=weight)
    return mean.astype(float), np.sqrt(np.average((wide - mean) ** 2, axis=0, weights=weight)).astype(float)


@pytest.mark.parametrize("kind", OPENERS)
def test_every_source_gives_the_same_rows_every_time(kind: str, tmp_path: Path) -> None:
    source, table = OPENERS[kind](tmp_path), columns()
    for _ in range(2):
        batches = list(source)
        for name, expected in (("X", matrix(table)), ("y", table["y"]), ("noise_var", table["noise"])):
            np.testing.assert_array_equal(np.concatenate([getattr(batch, name) for batch in batches]), expected)
        np.testing.assert_array_equal(np.concatenate([batch.weight for batch in batches]), table["weight"])
    assert source.n_features == 3
    assert source.n_rows in (None, N_ROWS)
    assert source.feature_names in (None, tuple(NAMES), ("x0", "x1", "x2"))


@pytest.mark.parametrize("kind", OPENERS)
def test_the_scan_is_the_same_from_every_source(kind: str, tmp_path: Path) -> None:
    table = columns()
    found = scan(OPENERS[kind](tmp_path), np.random.default_rng(3), sample_rows=40)
    every = np.column_stack([matrix(table), table["y"]])
    mean, std = exact_moments(every, table["weight"])
    np.testing.assert_allclose([*found.x_mean, found.y_mean], mean, rtol=1e-13)
    np.testing.assert_allclose([*found.x_scale, found.y_scale], std, rtol=1e-13)
    in_memory = Scaling.from_data(matrix(table), table["y"], table["weight"])
    np.testing.assert_allclose([*in_memory.x_mean, in_memory.y_mean], mean, rtol=1e-13)
    np.testing.assert_allclose([*in_memory.x_scale, in_memory.y_scale], std, rtol=1e-13)
    used = table["weight"] > 0
    assert (found.n_rows, found.n_weightless) == (used.sum(), (~used).sum())
    assert found.total_weight == table["weight"].sum()
    np.testing.assert_allclose(found.mean_noise_var, table["noise"][used].mean(), rtol=1e-12)
    assert found.least_noise_var == table["noise"][used].min()
    reference = scan(open_arrays(tmp_path), np.random.default_rng(3), sample_rows=40)
    np.testing.assert_array_equal(found.sample.X, reference.sample.X)
    assert not found.is_complete


def test_a_table_with_a_target_apart_and_a_memory_map(tmp_path: Path) -> None:
    table = columns()
    apart = open_source(frame()[NAMES], table["y"])
    assert apart.feature_names == tuple(NAMES)
    np.testing.assert_array_equal(np.concatenate([batch.X for batch in apart]), matrix(table))
    mapped = np.memmap(tmp_path / "X.f32", dtype=np.float32, mode="w+", shape=(N_ROWS, 3))
    mapped[:] = matrix(table)
    source = open_source(mapped, table["y"], batch_rows=64)
    assert [len(batch) for batch in source] == [64, 64, 29]
    assert all(batch.X.dtype == np.float64 and not isinstance(batch.X, np.memmap) for batch in source)


def test_a_small_source_is_sampled_whole_and_in_order() -> None:
    table = columns()
    found = scan(open_source(matrix(table), table["y"], batch_rows=10), np.random.default_rng(0))
    assert found.is_complete
    np.testing.assert_array_equal(found.sample.X, matrix(table))


def test_the_sample_is_uniform() -> None:
    """Each of 60 rows is among the 12 sampled in a fifth of the scans, whatever its place."""
    X, counts = np.arange(60.0)[:, None], np.zeros(60)
    for seed in range(600):
        sample = scan(open_source(X, X[:, 0], batch_rows=17), np.random.default_rng(seed), sample_rows=12).sample
        assert len(set(sample.y)) == 12
        counts[sample.y.astype(int)] += 1
    # Standard deviation of a count: sqrt(600 * 0.2 * 0.8) = 9.8.
    assert np.abs(counts - 120).max() < 45
    assert abs(counts[:12].mean() - 120) < 12


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(1, 12), min_size=1, max_size=8),
    st.sampled_from([0.0, 1e8, -1e200]),
    st.sampled_from([1e-150, 1.0, 1e150]),
    st.booleans(),
)
def test_moments_of_parts_are_those_of_the_whole(
    seed: int, sizes: list[int], mean: float, spread: float, weighted: bool
) -> None:
    rng = np.random.default_rng(seed)
    X = mean + spread * rng.normal(size=(sum(sizes), 2)) * [1.0, 3.0] + spread * rng.normal()
    weight = rng.uniform(0.1, 3.0, len(X)) if weighted else None
    cuts = np.cumsum(sizes)[:-1]
    parts = list(zip(np.split(X, cuts), [None] * len(sizes) if weight is None else np.split(weight, cuts), strict=True))
    found = Moments.of(*parts[0])
    for part in parts[1:]:
        found = found.including(*part)
    whole = Moments.of(X, weight)
    mean, std = exact_moments(X, weight)
    for moments in (found, whole):
        np.testing.assert_allclose(moments.mean, mean, rtol=1e-12, atol=1e-12 * spread)
    # A spread below the rounding of the mean is that rounding.
    distinct = found.std > 1e-6 * np.abs(found.mean)
    np.testing.assert_allclose(found.scale[distinct], std[distinct], rtol=1e-9)
    np.testing.assert_allclose(whole.scale[distinct], std[distinct], rtol=1e-9)
    assert (found.scale[found.std <= 1e-12 * np.abs(found.mean)] == 1.0).all()


def test_a_constant_column_keeps_scale_one() -> None:
    X = np.column_stack([np.full(50, 0.1), np.arange(50.0)])
    found = scan(open_source(X, X[:, 0], batch_rows=7), np.random.default_rng(0))
    assert found.x_scale[0] == found.y_scale == 1.0
    assert found.x_scale[1] == pytest.approx(X[:, 1].std())


def test_reading_ahead_keeps_order_and_raises_in_place() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise InputError("the sixth")

    started = prefetched(items())
    assert [next(started) for _ in range(5)] == list(range(5))
    with pytest.raises(InputError, match="the sixth"):
        next(started)
    assert list(prefetched(iter(range(20)))) == list(range(20))
    started = prefetched(iter(range(10**9)))
    assert next(started) == 0
    started.close()


def pass_over(source: Source) -> None:
    scan(source, np.random.default_rng(0))


def test_nan_in_a_row_group_is_named(tmp_path: Path) -> None:
    clean, broken = frame(), frame()
    broken.loc[133, "age"] = np.nan
    folder = write_folder(tmp_path / "parts", clean, broken, row_group_size=4)
    with pytest.raises(InputError) as caught:
        pass_over(open_source(folder, target="y", batch_rows=3))
    message = str(caught.value)
    for part in ("part-1.parquet", "row group 33", "row 1 of the group", "row 133 of the file", "'age'", "NaN"):
        assert part in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.inf}, r"row 0: the target is inf"),
        ({"noise": 0.0}, r"the noise variance is 0; expected finite and > 0"),
        ({"weight": -1.0}, r"the weight is -1; expected 0, or between"),
        ({"weight": 0.0}, r"Every sample_weight is zero"),
        ({"age": None}, r"column 'age' is NaN or missing"),
    ],
)
def test_bad_values_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pass_over(open_source(frame(**changes), **ROLES))


def test_bad_rows_of_other_sources_are_named(tmp_path: Path) -> None:
    table = columns()
    X = matrix(table)
    X[97, 1] = np.nan
    with pytest.raises(InputError, match="the arrays, row 97: column 1 is NaN"):
        pass_over(open_source(X, table["y"], batch_rows=10))
    with pytest.raises(InputError, match="batch 1, row 47"):
        pass_over(open_source([(X[:50], table["y"][:50]), (X[50:], table["y"][50:])]))
    broken = frame()
    broken.loc[97, "depth"] = np.nan
    with pytest.raises(InputError, match=r"partition 1, row \d+: column 'depth'"):
        pass_over(open_source(dd.from_pandas(broken, npartitions=2), target="y"))
    broken.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(InputError, match=r"rows.csv', row 97: column 'depth'"):
        pass_over(open_source(tmp_path / "rows.csv", target="y", batch_rows=20))


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    write_folder(tmp_path, frame())
    with pytest.raises(InputError, match=r"no file .*parts-0.parquet'. Did you mean 'part-0.parquet'"):
        open_source(tmp_path / "parts-0.parquet", target="y")
    whole = (tmp_path / "part-0.parquet").read_bytes()
    (tmp_path / "part-1.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"part-1.parquet' cannot be read as Parquet"):
        open_source(tmp_path, target="y")
    (tmp_path / "part-1.parquet").unlink()
    damaged = bytearray(whole)
    damaged[4:2000] = bytes(1996)
    (tmp_path / "part-0.parquet").write_bytes(damaged)
    with pytest.raises(InputError, match=r"part-0.parquet', row group 0 cannot be read"):
        pass_over(open_source(tmp_path, target="y"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="found none"):
        open_source(tmp_path / "empty", target="y")
    (tmp_path / "more.csv").write_text("a,y\n1,2\n")
    with pytest.raises(InputError, match=r"more.csv.*part-0.parquet.*would count twice"):
        open_source(tmp_path, target="y")


def test_csv_that_is_not_numbers(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b,y\n" + "1,2,3\n" * 300_000 + "1,abc,3\n")
    with pytest.raises(InputError, match=r"rows.csv', column 'b' cannot be read.*abc"):
        pass_over(open_source(path, target="y"))
    path.write_text("")
    with pytest.raises(InputError, match=r"rows.csv' cannot be read: Empty"):
        open_source(path, target="y")
    path.write_text("a,y\n1,2\n3\n")
    with pytest.raises(InputError, match=r"rows.csv' cannot be read as CSV.*Expected 2 columns"):
        pass_over(open_source(path, target="y"))


def test_numbers_that_get_decimals_later_in_a_csv(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,y\n" + "1,2\n" * 400_000 + "1.5,2\n")
    *_, last = open_source(path, target="y")
    assert last.X[-1, 0] == 1.5
    assert last.place.start + len(last) == 400_001


@pytest.mark.parametrize("kind", ["frame", "parquet", "csv", "dask"])
def test_text_columns_and_unknown_names(kind: str, tmp_path: Path) -> None:
    table = frame(station="north")
    table.to_parquet(tmp_path / "rows.parquet")
    table.to_csv(tmp_path / "rows.csv", index=False)
    data = {
        "frame": table,
        "parquet": tmp_path / "rows.parquet",
        "csv": tmp_path / "rows.csv",
        "dask": dd.from_pandas(table, npartitions=2),
    }[kind]
    assert "station" in (open_source(data, target="y").feature_names or ())
    with pytest.raises(InputError, match=r"target='station' of .* has type .*string; expected numbers.*thousands"):
        open_source(data, target="station")
    with pytest.raises(
        InputError, match=r"target='wheight' is not a column of .* Did you mean 'weight'.* It has 'depth'"
    ):
        open_source(data, target="wheight")
    with pytest.raises(InputError, match=r"feature 'dept' is not a column of .* Did you mean 'depth'"):
        open_source(data, target="y", features=["dept"])
    with pytest.raises(InputError, match="'y' is named twice"):
        open_source(data, target="y", features=["y", "depth"])
    assert open_source(data, target="y", features=["depth", "age"]).feature_names == ("depth", "age")


def test_differing_schemas_between_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "missing", frame(), frame().drop(columns="age"))
    with pytest.raises(InputError, match=r"column 'age', which file .*part-0.* has, is not a column of file .*part-1"):
        open_source(folder, target="y")
    folder = write_folder(tmp_path / "more", frame(), frame(extra=1.0))
    with pytest.raises(InputError, match=r"part-1.* has columns that file .*part-0.* has not: 'extra'"):
        open_source(folder, target="y")
    assert open_source(folder, target="y", features=NAMES).n_rows == 2 * N_ROWS
    folder = write_folder(tmp_path / "text", frame(), frame(age="old"))
    with pytest.raises(InputError, match=r"Column 'age' is text in file .*part-1.* and numbers in file .*part-0"):
        open_source(folder, target="y")
    reordered = write_folder(tmp_path / "order", frame(), frame()[list(columns())[::-1]].astype({"flag": float}))
    X = np.concatenate([batch.X for batch in open_source(reordered, target="y", features=NAMES)])
    np.testing.assert_array_equal(X, np.tile(matrix(columns()), (2, 1)))
    for k, header in enumerate(("a,b,y", "a,y")):
        (tmp_path / f"{k}.csv").write_text(header + "\n" + "1," * header.count(",") + "2\n")
    with pytest.raises(InputError, match=r"column 'b', which file .*0.csv' has, is not a column of file .*1.csv'"):
        open_source([tmp_path / "0.csv", tmp_path / "1.csv"], target="y")
    with pytest.raises(InputError, match=r"0.csv' has columns that file .*1.csv' has not: 'b'"):
        open_source([tmp_path / "1.csv", tmp_path / "0.csv"], target="y")


def test_data_without_rows(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "parts", frame().iloc[:0], frame().iloc[:0])
    for source in (open_source(folder, target="y"), open_source(np.zeros((0, 2)), np.zeros(0))):
        with pytest.raises(InputError, match="The data have no rows"):
            pass_over(source)


def test_iterables_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"A generator can be read only once.*spool_to"):
        open_source(batches_of(tmp_path))
    with pytest.raises(InputError, match="gave none"):
        open_source([])
    with pytest.raises(InputError, match="batch 0 is a dict"):
        open_source([{"X": 1}])
    with pytest.raises(InputError, match="batch 0 is a table; say with target="):
        open_source([frame()])
    with pytest.raises(InputError, match=r"Every batch must have the columns of the first one, 2; batch 1 has 3"):
        list(open_source([(np.ones((3, 2)), np.ones(3)), (np.ones((3, 3)), np.ones(3))]))
    with pytest.raises(InputError, match="batch 1 has the inputs x0, x1, x2"):
        open_source(
            iter([(np.ones((3, 2)), np.ones(3)), (np.ones((3, 3)), np.ones(3))]), spool_to=tmp_path / "rows.parquet"
        )
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "rows.parquet").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        open_source(batches_of(tmp_path), spool_to=tmp_path / "rows.parquet")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"X": np.ones((3, 2))}, "y is missing"),
        ({"X": np.ones(3), "y": np.ones(3)}, r"must be a matrix .* got shape \(3,\)"),
        ({"X": np.ones((3, 2)), "y": np.ones(4)}, r"y of the arrays must have one value for each of the 3 rows"),
        ({"X": np.array([["a", "b"]]), "y": [1.0]}, r"X of the arrays has type <U1; expected numbers"),
        ({"X": frame(), "y": [1.0], "target": "y"}, "either y or target"),
        ({"X": frame()}, "For a table, say with target="),
        ({"X": frame(), "target": "y", "noise_var": [0.1]}, "noise_var is the name of a column too"),
        ({"X": frame(), "features": ["depth"]}, "got features without target"),
        ({"X": 3.0}, "Data must be arrays.*got float"),
        ({"X": pl.Series([1.0]), "target": "y"}, "Data must be arrays.*got a polars Series"),
        ({"X": pd.DataFrame({"a": [1, "x"], "y": [1.0, 2.0]}, dtype=object), "target": "y"}, "mixed types"),
        ({"X": pa.table([[1], [2], [3]], names=["a", "a", "y"]), "target": "y"}, "more than one column named 'a'"),
        ({"X": frame()[["y"]], "target": "y"}, "no columns for the inputs left besides 'y'"),
    ],
)
def test_calls_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_source(**arguments)


def test_sources_never_import_dask_or_pandas() -> None:
    code = "import sys, sparsegp.data; print(sorted({'dask', 'pandas', 'polars'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_batches_are_joined_with_all_or_none_of_their_noise_and_weights() -> None:
    known, other = (next(iter(open_source(np.ones((3, 1)), np.ones(3), noise_var=noise))) for noise in (0.5, None))
    joined = Batch.concat([known, known.take(slice(0, 0)), known])
    assert len(joined) == 6
    np.testing.assert_array_equal(joined.noise_var, np.full(6, 0.5))
    assert Batch.concat([known, other.take(slice(0, 0))]) is known
    with pytest.raises(InputError, match="give all or none"):
        Batch.concat([known, other])
