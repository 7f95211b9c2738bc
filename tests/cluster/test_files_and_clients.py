"""fit from a file, and the errors of fit(client=...)."""

from __future__ import annotations

import numpy as np
import pyarrow
import pytest
from pyarrow import csv, parquet

from sparsegp import InputError, SparseGPRegressor


def table() -> pyarrow.Table:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 80))
    return pyarrow.table({"a": a, "y": np.sin(a) + 0.1 * b, "b": b})


@pytest.mark.usefixtures("brief_learning")
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_file_gives_the_model_of_its_arrays(kind, tmp_path):
    data, path = table(), tmp_path / f"rows.{kind}"
    (parquet.write_table if kind == "parquet" else csv.write_csv)(data, path)
    X = np.column_stack([data["a"], data["b"]])
    expected = SparseGPRegressor(approximation="vfe", n_inducing=10, random_state=0).fit(X, data["y"].to_numpy())
    model = SparseGPRegressor(approximation="vfe", n_inducing=10, random_state=0).fit(str(path), target="y")
    assert model.feature_names_in_.tolist() == ["a", "b"]
    frame = data.select(["a", "b"]).to_pandas()
    np.testing.assert_allclose(model.predict(frame), expected.predict(X), rtol=1e-6, atol=1e-8)


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no file or folder.*nowhere"):
        SparseGPRegressor(approximation="vfe").fit(tmp_path / "nowhere.parquet", target="y")
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"not parquet")
    with pytest.raises(InputError, match="cannot be read"):
        SparseGPRegressor(approximation="vfe").fit(broken, target="y")


def test_blocks_and_client_exclude_each_other():
    X = np.arange(10.0)[:, None]
    with pytest.raises(InputError, match="workers make the blocks"):
        SparseGPRegressor(approximation="pic").fit(X, X[:, 0], blocks=np.zeros(10, int), client="tcp://nobody:1")
