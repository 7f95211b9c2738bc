"""Tables as people have them, from the file to the forecast: text, dates, missing values, separators, pipes."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, feather

import sparsegp
from sparsegp import SparseGPRegressor, serving
from sparsegp.cli.fit import kinds_of
from sparsegp.errors import InputError

SAMPLE = Path(__file__).parents[2] / "examples" / "data" / "flights_as_they_come.csv"
BRIEFLY = ("-a", "vfe", "-m", "8", "--kernel", "se")
LATER = "arr_time,air_time"


@pytest.fixture(scope="module")
def flights(tmp_path_factory):
    """A folder with two cuts of the sample and a model of the first, with what the command said of it."""
    folder = tmp_path_factory.mktemp("flights")
    lines = SAMPLE.read_text().splitlines(keepends=True)
    (folder / "train.csv").write_text("".join(lines[:401]))
    (folder / "test.csv").write_text("".join([lines[0], *lines[401:501]]))
    command = [sys.executable, "-m", "sparsegp.cli", "fit", "train.csv", "--target", "arr_delay", "--ignore", LATER]
    command += ["--categorical", "flight", *BRIEFLY, "-o", "model.sgp", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout), done.stderr


def test_fit_takes_the_file_as_it_is_and_says_what_it_found(flights):
    _, found, err = flights
    frame = pd.read_csv(SAMPLE, nrows=400)
    missing = int(frame["arr_delay"].isna().sum())
    assert found["rows"] == 400 - missing
    assert f"The target is missing in {missing} of 400 rows" in err
    kinds = found["columns"]
    assert kinds["year"].startswith("constant")
    assert kinds["arr_time"].startswith("ignored")
    assert kinds["carrier"].startswith("category of")
    assert kinds["flight"].startswith("category of")
    assert kinds["time_hour"].startswith("date")
    assert kinds["dep_delay"].startswith("number")
    assert found["held_out_rows"] == found["rows"]
    assert found["held_out_rmse"] > 0
    assert 0.8 < found["held_out_coverage_95"] <= 1.0


def test_fit_ends_in_the_words_of_the_user(flights, program):
    folder, *_ = flights
    given = ("fit", "train.csv", "-t", "arr_delay", "--features", "dep_delay,carrier", *BRIEFLY, "-o", "few.sgp")
    code, out, err = program(folder, *given, COLUMNS="200")
    assert code == 0, err
    assert "rows left out of the fit, forecasts of arr_delay are off by" in out
    assert "of its variance (R2)" in out
    assert "are within their 95% interval" in out
    assert "carrier: category of" in out
    assert list(sparsegp.load(folder / "few.sgp").feature_names_in_) == ["dep_delay", "carrier"]


def test_predict_keeps_columns_as_they_were_and_answers_every_row(flights, program):
    folder, *_ = flights
    code, _, err = program(
        folder, "predict", "model.sgp", "test.csv", "-o", "out.csv", "--keep", "tailnum,time_hour,day"
    )
    assert code == 0, err
    out, given = (pd.read_csv(folder / name, dtype=str) for name in ("out.csv", "test.csv"))
    assert list(out) == ["tailnum", "time_hour", "day", "mean", "std", "lower", "upper"]
    for name in ("tailnum", "time_hour", "day"):
        assert out[name].fillna("").tolist() == given[name].fillna("").tolist()
    assert given["dep_delay"].isna().any()
    assert out["mean"].notna().all()
    assert "not met" in err
    model, frame = sparsegp.load(folder / "model.sgp"), pd.read_csv(folder / "test.csv")
    with pytest.warns(UserWarning, match="not met"):
        np.testing.assert_allclose(out["mean"].astype(float), model.predict(frame), rtol=1e-6)


@pytest.mark.parametrize("name", ["out.parquet", "out.feather", "out.jsonl", "out.csv"])
def test_every_column_can_be_kept_in_every_format(flights, program, name):
    folder, *_ = flights
    code, _, err = program(
        folder, "predict", "model.sgp", "test.csv", "-o", name, "--keep", "all", "--chunk-rows", "30"
    )
    assert code == 0, err
    read = {
        "out.parquet": pd.read_parquet,
        "out.feather": feather.read_feather,
        "out.jsonl": lambda path: pd.read_json(path, lines=True),
        "out.csv": pd.read_csv,
    }[name]
    out, given = read(folder / name), pd.read_csv(folder / "test.csv")
    assert list(out) == [*given, "mean", "std", "lower", "upper"]
    assert out["origin"].tolist() == given["origin"].tolist()
    assert (out["lower"] < out["mean"]).all()


def test_the_order_of_columns_does_not_matter_and_others_are_ignored_with_a_word(flights, program):
    folder, *_ = flights
    given = pd.read_csv(folder / "test.csv", dtype=str)
    given[list(given)[::-1]].assign(weather="fine").to_csv(folder / "turned.csv", index=False)
    outputs = []
    for name in ("test", "turned"):
        code, out, err = program(folder, "predict", "model.sgp", f"{name}.csv")
        assert code == 0, err
        outputs.append(out)
        assert ("Columns that the model does not use: weather." in err) is (name == "turned")
    assert outputs[0] == outputs[1]


def test_a_table_comes_from_a_pipe_and_goes_into_one(flights):
    folder, *_ = flights
    command = [sys.executable, "-m", "sparsegp.cli", "predict", "model.sgp", "-", "-o", "-", "--keep", "origin"]
    packed = gzip.compress((folder / "test.csv").read_bytes())
    done = subprocess.run(command, cwd=folder, input=packed, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr.decode()
    out = pd.read_csv(io.BytesIO(done.stdout))
    assert list(out) == ["origin", "mean", "std", "lower", "upper"]
    assert len(out) == 100


def test_other_commands_take_the_table_too(flights, program):
    folder, *_ = flights
    (folder / "copy.sgp").write_bytes((folder / "model.sgp").read_bytes())
    code, out, err = program(folder, "evaluate", "copy.sgp", "test.csv", "--json")
    assert code == 0, err
    frame = pd.read_csv(folder / "test.csv")
    assert json.loads(out)["rows"] == frame["arr_delay"].notna().sum()
    for added in (True, False):
        code, out, err = program(folder, "update", "copy.sgp", "test.csv", "--json")
        assert code == 0, err
        assert json.loads(out)["batches"][0]["added"] is added
    assert json.loads(program(folder, "update", "copy.sgp", "train.csv", "--json")[1])["batches"][0]["added"] is False
    code, out, err = program(
        folder,
        "compare",
        "train.csv",
        "-t",
        "arr_delay",
        "--ignore",
        LATER,
        "-a",
        "vfe",
        "-m",
        "8",
        "--kernel",
        "se",
        "--json",
    )
    assert code == 0, err
    assert json.loads(out)["results"][0]["rmse"] > 0


def test_plan_says_what_columns_are(flights, program):
    folder, *_ = flights
    code, out, err = program(folder, "plan", "train.csv", "-t", "arr_delay", "--ignore", LATER, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["columns"]["carrier"].startswith("category of")
    assert found["columns"]["air_time"].startswith("ignored")
    assert found["n_features"] > 18
    assert found["n_rows"] == pytest.approx(400, abs=2)
    assert "carrier: category of" in program(folder, "plan", "train.csv", "-t", "arr_delay")[1]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A model of two columns of numbers, none of which was missing."""
    folder = tmp_path_factory.mktemp("numbers")
    rng = np.random.default_rng(0)
    table = pa.table({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    y = np.asarray(table["a"]) + 0.1 * rng.normal(size=60)
    gp = SparseGPRegressor(kernel="se", approximation="vfe", n_inducing=8, optimizer=None, random_state=0)
    gp.fit(np.column_stack([table["a"], table["b"]]), y)
    gp.name_columns(("a", "b"), "y")
    gp.save(folder / "model.sgp")
    csv.write_csv(table.append_column("y", pa.array(y)), folder / "rows.csv")
    return folder


GAPS = "id,a,b\nr1,1,2\nr2,,2\nr3,0.5,NA\nr4,2,1\n"


def test_a_model_of_numbers_forecasts_rows_with_missing_values_more_widely(numbers, program):
    (numbers / "gaps.csv").write_text(GAPS)
    code, out, err = program(numbers, "predict", "model.sgp", "gaps.csv", "--keep", "id")
    assert code == 0, err
    found = pd.read_csv(io.StringIO(out))
    assert found["id"].tolist() == ["r1", "r2", "r3", "r4"]
    assert found["std"][1] > 2.0 * found["std"][0]
    assert "'a' in 1 of 4 rows, 'b' in 1 of 4 rows. The forecasts of these rows are wider" in err
    expected = serving.load(numbers / "model.sgp").forecast(pd.read_csv(io.StringIO(GAPS))[["a", "b"]])
    np.testing.assert_allclose(found["mean"], expected.mean)
    np.testing.assert_allclose(found["upper"], expected.interval(0.95)[1])
    code, out, _ = program(numbers, "predict", "model.sgp", "gaps.csv", "-o", "out.parquet", "--json")
    assert json.loads(out)["rows_without_forecast"] == 0


def test_rows_with_missing_values_are_scored(numbers, program):
    (numbers / "scored.csv").write_text("a,b,y\n1,2,1\n,2,0.3\n0.5,NA,0.5\n2,1,\n")
    code, out, err = program(numbers, "evaluate", "model.sgp", "scored.csv", "--json")
    assert code == 0, err
    assert "'a' in 1 of 3 rows, 'b' in 1 of 3 rows" in err
    found = json.loads(out)
    expected = serving.load(numbers / "model.sgp").forecast([[1.0, 2.0], [np.nan, 2.0], [0.5, np.nan]])
    assert found["rows"] == 3
    assert found["nlpd"] == pytest.approx(-expected.log_density([1.0, 0.3, 0.5]).mean())
    (numbers / "scored.csv").write_text("a,b,y\n1,2,1\ninf,2,0.3\n")
    assert "'a' is inf" in program(numbers, "evaluate", "model.sgp", "scored.csv")[2]


def test_a_model_that_does_not_know_its_columns_leaves_such_rows_empty(numbers, program):
    """Files that were written before models knew what a missing number may be."""
    (numbers / "gaps.csv").write_text(GAPS)
    gp = sparsegp.load(numbers / "model.sgp")
    gp.fitted_ = replace(gp.fitted_, columns=replace(gp.fitted_.columns, completion=None))
    gp.save(numbers / "old.sgp")
    code, out, err = program(numbers, "predict", "old.sgp", "gaps.csv", "--keep", "id")
    assert code == 0, err
    assert pd.read_csv(io.StringIO(out))["mean"].isna().tolist() == [False, True, True, False]
    assert "2 of 4 rows have missing values" in err
    code, out, _ = program(numbers, "predict", "old.sgp", "gaps.csv", "-o", "out.parquet", "--json")
    assert json.loads(out)["rows_without_forecast"] == 2
    assert pq.read_table(numbers / "out.parquet")["mean"].null_count == 2


def test_how_a_file_is_written_can_be_said(numbers, program):
    (numbers / "european.txt").write_text("a b\n1,5 2,5\n")
    code, out, err = program(numbers, "predict", "model.sgp", "european.txt", "--sep", "space", "--decimal", ",")
    assert code == 0, err
    (numbers / "plain.csv").write_text("a,b\n1.5,2.5\n")
    assert program(numbers, "predict", "model.sgp", "plain.csv")[1] == out


def test_several_files_and_globs_are_one_table(numbers, program):
    for k in range(3):
        (numbers / f"part{k}.csv").write_text(f"a,b\n{k},1\n")
    together = program(numbers, "predict", "model.sgp", "part0.csv", "part1.csv", "part2.csv")[1]
    assert together.count("\n") == 4
    assert program(numbers, "predict", "model.sgp", "part*.csv")[1] == together


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("predict", "model.sgp", "rows.csv", "--keep", "aa"), "Did you mean 'a'"),
        (("predict", "model.sgp", "-", "rows.csv"), "cannot be given together with files"),
        (("predict", "model.sgp", "rows.csv", "-o", "out.xlsx"), "must end in .csv"),
        (("predict", "model.sgp", "model.sgp"), "is a model file"),
        (("predict", "model.sgp", "rows.csv", "--sep", "ab"), "one character"),
        (("predict", "model.sgp", "taken.csv", "--keep", "mean"), "a name of the forecasts"),
        (("fit", "rows.csv", "-t", "y", "-o", "m.sgp", "--categorical", "a", "--ignore", "a"), "Name it once"),
        (("fit", "rows.csv", "-t", "y", "-o", "m.sgp", "--ignore", "c"), "'c', which is no column of X"),
        (("fit", "rows.csv", "-t", "y", "-o", "m.sgp", "--ignore", "aa"), "Did you mean 'a'"),
        (("predict", "rows.csv", "model.sgp"), "the model comes first"),
        (("fit", "bare.csv", "-t", "y", "-o", "m.sgp"), "--no-header"),
        (("fit", "mixed.csv", "-t", "y", "-o", "m.sgp"), "is the line with the names missing"),
        (("evaluate", "model.sgp", "rows.cvs"), "Did you mean 'rows.csv'?"),
        (("evaluate", "model.sgp", "other.csv"), "'other.csv'. Check the path."),
    ],
)
def test_mistakes_are_explained(numbers, program, arguments, said):
    (numbers / "taken.csv").write_text("a,b,mean\n1,2,3\n")
    (numbers / "bare.csv").write_text("1,2,3\n4,5,6\n")
    (numbers / "mixed.csv").write_text("1,north,3\n4,south,6\n")
    code, out, err = program(numbers, *arguments)
    assert (code, out) == (1, "")
    assert said in err
    assert "Traceback" not in err


def test_a_column_is_said_to_be_one_thing():
    assert kinds_of("a, b", "c", None) == {"a": "category", "b": "category", "c": "ignore"}
    assert kinds_of(None, None, None) is None
    with pytest.raises(InputError, match="'a' of --dates"):
        kinds_of("a", None, "a")
