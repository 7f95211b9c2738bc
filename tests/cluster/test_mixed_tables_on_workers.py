"""Columns of any kind on a cluster: workers find the encoding together, and the model is that of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sparsegp import SparseGPRegressor
from sparsegp.errors import InputError

dd = pytest.importorskip("dask.dataframe")
da = pytest.importorskip("dask.array")

FIXED = {
    "kernel": "matern32", "approximation": "vfe", "n_inducing": 20, "optimizer": None, "noise_var": 0.1,
    "random_state": 0, "trend": None,
}  # fmt: skip


def table(n: int = 2800) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    level, city = rng.integers(0, 3, n), rng.integers(0, 140, n)
    size = rng.uniform(0.0, 5.0, n)
    frame = pd.DataFrame(
        {
            "size": np.where(rng.random(n) < 0.1, np.nan, size),
            "colour": np.array(["red", "green", "blue"])[level],
            "city": [f"city {k:03d}" for k in city],
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.uniform(0, 40, n), unit="D"),
        }
    )
    frame["y"] = np.sin(size) + level + np.sin(city) + 0.1 * rng.standard_normal(n)
    frame.loc[3, "y"] = np.nan
    return frame


@pytest.mark.filterwarnings("ignore:The target is missing")
@pytest.mark.parametrize("kind", ["parquet", "csv", "dask", "table"])
def test_workers_find_the_encoding_of_one_process(both: Any, tmp_path: Path, kind: str) -> None:
    frame = table()
    new = frame[:50].drop(columns="y")
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=500)
    for k in range(3):
        frame[k * 1000 : (k + 1) * 1000].to_csv(tmp_path / f"rows-{k}.csv", index=False)
    data = {
        "parquet": tmp_path / "rows.parquet",
        "csv": sorted(tmp_path.glob("*.csv")),
        "dask": dd.from_pandas(frame, npartitions=5),
        "table": frame,
    }[kind]
    expected = SparseGPRegressor(**FIXED).fit(frame, target="y")
    found = SparseGPRegressor(**FIXED).fit(data, target="y", client=both)
    assert found.info_["columns"] == expected.info_["columns"]
    assert found.n_samples_seen_ == 2799
    mine, theirs = (model.fitted_.columns.encoding for model in (found, expected))
    for a, b in zip(mine.codes, theirs.codes, strict=True):
        assert type(a) is type(b)
    np.testing.assert_allclose(mine.codes[2].points, theirs.codes[2].points, rtol=1e-9)
    np.testing.assert_allclose(found.scaling_.x_mean, expected.scaling_.x_mean, rtol=1e-9)
    # inducing inputs are chosen from a sample in another order: the model has the same kernel, not the same digits
    np.testing.assert_allclose(found.kernel_.variance.item(), expected.kernel_.variance.item(), rtol=1e-6)
    same = SparseGPRegressor(**{**FIXED, "inducing": expected.inducing_}).fit(data, target="y", client=both)
    again = SparseGPRegressor(**{**FIXED, "inducing": expected.inducing_, "kernel": expected.kernel_})
    again.fit(data, target="y", client=both)
    np.testing.assert_allclose(again.predict(new), expected.predict(new), atol=1e-7)
    assert same.n_features_in_ == 4


@pytest.mark.filterwarnings("ignore:The target is missing")
def test_updates_on_workers_have_the_encoding_of_the_fit(both: Any) -> None:
    frame, new = table(), table()[:50].drop(columns="y")
    here = SparseGPRegressor(**FIXED).fit(frame[:2000], target="y").partial_fit(frame[2000:], target="y")
    there = SparseGPRegressor(**FIXED).fit(frame[:2000], target="y")
    there.partial_fit(dd.from_pandas(frame[2000:], npartitions=3), target="y", client=both)
    np.testing.assert_allclose(there.predict(new), here.predict(new), atol=1e-8)
    lazy = there.predict(dd.from_pandas(new, npartitions=2))
    np.testing.assert_allclose(lazy.compute(scheduler="sync"), there.predict(new), atol=1e-12)


def test_arrays_with_gaps_on_workers(both: Any) -> None:
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(200, 2))
    y = X[:, 0] + 0.1 * rng.standard_normal(200)
    X[rng.random(200) < 0.2, 1] = np.nan
    expected = SparseGPRegressor(**FIXED).fit(X, y)
    parts = da.from_array(X, chunks=(60, 2)), da.from_array(y, chunks=60)
    found = SparseGPRegressor(**{**FIXED, "kernel": expected.kernel_, "inducing": expected.inducing_})
    found.fit(*parts, client=both)
    np.testing.assert_allclose(found.predict(X[:20]), expected.predict(X[:20]), atol=1e-7)


def test_bad_columns_are_named_by_workers(both: Any) -> None:
    frame = table(60).assign(size="large")
    with pytest.raises(InputError, match="'size' is taken for numbers, but has the value 'large'"):
        SparseGPRegressor(**FIXED, columns={"size": "number"}).fit(
            dd.from_pandas(frame, npartitions=2), target="y", client=both
        )
