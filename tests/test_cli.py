"""Every command as a real process, and the parts that need none."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

import sparsegp
from sparsegp import InputError
from sparsegp.cli import tables
from sparsegp.cli.tables import Columns
from sparsegp.estimators import batch_log

SECONDS = 300


def table(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (n, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(n)
    return pa.table({"a": X[:, 0], "b": X[:, 1], "y": y})


def start(folder, *arguments, **options):
    command = [sys.executable, "-m", "sparsegp.cli", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ, **options
    )


def run(folder, *arguments):
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


def run_json(folder, *arguments):
    code, out, err = run(folder, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    pq.write_table(table(200, 0), folder / "train.parquet")
    pq.write_table(table(60, 1), folder / "monday.parquet")
    csv.write_csv(table(50, 2), folder / "tuesday.csv")
    csv.write_csv(table(40, 3), folder / "test.csv")
    return folder


@pytest.fixture(scope="module")
def fitted(folder):
    """A model fitted by a process; what the process said."""
    return run_json(folder, "fit", "train.parquet", "--target", "y", "-o", "model.sgp", "-m", "25")


@pytest.fixture
def model(folder, fitted, tmp_path):
    """A copy of the fitted model."""
    path = tmp_path / "model.sgp"
    path.write_bytes((folder / "model.sgp").read_bytes())
    return path


def test_help_and_version_do_not_load_torch():
    code = (
        "import sys; sys.argv = ['sparsegp', '--help']\n"
        "from sparsegp.cli import main\n"
        "try: main()\n"
        "finally: print('heavy:', [m for m in ('torch', 'sklearn', 'scipy', 'pyarrow', 'rich') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip().endswith("heavy: []")
    for command in ("fit", "predict", "update", "evaluate", "merge", "compare"):
        assert f"  {command} " in ran.stdout
    assert run(Path.cwd(), "--version")[1].strip() == sparsegp.__version__


def test_fit_says_what_it_did_and_the_file_knows_its_rows_and_columns(folder, fitted):
    assert (fitted["rows"], fitted["features"], fitted["approximation"]) == (200, ["a", "b"], "vfe")
    assert fitted["stopped_by"] is None
    assert fitted["learning_steps"] > 3
    loaded = sparsegp.load(folder / "model.sgp")
    rows = table(200, 0)
    X = np.column_stack([rows["a"], rows["b"]])
    assert batch_log.batch_ids(loaded) == (batch_log.content_id([(X, np.asarray(rows["y"]))]),)
    assert loaded.score(X, np.asarray(rows["y"])) > 0.9
    assert loaded.log_evidence_ == pytest.approx(fitted["log_evidence"], rel=1e-9)


def test_predict_writes_what_the_model_says_row_by_row(folder, model):
    report = run_json(folder, "predict", model, "test.csv", "-o", "out.parquet", "--chunk-rows", "7")
    assert report["rows"] == 40
    out, rows = pq.read_table(folder / "out.parquet"), table(40, 3)
    loaded, X = sparsegp.load(model), np.column_stack([rows["a"], rows["b"]])
    mean, std = loaded.predict(X, return_std=True)
    lower, upper = loaded.predict_interval(X, 0.95)
    for name, expected in {"mean": mean, "std": std, "lower": lower, "upper": upper}.items():
        np.testing.assert_allclose(out[name], expected, rtol=1e-9)


def test_evaluate_gives_the_scores(folder, model):
    report = run_json(folder, "evaluate", model, "test.csv")
    rows, loaded = table(40, 3), sparsegp.load(model)
    X, y = np.column_stack([rows["a"], rows["b"]]), np.asarray(rows["y"])
    mean, std = loaded.predict(X, return_std=True)
    expected = sparsegp.metrics.summary(y, mean, std)
    for name in ("rmse", "nlpd", "crps", "coverage_95", "width_95"):
        assert report[name] == pytest.approx(expected[name], rel=1e-8)


def test_update_counts_every_batch_once(folder, model):
    first = run_json(folder, "update", model, "monday.parquet", "train.parquet", "tuesday.csv")
    assert [(batch["added"], batch["rows"]) for batch in first["batches"]] == [(True, 60), (False, 0), (True, 50)]
    once = model.read_bytes()
    again = run_json(folder, "update", model, "tuesday.csv", "monday.parquet")
    assert not any(batch["added"] for batch in again["batches"])
    assert first["rows_in_model"] == again["rows_in_model"] == 310
    assert model.read_bytes() == once
    whole = sparsegp.load(folder / "model.sgp")
    for rows in (table(60, 1), table(50, 2)):
        whole.partial_fit(np.column_stack([rows["a"], rows["b"]]), np.asarray(rows["y"]))
    rows = table(40, 3)
    X = np.column_stack([rows["a"], rows["b"]])
    np.testing.assert_allclose(sparsegp.load(model).predict(X), whole.predict(X), rtol=1e-9, atol=1e-9)


def test_a_batch_that_fails_loses_none_before_it(folder, model):
    (folder / "broken.csv").write_text("a,b,y\n1,2,3\n1,,3\n")
    code, _, err = run(folder, "update", model, "monday.parquet", "broken.csv", "tuesday.csv")
    assert code == 1
    assert "'b'" in err
    assert "row 1" in err
    assert sparsegp.load(model).n_samples_seen_ == 260
    report = run_json(folder, "update", model, "monday.parquet", "tuesday.csv")
    assert [batch["added"] for batch in report["batches"]] == [False, True]


def test_parts_made_apart_are_merged_once(folder, model, tmp_path):
    part, both = tmp_path / "part.sgp", tmp_path / "both.sgp"
    report = run_json(folder, "update", model, "monday.parquet", "--batch-id", "m", "--separate", "-o", part)
    assert report["rows_in_model"] == 60
    assert run_json(folder, "merge", model, part, "-o", both)["rows_in_model"] == 260
    code, out, err = run(folder, "merge", both, part, "-o", tmp_path / "twice.sgp")
    assert (code, out) == (1, "")
    assert "batch 'm'" in err
    assert not (tmp_path / "twice.sgp").exists()
    assert "m" in batch_log.batch_ids(sparsegp.load(both))


def test_compare_scores_all_on_the_same_rows(folder):
    names = "vfe,exact,unheard-of"
    report = run_json(folder, "compare", "train.parquet", "-t", "y", "-a", names, "-m", "20", "--test", "test.csv")
    assert (report["train_rows"], report["test_rows"]) == (200, 40)
    *scored, failed = report["results"]
    assert sorted(result["approximation"] for result in scored) == ["exact", "vfe"]
    assert scored[0]["nlpd"] <= scored[1]["nlpd"]
    assert all(result["seconds"] > 0 and 0 <= result["coverage_95"] <= 1 for result in scored)
    assert all(result["megabytes"] >= 0 and result["rmse"] > 0 and result["crps"] > 0 for result in scored)
    assert "must be one of" in failed["error"]


def test_ctrl_c_saves_the_best_model_so_far(folder, tmp_path):
    pq.write_table(table(20_000, 5), tmp_path / "large.parquet")
    arguments = ("fit", "large.parquet", "-t", "y", "-o", "early.sgp", "-m", "250", "-v", "--json")
    process = start(tmp_path, *arguments)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("[sparsegp]"):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert json.loads(out)["stopped_by"] == "Ctrl-C"
    assert sparsegp.load(tmp_path / "early.sgp").n_samples_seen_ == 20_000


@pytest.mark.slow
def test_a_budget_ends_learning(folder, tmp_path):
    pq.write_table(table(20_000, 5), tmp_path / "large.parquet")
    arguments = ("fit", "large.parquet", "-t", "y", "-o", "early.sgp", "-m", "250", "--time-budget", "0.5")
    assert run_json(tmp_path, *arguments)["stopped_by"] == "time budget"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["heteroscedastic", "committee"])
def test_other_models_are_fitted_and_scored(folder, tmp_path, kind):
    path = tmp_path / "other.sgp"
    arguments = ("train.parquet", "-t", "y", "-o", path, "--model", kind, "-m", "20")
    run_json(folder, "fit", *arguments)
    assert run_json(folder, "evaluate", path, "test.csv")["rmse"] < 0.3
    code, _, err = run(folder, "update", path, "monday.parquet")
    assert code == 1
    assert "fit it again" in err


def test_errors_of_the_caller_have_a_message_and_no_traceback(folder):
    code, out, err = run(folder, "predict", "train.parquet", "test.csv")
    assert (code, out) == (1, "")
    assert err.startswith("Error: ")
    assert "Traceback" not in err
    assert run(folder, "fit", "train.parquet")[0] == 2


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("words.csv", "a,b,y\n1,red,2\n", "cannot be read"),
        ("empty.csv", "", "cannot be read"),
        ("gap.csv", "a,b,y\n1,2,3\n1,,3\n", "'b' .* row 1"),
        ("rows.txt", "a,b,y\n1,2,3\n", "must end in"),
        ("no_rows.csv", "a,b,y\n", "no rows"),
    ],
)
def test_tables_that_cannot_be_used_say_why(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match=expected):
        tables.read(path, Columns(tables.select(path, None, ("y",)), "y"))


def test_columns_that_cannot_be_used_say_why(tmp_path):
    path = tmp_path / "flights.parquet"
    pq.write_table(pa.table({"delay": [1.0, 2.0], "carrier": ["AA", "UA"]}), path)
    with pytest.raises(InputError, match="'delay'"):
        tables.select(path, None, ("dellay",))
    with pytest.raises(InputError, match=r"'carrier' .* string"):
        tables.read(path, Columns(("carrier",), "delay"))
    with pytest.raises(InputError, match="besides"):
        tables.select(path, None, ("delay", "carrier"))
    with pytest.raises(InputError, match="no Parquet files"):
        tables.column_names(tmp_path.parent / tmp_path.name / ".." / tmp_path.name / "..")


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".tsv", ".csv.gz"])
@pytest.mark.parametrize("chunk_rows", [3, 1000])
def test_every_kind_of_table_gives_the_same_rows(tmp_path, suffix, chunk_rows):
    rows, path = table(20, 4), tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        pq.write_table(rows, path)
    else:
        options = csv.WriteOptions(delimiter="\t" if suffix == ".tsv" else ",")
        with pa.CompressedOutputStream(path, "gzip") if suffix == ".csv.gz" else pa.OSFile(str(path), "wb") as out:
            csv.write_csv(rows, out, options)
    chunks = list(tables.chunks_of(path, Columns(("b", "a"), "y"), chunk_rows))
    np.testing.assert_array_equal(np.concatenate([c.X for c in chunks]), np.column_stack([rows["b"], rows["a"]]))
    np.testing.assert_array_equal(np.concatenate([c.y for c in chunks]), rows["y"])


def test_a_folder_is_its_files_in_order(tmp_path):
    for k, name in enumerate(("b.parquet", "a.parquet")):
        pq.write_table(table(5, k), tmp_path / name)
    got = tables.read(tmp_path, Columns(("a", "b"), "y"))
    np.testing.assert_array_equal(got.y, np.concatenate([table(5, 1)["y"], table(5, 0)["y"]]))
