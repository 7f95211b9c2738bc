"""What the commands leave behind when others write the same file, and what they print of strings from outside."""

import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

import sparsegp
from sparsegp import InputError, SparseGPRegressor, files, kernels
from sparsegp.cli.fit import _explained
from sparsegp.cli.output import show, shown
from sparsegp.cli.predict import _writer


def table(n, seed, name="x"):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3.0, 3.0, n)
    return pa.table({name: x, "y": np.sin(2.0 * x) + 0.1 * rng.standard_normal(n)})


def write_model(path, name="x"):
    rows = table(80, 0, name)
    gp = SparseGPRegressor(
        kernels.SquaredExponential(1.0, 0.7), approximation="vfe", n_inducing=8, noise_var=0.01, optimizer=None
    ).fit(np.asarray(rows[name])[:, None], np.asarray(rows["y"]))
    gp.name_columns((name,), "y")
    gp.save(path)


@pytest.fixture
def folder(tmp_path):
    write_model(tmp_path / "model.sgp")
    for k, name in enumerate(("monday", "tuesday")):
        csv.write_csv(table(30, k + 1), tmp_path / f"{name}.csv")
    return tmp_path


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_two_predictions_into_one_file_do_not_mix(tmp_path, name):
    output = tmp_path / name
    read = csv.read_csv if name.endswith("csv") else pq.read_table
    ones, twos = (
        pa.table(dict.fromkeys(("mean", "std", "lower", "upper"), np.full(500, value))) for value in (1.0, 2.0)
    )
    with _writer(output) as first:
        with _writer(output) as second:
            for _ in range(4):
                first(ones)
                second(twos)
        assert np.asarray(read(output)["mean"]).tolist() == [2.0] * 2000
    assert np.asarray(read(output)["mean"]).tolist() == [1.0] * 2000
    assert list(tmp_path.iterdir()) == [output]


def test_predict_does_not_write_through_a_planted_link(folder, program):
    victim = folder / "victim.txt"
    victim.write_text("precious")
    (folder / ".out.csv.part").symlink_to(victim)
    code, _, err = program(folder, "predict", "model.sgp", "monday.csv", "-o", "out.csv")
    assert code == 0, err
    assert victim.read_text() == "precious"
    assert not (folder / "out.csv").is_symlink()


def test_of_two_updates_into_one_new_file_the_second_hears_that_it_exists(folder, program, monkeypatch):
    """The other process has written the file while this one waited for the lock."""
    locked = files.locked

    @contextmanager
    def after_the_other(path):
        monkeypatch.setattr(files, "locked", locked)
        assert program(folder, "update", "model.sgp", "tuesday.csv", "-o", path, "--json")[0] == 0
        with locked(path):
            yield

    monkeypatch.setattr(files, "locked", after_the_other)
    code, _, err = program(folder, "update", "model.sgp", "monday.csv", "-o", "new.sgp")
    assert code == 1
    assert "new.sgp exists. To add rows to it: sparsegp update new.sgp" in err
    assert sparsegp.load(folder / "new.sgp").n_samples_seen_ == 110


@pytest.mark.parametrize("command", ["merge", "fit"])
def test_a_result_that_replaces_a_model_waits_for_its_updates(folder, program, monkeypatch, command):
    """An update in another process is between its reading and its writing when the command begins."""
    locked, seen = files.locked, []

    @contextmanager
    def counted(path):
        with locked(path):
            seen.append(Path(path).name)
            yield

    program(folder, "update", "model.sgp", "monday.csv", "--separate", "-o", "part.sgp")
    monkeypatch.setattr(files, "locked", counted)
    arguments = {
        "merge": ("merge", "model.sgp", "part.sgp", "-o", "model.sgp"),
        "fit": ("fit", "monday.csv", "-t", "y", "-m", "5", "-a", "vfe", "-o", "model.sgp", "--seed", "1"),
    }
    code, out, err = program(folder, *arguments[command], "--json")
    assert code == 0, err
    assert json.loads(out)["model"] == "model.sgp"
    assert seen == ["model.sgp"]


