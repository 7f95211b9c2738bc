"""What importing the package costs, and what it ships."""

import json
import os
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest

HEAVY = ("dask", "distributed", "matplotlib", "pandas", "polars", "pyarrow")


LOADED = """
import json, sys, torch, sklearn.base
before = set(sys.modules)
import numpy as np, sparsegp
imported = set(sys.modules)
X = np.random.default_rng(0).uniform(size=(50, 2))
for row in ("vfe", "pic", "exact"):
    sparsegp.SparseGPRegressor(approximation=row, n_inducing=10).fit(X, X[:, 0]).predict(X)
print(json.dumps({"import": sorted(imported - before), "fits": sorted(sys.modules)}))
"""


@pytest.fixture(scope="module")
def loaded():
    """Modules that the import of the package adds to torch and scikit-learn, and all there are after some fits."""
    told = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True).stdout
    return json.loads(told)


def test_import_adds_no_optional_package_to_what_torch_and_scikit_learn_load(loaded):
    assert "sparsegp.estimators.sparse" in loaded["fits"]
    assert "sparsegp" in loaded["import"]
    assert not set(HEAVY) & set(loaded["import"])


def test_fitting_arrays_leaves_optional_packages_alone(loaded):
    assert not {"dask", "matplotlib", "polars"} & set(loaded["fits"])


def test_learning_does_not_import_sympy(loaded):
    """`value.backward(adjoint)` of torch does, and it takes longer than a small fit."""
    assert "sympy" not in loaded["fits"]


WAITS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
TEAMS = "import threading, sparsegp.parallel as p; print(p.SECOND_TEAM in [t.name for t in threading.enumerate()])"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="a second team is for systems that say which cores")
@pytest.mark.parametrize(
    ("code", "given", "policy", "has_team"),
    [
        ("import sparsegp, torch", {}, "passive", False),
        ("import torch, sparsegp", {}, None, len(getattr(os, "sched_getaffinity", lambda _: [])(0)) > 1),
        ("import sparsegp", {"OMP_WAIT_POLICY": "active"}, "active", False),
        ("import torch, sparsegp", {"GOMP_SPINCOUNT": "100"}, None, False),
    ],
)
def test_threads_that_wait_sleep_unless_the_user_has_decided(code, given, policy, has_team):
    """By a variable if torch is loaded later, else by a second team of threads (decisions/0021)."""
    kept = {name: value for name, value in os.environ.items() if name not in WAITS}
    code = f"import os; {code}; print(os.environ.get('OMP_WAIT_POLICY')); {TEAMS}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=kept | given)
    assert run.stdout.split()[:2] == [str(policy), str(has_team)]


def test_the_package_is_typed():
    assert resources.files("sparsegp").joinpath("py.typed").is_file()


def test_the_lowest_versions_that_are_tested_are_those_that_are_allowed():
    """A dependency that is not pinned would be tested with its newest version (make test-lowest)."""
    root = Path(__file__).parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = (root / "constraints-lowest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    for needed in (*project["dependencies"], *extras["fit"], *extras["dask"], *extras["plot"]):
        name, lowest = needed.split(">=")
        assert pinned[name.split("[")[0]].startswith(lowest), needed
