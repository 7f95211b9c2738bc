"""What an installation without torch can do, and what it says about the rest.

`make test-bare` runs this in an environment that has no torch. Elsewhere torch is hidden from the processes.
"""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FIXTURES = Path(__file__).parents[1] / "fixtures"
LIGHT, HEAVY = FIXTURES / "model_v2_vfe.sgp", FIXTURES / "model_v2_heteroscedastic.sgp"
HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Hidden())
"""
COMMAND = "from sparsegp.cli.main import main; main()"
ADVICE = "pip install 'sparsegp[fit]'"


def python(code, *arguments, cwd=None):
    command = [sys.executable, "-c", HIDDEN + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def sparsegp(*arguments):
    return python(COMMAND, *arguments)


def write_rows(path):
    """The rows whose predictions are known, with targets; and the predictions."""
    known = json.loads((FIXTURES / "model_v2.json").read_text())
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "y"])
        writer.writerows([*x, mean + 0.1] for x, mean in zip(known["X"], known["vfe"]["mean"], strict=True))
    return known["vfe"]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "rows.csv"
    return path, write_rows(path)


def test_predict(table, tmp_path):
    path, known = table
    inputs = tmp_path / "inputs.csv"
    inputs.write_text("\n".join(line.rpartition(",")[0] for line in path.read_text().splitlines()))
    ran = sparsegp("predict", LIGHT, inputs)
    assert ran.returncode == 0, ran.stderr
    got = np.array([[float(row["mean"]), float(row["std"])] for row in csv.DictReader(ran.stdout.splitlines())])
    np.testing.assert_allclose(got[:, 0], known["mean"], rtol=1e-8)
    np.testing.assert_allclose(got[:, 1], known["std"], rtol=1e-8)


def test_evaluate(table):
    path, known = table
    ran = sparsegp("evaluate", LIGHT, path, "--target", "y", "--json")
    assert ran.returncode == 0, ran.stderr
    scores = json.loads(ran.stdout)
    std = np.array(known["std"])
    expected = np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * (0.1 / std) ** 2)
    assert scores["rmse"] == pytest.approx(0.1, rel=1e-6)
    assert scores["nlpd"] == pytest.approx(expected, rel=1e-6)
    assert scores["coverage_95"] == 1.0


def test_python_predicts():
    code = (
        "import json, numpy as np; from sparsegp import serving; "
        f"known = json.loads(open({str(FIXTURES / 'model_v2.json')!r}).read()); "
        f"model = serving.load({str(LIGHT)!r}); "
        "assert np.allclose(model.predict(known['X']), known['vfe']['mean']); print('same')"
    )
    assert python(code).stdout.strip() == "same"


def test_help_and_version():
    assert "evaluate" in sparsegp("--help").stdout
    assert sparsegp("--version").stdout.strip()[0].isdigit()


COMMANDS = [
    ("predict", HEAVY, "rows.csv"),
    ("evaluate", HEAVY, "rows.csv", "--target", "y"),
    ("report", LIGHT, "rows.csv", "--target", "y"),
    ("update", LIGHT, "rows.csv", "--target", "y", "-o", "new.sgp"),
    ("merge", LIGHT, LIGHT, "-o", "new.sgp"),
    ("fit", "rows.csv", "--target", "y", "-o", "new.sgp"),
    ("compare", "rows.csv", "--target", "y"),
    ("plan", "rows.csv", "--target", "y"),
]
ONE_BY_ONE = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from sparsegp.cli.main import main

said = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["sparsegp", *arguments]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code
    said.append([code, errors.getvalue(), os.path.exists("new.sgp")])
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said_by_commands(tmp_path_factory):
    """Where the commands ran; and of each the exit code, the errors, and whether there is a new file."""
    folder = tmp_path_factory.mktemp("bare")
    write_rows(folder / "rows.csv")
    given = json.dumps([list(map(str, arguments)) for arguments in COMMANDS])
    ran = python(ONE_BY_ONE, given, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    return folder, json.loads(ran.stdout)


@pytest.mark.parametrize("k", range(len(COMMANDS)), ids=lambda k: f"{COMMANDS[k][0]}-{Path(COMMANDS[k][1]).stem}")
def test_commands_that_need_torch_say_how_to_get_it(k, said_by_commands):
    folder, said = said_by_commands
    code, errors, has_new_file = said[k]
    assert code == 1
    assert ADVICE in errors
    assert "Traceback" not in errors
    assert not has_new_file
    if k == 0:
        alone = python(COMMAND, *COMMANDS[0], cwd=folder)
        assert (alone.returncode, alone.stderr) == (1, errors)


NAMES = ["SparseGPRegressor", "CommitteeGPRegressor", "load", "plan", "kernels"]
IMPORTS = """
import json
from sparsegp import MissingPackageError

said = {}
for name in sys.argv[1:]:
    try:
        exec(f"from sparsegp import {name}")
    except MissingPackageError as error:
        assert isinstance(error, ImportError)
        said[name] = str(error)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said_by_names():
    return json.loads(python(IMPORTS, *NAMES).stdout)


@pytest.mark.parametrize("name", NAMES)
def test_names_that_need_torch_say_how_to_get_it(name, said_by_names):
    assert ADVICE in said_by_names[name]
