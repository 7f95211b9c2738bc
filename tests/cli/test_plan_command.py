"""`sparsegp plan`, once as a real process."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

MACHINE = {
    "cores": 2,
    "memory_bytes": 24e9,
    "flops_per_second": 1e11,
    "exps_per_second": 1e9,
    "memory_bytes_per_second": 2e10,
    "disk_bytes_per_second": 1e9,
}


@pytest.fixture
def folder(tmp_path):
    a, y = np.random.default_rng(0).standard_normal((2, 300))
    pq.write_table(pa.table({"a": a, "b": a**2, "y": y}), tmp_path / "rows.parquet")
    (tmp_path / "machine.json").write_text(json.dumps(MACHINE))
    return tmp_path


def test_json_says_what_the_table_says(folder):
    options = ("rows.parquet", "--target", "y", "-a", "pic", "--n-inducing", "50", "--machine", "machine.json")
    command = [sys.executable, "-m", "sparsegp.cli", "plan", *options, "--machines", "1,3", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["n_rows"], found["n_features"], found["n_inducing"], found["n_blocks"]) == (300, 2, 50, 6)
    assert [e["machines"] for e in found["estimates"]] == [1, 3]
    assert found["machine"]["flops_per_second"] == 1e11


def test_a_table_for_people_with_the_constants_of_this_machine(folder, program):
    code, out, err = program(folder, "plan", "rows.parquet", "--target", "y")
    assert code == 0, err
    assert out.startswith("exact on 300 rows x 2 columns (predicted)")
    assert "memory of a machine" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("rows.parquet", "--target", "z"), "is not a column"),
        (("rows.parquet", "--target", "y", "--machines", "two"), "whole numbers with commas"),
        (("rows.parquet", "--target", "y", "--machine", "rows.parquet"), "cannot be read as JSON"),
    ],
)
def test_errors_are_messages(folder, program, options, message):
    code, out, err = program(folder, "plan", *options)
    assert code == 1
    assert out == ""
    assert message in err
    assert "Traceback" not in err