def test_a_number_that_is_infinite_is_named_by_its_row_in_the_file(folder, program):
    """Not by its row in the chunk, and before the prediction, which would not know the file."""
    rows = (folder / "monday.csv").read_text().splitlines()
    rows[18] = "1e999,0.5"
    (folder / "far.csv").write_text("\n".join(rows))
    for command in (("predict", "-o", "out.csv", "--chunk-rows", "5"), ("evaluate",)):
        code, _, err = program(folder, command[0], "model.sgp", "far.csv", *command[1:], COLUMNS="300")
        assert code == 1
        assert "file 'far.csv', row 17: column 'x' is inf" in err
    assert not (folder / "out.csv").exists()
    light = sparsegp.serving.load(folder / "model.sgp")
    with pytest.raises(InputError, match="row 2, column 0"):
        light.predict([[0.1], [0.2], [np.inf]])


def test_a_link_that_leads_nowhere_is_called_one(folder, program):
    (folder / "gone.csv").symlink_to("elsewhere.csv")
    code, _, err = program(folder, "predict", "model.sgp", "gone.csv")
    assert code == 1
    assert "'gone.csv' is a link that leads to no file" in err


@pytest.mark.parametrize("linked", [False, True], ids=["file", "link"])
def test_no_output_takes_the_place_of_what_is_read(folder, program, linked):
    """It was replaced: the rows of a fit by its model, and those of a prediction by the forecasts."""
    output, before = "monday.csv", (folder / "monday.csv").read_bytes()
    if linked:
        output = "same.csv"
        (folder / output).symlink_to("monday.csv")
    for command in (("predict", "model.sgp"), ("report", "model.sgp"), ("fit", "-t", "y", "--time-budget", "0.1")):
        code, _, err = program(folder, *command, "tuesday.csv", "monday.csv", "-o", output, COLUMNS="300")
        assert code == 1, command
        assert f"{output} is a file that is read" in err
    model = (folder / "model.sgp").read_bytes()
    assert program(folder, "report", "model.sgp", "monday.csv", "-o", "model.sgp")[0] == 1
    assert (folder / "monday.csv").read_bytes() == before
    assert (folder / "model.sgp").read_bytes() == model


HOSTILE = ("a[/red]", "[bold]x", "\x1b]0;title\x07\x1b[2J", "\u202etxt", "$\\frac{")


@pytest.mark.parametrize("name", HOSTILE, ids=["markup", "style", "escape", "direction", "formula"])
def test_names_from_outside_are_shown_as_they_are_and_steer_nothing(folder, program, name):
    """Of a column, of a batch and of a file, in every command that prints or draws them."""
    csv.write_csv(table(30, 1, name), folder / "named.csv")
    write_model(folder / "named.sgp", name)
    batch = folder / f"{name.replace('/', '|')}.csv"
    csv.write_csv(table(30, 2, name), batch)
    for arguments in (
        ("fit", "named.csv", "-t", "y", "-a", "vfe", "-m", "5", "-o", "fitted.sgp", "--time-budget", "0.01"),
        ("update", "named.sgp", batch.name, "--batch-id", name),
        ("predict", "named.sgp", batch.name, "-o", f"{batch.stem}-out.csv"),
        ("evaluate", "named.sgp", batch.name),
        ("plan", "named.csv", "-t", "y"),
        ("report", "named.sgp", batch.name, "-o", "page.html", "--title", name),
    ):
        code, out, err = program(folder, *arguments, COLUMNS="300")
        assert code == 0, (arguments, err)
        assert not {"\x1b", "\x07", "\u202e"} & {*out, *err}
        if arguments[0] == "update":
            assert shown(name) in out
    code, _, err = program(folder, "update", "named.sgp", f"missing{name}.csv".replace("/", "|"))
    assert code == 1
    assert not {"\x1b", "\x07", "\u202e"} & {*err}


def test_a_file_name_that_is_no_text_can_be_shown():
    assert shown("run-\udcff.csv") == "run-\\udcff.csv"
    assert shown("line\none", keep="\n") == "line\none"
    assert shown("Größe [m²] 温度") == "Größe [m²] 温度"


@pytest.mark.parametrize(("r2", "said"), [(0.42, "explain 42.0% of"), (-0.0001, "no better than the average")])
def test_what_a_forecast_explains_is_said_in_words(r2, said):
    assert said in _explained(r2)


def test_what_there_is_none_of_has_no_line(capsys):
    result = {"rows": 3, "stopped_by": None, "warnings": [], "fraction": 0.0}
    show("Fitted", result, as_json=False)
    text = capsys.readouterr().out
    assert "stopped" not in text
    assert "warnings" not in text
    assert "fraction" in text
    show("Fitted", result, as_json=True)
    assert json.loads(capsys.readouterr().out) == result
