"""The program from outside: output, exit codes, Ctrl-C, shell completion; as a real process where that may matter."""

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

import sparsegp
from sparsegp import SparseGPRegressor, kernels
from sparsegp.cli.watch import Watcher
from sparsegp.data import open_source

SECONDS = 600
BRIEFLY = ("--time-budget", "0.01")
PROGRAM = "import sys; sys.argv[0] = 'sparsegp'; from sparsegp.cli import main; main()"


def table(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3.0, 3.0, n)
    return pa.table({"x": x, "y": np.sin(2.0 * x) + 0.1 * rng.standard_normal(n)})


def columns(rows):
    return np.asarray(rows["x"])[:, None], np.asarray(rows["y"])


def start(folder, *arguments, **variables):
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )


def run(folder, *arguments, **variables):
    process = start(folder, *arguments, **variables)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with tables and a model."""
    folder = tmp_path_factory.mktemp("tables")
    for k, name in enumerate(("train", "monday", "test")):
        pq.write_table(table(80, k), folder / f"{name}.parquet")
    model = SparseGPRegressor(
        kernels.SquaredExponential(1.0, 0.7), approximation="vfe", n_inducing=8, noise_var=0.01, optimizer=None
    )
    rows = open_source(folder / "train.parquet", target="y")
    model.fit(*columns(table(80, 0)))
    model.name_columns(rows.feature_names, "y")
    model.save(folder / "model.sgp")
    return folder


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("fit", "train.parquet", "-t", "y", "--model", "committee", *BRIEFLY, "-o", "committee.sgp"), "log_evidence"),
        (("predict", "model.sgp", "test.parquet", "-o", "out.csv"), "rows"),
        (("evaluate", "model.sgp", "test.parquet"), "nlpd"),
        (("update", "model.sgp", "monday.parquet", "--separate", "-o", "part.sgp"), "rows_in_model"),
        (("merge", "model.sgp", "part.sgp", "-o", "all.sgp"), "rows_in_model"),
        (("compare", "train.parquet", "-t", "y", "-a", "exact,sod", "-m", "8", *BRIEFLY), "results"),
        (("report", "model.sgp", "test.parquet", "-o", "page.html"), "warnings"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_does_its_work_and_prints_one_json_object(folder, program, arguments, key):
    """One command that learns and one that does without torch are processes of their own."""
    code, out, err = (run if arguments[0] in ("fit", "predict") else program)(folder, *arguments, "--json")
    assert code == 0, err
    assert "Traceback" not in err
    assert key in json.loads(out)
    if "-o" in arguments:
        assert (folder / arguments[arguments.index("-o") + 1]).stat().st_size > 0


def test_a_table_for_people(folder, program):
    code, out, err = program(folder, "compare", "train.parquet", "-t", "y", "-a", "exact", *BRIEFLY, COLUMNS="120")
    assert code == 0, err
    for heading in ("rmse", "nlpd", "crps", "coverage 95", "seconds", "megabytes"):
        assert heading in out


def test_errors_of_the_caller_have_a_message_and_no_traceback(folder, program):
    code, out, err = run(folder, "evaluate", "train.parquet", "test.parquet")
    assert (code, out) == (1, "")
    assert err.startswith("Error: ")
    assert "Traceback" not in err
    assert program(folder, "fit", "train.parquet")[0] == 2


def test_help_and_version_do_not_load_torch():
    code = (
        "import sys; sys.argv = ['sparsegp', '--help']\n"
        "from sparsegp.cli import main\n"
        "try: main()\n"
        "finally: print('heavy:', [m for m in ('torch', 'sklearn', 'scipy', 'pyarrow', 'rich') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip().endswith("heavy: []")
    for command in ("fit", "predict", "update", "evaluate", "merge", "compare", "plan", "report"):
        assert f"  {command} " in ran.stdout
    assert run(Path.cwd(), "--version")[1].strip() == sparsegp.__version__


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("sparsegp re", ["report"]), ("sparsegp fit --approximation pi", ["pic", "pitc"])],
)
def test_the_shell_completes_commands_and_names(typed, expected):
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    _, out, err = run(Path.cwd(), _SPARSEGP_COMPLETE="complete_bash", **words)
    assert (out.split(), err) == (expected, "")


def test_completion_can_be_shown_for_a_shell():
    code, out, _ = run(Path.cwd(), "--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert code == 0
    assert "_SPARSEGP_COMPLETE" in out


@pytest.mark.parametrize(
    ("given", "all_rows"),
    [(("-a", "vfe"), True), (("-a", "vfe", "--time-budget", "300"), True)],
    ids=["no budget", "budget"],
)
def test_ctrl_c_saves_the_best_model_so_far(tmp_path, given, all_rows):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (8000, 4))
    y = np.sin(3.0 * X).sum(axis=1) + 0.1 * rng.standard_normal(len(X))
    pq.write_table(pa.table({**{f"x{d}": X[:, d] for d in range(4)}, "y": y}), tmp_path / "large.parquet")
    settings = ("-t", "y", "--kernel", "se", "-m", "200", *given)
    process = start(tmp_path, "fit", "large.parquet", "-o", "early.sgp", "-v", "--json", *settings)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("[sparsegp]"):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    report = json.loads(out)
    assert report["stopped_by"] == "Ctrl-C"
    assert (report["fraction_used"] == 1.0) is all_rows
    assert sparsegp.load(tmp_path / "early.sgp").n_samples_seen_ == round(report["fraction_used"] * len(X))


def test_a_second_ctrl_c_ends_the_program():
    before = signal.getsignal(signal.SIGINT)
    try:
        Watcher(None, None, None).interrupt(signal.SIGINT, None)
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 130


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("predict", "model.sgp", "test.parquet", "--coverage", "95"), "such as 0.95"),
        (("compare", "train.parquet", "-t", "y", "-a", "exact,svgp"), "got svgp"),
        (("fit", "train.parquet", "-t", "y", "-o", "m.sgp", "--time-budget", "-5"), "got -5"),
        (("fit", "train.parquet", "-t", "y", "-o", "m.sgp", "--kernel", "foo"), "unknown kernel 'foo'"),
        (("predict", "nowhere.sgp", "test.parquet"), "sparsegp fit"),
    ],
)
def test_mistakes_are_found_before_the_work(folder, program, arguments, said):
    code, out, err = program(folder, *arguments)
    assert (code, out) == (1, "")
    assert said in err
    assert "No approximation could be fitted" not in err
