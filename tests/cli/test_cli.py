"""The commands: what they write and say, run in this process; tests/cli/test_cli_processes.py has the real ones."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from typer.testing import CliRunner

import sparsegp
from sparsegp import InputError, files
from sparsegp.calibration.transform import TRANSFORMS
from sparsegp.cli import app, options, table_columns
from sparsegp.core import approximations
from sparsegp.errors import SparseGPError
from sparsegp.files import schema
from sparsegp.kernels import get as kernel_class
from sparsegp.learn.schedules import OPTIMIZERS

pytestmark = pytest.mark.filterwarnings("ignore:X does not have valid feature names")


def table(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (n, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(n)
    return pa.table({"a": X[:, 0], "b": X[:, 1], "y": y})


def columns(rows):
    return np.column_stack([rows["a"], rows["b"]]), np.asarray(rows["y"])


def run(*arguments):
    """What a command prints; its errors are raised."""
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def run_json(*arguments):
    return json.loads(run(*arguments, "--json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    pq.write_table(table(200, 0), folder / "train.parquet")
    pq.write_table(table(60, 1), folder / "monday.parquet")
    csv.write_csv(table(50, 2), folder / "tuesday.csv")
    csv.write_csv(table(40, 3), folder / "test.csv")
    return folder


@pytest.fixture(autouse=True)
def inside(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def fitted(folder):
    """What fit said."""
    return run_json("fit", folder / "train.parquet", "--target", "y", "-o", folder / "model.sgp", "-m", "25")


@pytest.fixture
def model(folder, fitted, tmp_path):
    """A copy of the fitted model."""
    path = tmp_path / "model.sgp"
    path.write_bytes((folder / "model.sgp").read_bytes())
    return path


def test_fit_says_what_it_did_and_the_file_knows_its_rows_and_columns(folder, fitted):
    assert (fitted["rows"], fitted["features"], fitted["approximation"]) == (200, ["a", "b"], "exact")
    assert fitted["chosen_because"]
    assert fitted["stopped_by"] is None
    assert fitted["learning_steps"] > 3
    loaded = sparsegp.load(folder / "model.sgp")
    X, y = columns(table(200, 0))
    assert files.batch_ids(loaded) == (files.content_id([(X, y)]),)
    assert list(loaded.feature_names_in_) == ["a", "b"]
    assert loaded.score(table(200, 0).to_pandas()[["a", "b"]], y) > 0.9
    assert loaded.log_evidence_ == pytest.approx(fitted["log_evidence"], rel=1e-9)


def test_predict_writes_what_the_model_says_row_by_row(folder, model):
    report = run_json("predict", model, "test.csv", "-o", "out.parquet", "--chunk-rows", "7")
    assert report["rows"] == 40
    out, (X, _) = pq.read_table(folder / "out.parquet"), columns(table(40, 3))
    loaded = sparsegp.load(model)
    mean, std = loaded.predict(X, return_std=True)
    lower, upper = loaded.predict_interval(X, 0.95)
    for name, expected in {"mean": mean, "std": std, "lower": lower, "upper": upper}.items():
        np.testing.assert_allclose(out[name], expected, rtol=1e-9)


def test_evaluate_gives_the_scores(folder, model):
    report = run_json("evaluate", model, "test.csv")
    loaded, (X, y) = sparsegp.load(model), columns(table(40, 3))
    forecast = loaded.forecast(X)
    low, high = forecast.interval(0.95)
    assert report["rmse"] == pytest.approx(sparsegp.metrics.rmse(y, forecast.mean), rel=1e-8)
    assert report["nlpd"] == pytest.approx(-forecast.log_density(y).mean(), rel=1e-8)
    assert report["crps"] == pytest.approx(forecast.crps(y).mean(), rel=1e-8)
    assert report["coverage_95"] == pytest.approx(((low <= y) & (y <= high)).mean())
    assert report["width_95"] == pytest.approx((high - low).mean(), rel=1e-8)


@pytest.mark.parametrize("table", ["train.parquet", "test.csv"])
def test_rows_that_the_model_has_learned_from_are_pointed_out(folder, model, program, tmp_path, table):
    are_seen = table == "train.parquet"
    code, out, err = program(folder, "evaluate", model, table)
    assert (code, "has learned from these rows" in err) == (0, are_seen)
    page = tmp_path / "page.html"
    code, out, err = program(folder, "report", model, table, "-o", page, "--json")
    assert code == 0
    assert ("The model has learned from these rows" in json.loads(out)["warnings"]) == are_seen
    assert ("The model has learned from these rows" in page.read_text()) == are_seen


def test_update_counts_every_batch_once(folder, model):
    first = run_json("update", model, "monday.parquet", "train.parquet", "tuesday.csv")
    assert [(batch["added"], batch["rows"]) for batch in first["batches"]] == [(True, 60), (False, 0), (True, 50)]
    once = model.read_bytes()
    again = run_json("update", model, "tuesday.csv", "monday.parquet")
    assert not any(batch["added"] for batch in again["batches"])
    assert first["rows_in_model"] == again["rows_in_model"] == 310
    assert model.read_bytes() == once
    whole = sparsegp.load(folder / "model.sgp")
    for rows in (table(60, 1), table(50, 2)):
        whole.partial_fit(*columns(rows))
    X, _ = columns(table(40, 3))
    np.testing.assert_allclose(sparsegp.load(model).predict(X), whole.predict(X), rtol=1e-9, atol=1e-9)


def test_a_batch_that_fails_loses_none_before_it(folder, model):
    (folder / "broken.csv").write_text("a,b,y\n1,2,3\n1,,3\n")
    with pytest.raises(InputError, match="row 1: column 'b'"):
        run("update", model, "monday.parquet", "broken.csv", "tuesday.csv")
    assert sparsegp.load(model).n_samples_seen_ == 260
    report = run_json("update", model, "monday.parquet", "tuesday.csv")
    assert [batch["added"] for batch in report["batches"]] == [False, True]


def test_parts_made_apart_are_merged_once(folder, model, tmp_path):
    part, both = tmp_path / "part.sgp", tmp_path / "both.sgp"
    report = run_json("update", model, "monday.parquet", "--batch-id", "m", "--separate", "-o", part)
    assert report["rows_in_model"] == 60
    assert run_json("merge", model, part, "-o", both)["rows_in_model"] == 260
    with pytest.raises(InputError, match="batch 'm'"):
        run("merge", both, part, "-o", tmp_path / "twice.sgp")
    assert not (tmp_path / "twice.sgp").exists()
    assert "m" in files.batch_ids(sparsegp.load(both))


def test_models_that_do_not_go_together_say_so_before_their_batches(folder, model, tmp_path):
    """Both hold the rows of train.parquet, but another approximation is the deeper reason."""
    run("fit", "train.parquet", "--target", "y", "-a", "fitc", "-m", "20", "-o", tmp_path / "fitc.sgp")
    with pytest.raises(SparseGPError, match="approximation"):
        run("merge", model, tmp_path / "fitc.sgp", "-o", tmp_path / "both.sgp")


def test_compare_scores_all_on_the_same_rows(folder):
    given = ("-a", "vfe,exact,nystrom", "-m", "20", "--test", "test.csv", "--time-budget", "20")
    report = run_json("compare", "train.parquet", "-t", "y", *given)
    assert (report["train_rows"], report["test_rows"]) == (200, 40)
    *scored, failed = report["results"]
    assert sorted(result["approximation"] for result in scored) == ["exact", "vfe"]
    assert scored[0]["nlpd"] <= scored[1]["nlpd"]
    assert all(result["seconds"] > 0 and 0 <= result["coverage_95"] <= 1 for result in scored)
    assert all(result["megabytes"] >= 0 and result["rmse"] > 0 and result["crps"] > 0 for result in scored)
    assert "cannot be fitted within a time budget" in failed["error"]


def test_a_budget_is_that_of_the_estimator(tmp_path):
    """So short that only the first model can be made: the estimator warns. Its file does not come again, others do."""
    pq.write_table(table(6000, 5), tmp_path / "large.parquet")
    arguments = ("fit", tmp_path / "large.parquet", "-t", "y", "-o", tmp_path / "early.sgp", "-m", "20")
    with pytest.warns(UserWarning, match="time_budget"):
        report = run_json(*arguments, "--time-budget", "1e-6")
    assert report["stopped_by"] == "time budget"
    early = sparsegp.load(tmp_path / "early.sgp")
    assert early.info_["budget"]["asked"] == 1e-6
    assert 0.0 < report["fraction_used"] < 1.0
    assert len(files.batch_ids(early)) == 1
    pq.write_table(table(30, 6), tmp_path / "new.parquet")
    again, new = run_json("update", tmp_path / "early.sgp", tmp_path / "large.parquet", tmp_path / "new.parquet")[
        "batches"
    ]
    assert (again["added"], new["added"], new["rows"]) == (False, True, 30)


def test_a_committee_keeps_its_budget_and_has_all_rows(tmp_path):
    arguments = ("fit", "train.parquet", "-t", "y", "-o", tmp_path / "early.sgp", "-m", "10", "--model", "committee")
    with pytest.warns(UserWarning, match="time_budget"):
        report = run_json(*arguments, "--time-budget", "1e-6")
    assert (report["stopped_by"], report["fraction_used"]) == ("time budget", 1.0)
    assert sparsegp.load(tmp_path / "early.sgp").info_["budget"]["asked"] == 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["heteroscedastic", "committee"])
def test_other_models_are_fitted_and_scored(folder, tmp_path, kind):
    path = tmp_path / "other.sgp"
    arguments = ("train.parquet", "-t", "y", "-o", path, "--model", kind, "-m", "20")
    run_json("fit", *arguments)
    assert run_json("evaluate", path, "test.csv")["rmse"] < 0.3


def test_a_committee_takes_each_batch_once(folder, tmp_path):
    path = tmp_path / "committee.sgp"
    with pytest.warns(UserWarning, match="time_budget"):
        run_json(
            "fit", "train.parquet", "-t", "y", "-o", path, "--model", "committee", "-m", "10", "--time-budget", "1e-6"
        )
    before = run_json("evaluate", path, "test.csv")["rmse"]
    first, second = (run_json("update", path, "monday.parquet") for _ in range(2))
    assert (first["batches"][0]["added"], second["batches"][0]["added"]) == (True, False)
    assert first["rows_in_model"] == second["rows_in_model"] > first["batches"][0]["rows"] > 0
    assert run_json("evaluate", path, "test.csv")["rmse"] != before
    with pytest.raises(InputError, match="SparseGPRegressor"):
        run("update", path, "monday.parquet", "--separate", "-o", tmp_path / "alone.sgp")


def test_a_model_with_learned_noise_takes_each_batch_once(folder, tmp_path):
    path = tmp_path / "noisy.sgp"
    kind = ("--model", "heteroscedastic", "--approximation", "pic", "-m", "10", "--time-budget", "1e-6")
    run_json("fit", "train.parquet", "-t", "y", "-o", path, *kind)
    before = run_json("evaluate", path, "test.csv")["rmse"]
    first, second = (run_json("update", path, "monday.parquet") for _ in range(2))
    assert (first["batches"][0]["added"], second["batches"][0]["added"]) == (True, False)
    assert first["rows_in_model"] == second["rows_in_model"] > first["batches"][0]["rows"] > 0
    assert run_json("evaluate", path, "test.csv")["rmse"] != before
    with pytest.raises(InputError, match="--noise-var"):
        run("update", path, "monday.parquet", "--noise-var", "a")
    with pytest.raises(InputError, match="SparseGPRegressor"):
        run("update", path, "monday.parquet", "--separate", "-o", tmp_path / "alone.sgp")


def test_report_is_one_page_about_the_named_columns(model, tmp_path):
    page = tmp_path / "page.html"
    report = run_json("report", model, "test.csv", "-o", page, "--title", "Pump 7")
    text = page.read_text()
    assert "<h1>Pump 7</h1>" in text
    assert "Effect of a" in text
    assert report["matters"][0] == "a"
    assert report["verdict"].split(".")[0] in text
    assert "y (target)" in text
    scores = run_json("evaluate", model, "test.csv")
    assert report["rows"] == 40
    assert report["nlpd"] == pytest.approx(scores["nlpd"])
    assert (report["worst_part"], report["discrete_target"]) == (None, False)
    with pytest.raises(InputError, match="does not exist"):
        run("report", model, "test.csv", "-o", tmp_path / "missing" / "page.html")


def test_a_transformed_target_is_its_own_through_all_commands(folder, tmp_path):
    path, page = tmp_path / "log.sgp", tmp_path / "page.html"
    for name, seed in (("prices", 0), ("more", 1), ("new", 3)):
        rows = table(150, seed)
        price = np.exp(2.0 * np.asarray(rows["y"]))
        csv.write_csv(rows.drop_columns("y").append_column("price", pa.array(price)), tmp_path / f"{name}.csv")
    test = tmp_path / "new.csv"
    given = ("-t", "price", "-o", path, "-a", "vfe", "-m", "20", "--target-transform", "log")
    told = run_json("fit", tmp_path / "prices.csv", *given)
    assert told["target_transform"] == "log"
    run_json("update", path, tmp_path / "more.csv")
    gp, read = sparsegp.load(path), csv.read_csv(test)
    X, y = np.column_stack([read["a"], read["b"]]), np.asarray(read["price"])
    assert run_json("evaluate", path, test)["nlpd"] == pytest.approx(-gp.log_density(X, y).mean(), rel=1e-6)
    run_json("predict", path, test, "-o", tmp_path / "out.csv")
    found = csv.read_csv(tmp_path / "out.csv")
    assert np.asarray(found["lower"]).min() > 0.0
    np.testing.assert_allclose(found["mean"], gp.predict(X), rtol=1e-7)
    report = run_json("report", path, test, "-o", page)
    assert report["rmse"] == pytest.approx(np.sqrt(np.mean((gp.predict(X) - y) ** 2)), rel=1e-6)
    assert "averages of log, carried back" in page.read_text()
    assert "standard deviation of log(price) around the function" in page.read_text()
    csv.write_csv(pa.table({"a": [0.0], "b": [1.0], "price": [-1.0]}), tmp_path / "bad.csv")
    with pytest.raises(InputError, match="takes targets above zero; 1 of these 1"):
        run("update", path, tmp_path / "bad.csv")
    with pytest.raises(InputError, match="'log', 'log1p', 'sqrt'"):
        run("fit", tmp_path / "prices.csv", *given[:-1], "cube")


def test_names_that_complete_are_those_of_the_package():
    assert set(options.TARGET_TRANSFORMS) == set(TRANSFORMS) == set(schema.TARGET_TRANSFORMS)
    assert set(approximations.TABLE) <= set(options.APPROXIMATIONS)
    assert all(approximations.get(name, 0.5) for name in options.APPROXIMATIONS)
    assert set(options.OPTIMIZERS) == set(OPTIMIZERS)
    assert all(kernel_class(name) for name in options.KERNELS if name != options.AUTO)
    assert options.beginning(options.APPROXIMATIONS)("vfe,pi") == ["vfe,pic", "vfe,pitc"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("words.csv", "a,b,y\n1,2,red\n", "target='y' .* expected numbers"),
        ("empty.csv", "", "cannot be read"),
        ("infinite.csv", "a,b,y\n1,2,3\n1,inf,3\n", "row 1: column 'b'"),
        ("page.csv", "<html>", "is a web page"),
        ("no_rows.csv", "a,b,y\n", "no rows"),
        ("missing.csv", "a,b,yy\n1,2,3\n", "Did you mean 'yy'"),
    ],
)
def test_tables_that_cannot_be_used_say_why(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match=expected):
        run("fit", path, "-t", "y", "-o", tmp_path / "model.sgp")


def test_inputs_alone_are_read_by_name_in_every_kind_of_table(tmp_path):
    rows = table(20, 4)
    pq.write_table(rows, tmp_path / "rows.parquet")
    csv.write_csv(rows, tmp_path / "rows.tsv", csv.WriteOptions(delimiter="\t"))
    for name in ("rows.parquet", "rows.tsv"):
        batches = list(table_columns.open_table(table_columns.files([tmp_path / name]), None, ["b", "a"], batch_rows=7))
        assert max(map(len, batches)) <= 7
        np.testing.assert_array_equal(np.concatenate([b.X for b in batches]), np.column_stack([rows["b"], rows["a"]]))


def test_a_model_that_does_not_know_its_target_asks_for_it(tmp_path):
    X, y = columns(table(30, 6))
    sparsegp.SparseGPRegressor(approximation="vfe", n_inducing=5, optimizer=None).fit(X, y).save(tmp_path / "plain.sgp")
    with pytest.raises(InputError, match="--target"):
        run("evaluate", tmp_path / "plain.sgp", "test.csv")
    with pytest.raises(InputError, match="3: a, b, y"):
        run("predict", tmp_path / "plain.sgp", "test.csv")
    assert run_json("evaluate", tmp_path / "plain.sgp", "test.csv", "-t", "y")["rows"] == 40
