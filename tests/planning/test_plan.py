"""Plans: the cost model counts what the code does, the data are not read, bad input is explained."""

import json
import time

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from sparsegp import CommitteeGPRegressor, InputError, SparseGPRegressor, plan
from sparsegp.core.approximations import NAMES
from sparsegp.core.local import CACHE_BYTES
from sparsegp.planning import Machine, cost, duration, measured, size
from sparsegp.planning.cost import Cost
from sparsegp.planning.estimate import evaluation_bytes
from sparsegp.planning.shape import DataShape, model_of, shape_of

MACHINE = Machine(
    cores=2,
    memory_bytes=24e9,
    flops_per_second=1.25e11,
    exps_per_second=1.5e9,
    memory_bytes_per_second=2e10,
    disk_bytes_per_second=1e9,
)


def table(n):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, n))
    return pa.table({"a": a, "b": b, "y": np.sin(a) + 0.1 * b})


def model(approximation="vfe", n_rows=100_000, **parameters):
    return model_of(SparseGPRegressor(approximation=approximation, **parameters), DataShape(n_rows, 8))


def of_size(n_rows, **parameters):
    return plan(n_rows=n_rows, n_features=8, machine=MACHINE, **parameters)


# Seconds on one 2-core machine (benchmarks/results: bound, predict, datasets). The speeds of products and exps above
# are its own (predict); that of its memory was never measured and is assumed. Not here: vfe (1.25 s), whose evaluation
# skips the solves where Kuu is well conditioned; plans count them and say 2.4 times as much.
@pytest.mark.parametrize(("name", "seconds"), [("fitc", 3.63), ("pep", 3.36), ("pitc", 8.14)])
def test_an_evaluation_costs_about_what_was_measured(name, seconds):
    predicted = 100_000 * cost.gradient(model(name)) + cost.evaluation_overhead(model(name))
    assert 0.5 < predicted.seconds(MACHINE) / seconds < 2.0


def test_a_fit_and_predictions_cost_about_what_was_measured():
    assert 0.5 < of_size(36_000, n_inducing=300, approximation="vfe").seconds / 36.2 < 2.0
    assert 0.5 < of_size(36_000, n_inducing=300, approximation="fitc").seconds / 66.8 < 2.0
    assert 0.5 < of_size(20_000, approximation="vfe").estimates[0].prediction_seconds / 5.96 < 2.0


def test_predictions_of_local_models_take_bounded_memory_and_the_plan_says_how_much():
    small, large, huge = (of_size(n, approximation="pic").estimates[0].prediction_bytes for n in (2_000, 10**6, 10**8))
    assert small < 200e6 < large
    assert large - 8.0 * 2 * 10**6 < CACHE_BYTES + 300e6
    assert huge - large < 100 * 8.0 * 2.5 * 10**6  # weights of the mean alone
    assert of_size(10**6, approximation="vfe").estimates[0].prediction_bytes < 50e6
    assert "memory of predictions" in str(of_size(2_000, approximation="pic"))


def test_a_fit_takes_about_the_memory_that_was_measured():
    memory = of_size(1_000_000, approximation="vfe").estimates[0].memory
    assert 0.7 < (memory.copies + memory.workspace) / 282e6 < 2.0


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("exact", "sod")])
def test_a_row_costs_quadratically_in_inducing_inputs(name):
    few, many = (cost.gradient(model(name, n_inducing=m, n_blocks=200)) for m in (1000, 4000))
    assert 4.0 < many.flops / few.flops < 16.1


def test_costs_of_the_table_are_ordered_as_its_residuals():
    flops = [cost.gradient(model(name)).flops for name in ("vfe", "fitc", "pitc")]
    assert flops == sorted(flops)
    assert cost.gradient(model("pic")) == cost.gradient(model("pitc"))
    assert cost.prediction(model("pic")).flops > cost.prediction(model("pitc")).flops


def test_stages_are_those_of_a_fit_and_evaluations_its_most():
    X = np.random.default_rng(0).standard_normal((1500, 2))
    given = {"approximation": "vfe", "n_inducing": 10, "trend": None, "calibration": None, "random_state": 0}
    fitted = SparseGPRegressor(**given).fit(X, np.sin(3 * X[:, 0]) + X[:, 1])
    stages = cost.learning_stages(model(n_rows=1500), 1500)
    assert [stage.n_rows for stage in stages] == [stage.n_rows for stage in fitted.info_["stages"]]
    assert fitted.info_["evaluations"] < 1.2 * sum(stage.evaluations for stage in stages)


def test_stages_grow_to_all_rows_and_without_optimizer_there_are_none():
    sizes = [stage.n_rows for stage in cost.learning_stages(model(n_rows=300_000), 300_000)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == 300_000
    assert of_size(300_000, optimizer=None).estimates[0].learning_seconds == 0.0


def test_costs_add_up():
    once = Cost(1.0, 2.0, 3.0, 4.0, 5.0)
    assert once + 2 * once == 3 * once
    assert (3 * once).seconds(MACHINE) == pytest.approx(3 * once.seconds(MACHINE))


def test_more_machines_take_less_time_until_messages_dominate():
    found = of_size(10**9, machines=(10, 100, 1000)).estimates
    computing = [e.seconds - e.communication_seconds for e in found]
    assert computing == sorted(computing, reverse=True)
    talking = [e.communication_seconds for e in found]
    assert talking == sorted(talking)
    assert found[0].rounds == found[2].rounds > 2


@pytest.mark.parametrize(("name", "matrices"), [("vfe", 1.0), ("fitc", 1.5)])
def test_messages_of_an_evaluation_are_triangles(name, matrices):
    assert evaluation_bytes(model(name), 7) == pytest.approx(7 * 8 * matrices * 512**2, rel=0.06)


def test_many_rows_are_planned_from_disk_by_the_rule_of_fit():
    found = of_size(10**8, approximation="vfe").estimates[0]
    assert (found.where, found.fits) == ("disk", True)
    assert found.passes > 2
    assert found.disk_bytes == found.passes * 8 * 9 * 10**8
    assert found.memory.total < 2e9
    once = of_size(10**8, optimizer=None, approximation="vfe").estimates[0]
    assert (once.passes, once.evaluations) == (2, 0)
    assert of_size(10**6).estimates[0].where == "memory"


def test_what_does_not_fit_says_what_to_do():
    small = {**MACHINE.to_dict(), "memory_bytes": 2e9}
    found = plan(n_rows=10**8, n_features=8, machine=small, approximation="pic")
    assert not found.estimates[0].fits
    assert "fewer inducing inputs" in found.warnings[0]
    assert found.estimates[0].passes == 3  # a scan, one to sort the rows into blocks, one to sum them up
    assert "(too much)" in str(found)
    assert "more machines" in plan(n_rows=10**9, n_features=8, machine=small, machines=10).warnings[0]
    assert "a path instead" in plan(np.broadcast_to(0.0, (10**8, 8)), machine=small).warnings[0]
    assert plan(n_rows=10**5, n_features=8, machine=small, approximation="vfe").warnings == ()


@pytest.mark.parametrize(
    ("n_rows", "name", "n_blocks"), [(1500, "exact", 0), (1600, "pic", 2), (50_000, "pic", 62), (10**7, "pic", 12_500)]
)
def test_a_choice_by_the_number_of_rows_is_planned(n_rows, name, n_blocks):
    chosen = of_size(n_rows, approximation="auto")
    named = of_size(n_rows, approximation=name, n_blocks=n_blocks or None)
    assert (chosen.approximation, chosen.n_blocks, chosen.warnings) == (name, n_blocks, named.warnings)
    assert chosen.estimates == named.estimates


@pytest.mark.parametrize(
    ("n_rows", "changes"),
    [
        (1700, {}),
        (1700, {"inference": "anytime"}),
        (1700, {"half_life": 100.0}),
        (1700, {"n_blocks": 3}),
        (60, {}),
        (60, {"inducing": np.zeros((1, 2))}),
    ],
)
def test_the_planned_choice_is_that_of_a_fit(n_rows, changes):
    X = np.random.default_rng(0).uniform(-2, 2, (n_rows, 2))
    given = {"kernel": "se", "optimizer": None, "calibration": None, **changes}
    model = SparseGPRegressor(random_state=0, **given).fit(X, np.sin(X[:, 0]))
    planned = plan(X, **given)
    assert planned.approximation == model.info_["choice"]["approximation"]
    assert planned.approximation != "pic" or planned.n_blocks == model.info_["n_blocks"]


@pytest.mark.parametrize("changes", [{"machines": (1, 10)}, {"window": 100}])
def test_a_choice_that_is_vfe_says_so(changes):
    named, chosen = (of_size(50_000, approximation=name, **changes) for name in ("vfe", "auto"))
    assert (chosen.approximation, chosen.estimates) == ("vfe", named.estimates)
    assert "'pic' above" in chosen.warnings[0]


def test_tiny_durations_have_no_powers_of_ten():
    assert (duration(4.4e-6), duration(0.0034), duration(0.5)) == ("0 s", "0.003 s", "0.5 s")


def test_warnings_name_what_to_do():
    assert "refused above 20,000" in of_size(50_000, approximation="exact").warnings[0]
    assert any("time_budget=10" in text for text in of_size(10**6, time_budget=10).warnings)
    assert any("gathers its training rows" in t for t in of_size(10**9, approximation="pic", machines=500).warnings)
    assert any("found from a sample" in text for text in of_size(10**9, approximation="pitc", machines=500).warnings)
    assert any("fewer machines" in text for text in of_size(10**7, machines=1000).warnings)
    assert any("no additive statistics" in text for text in of_size(10**4, approximation="exact", machines=2).warnings)


def test_every_row_of_the_table_has_a_plan():
    for name in NAMES:
        found = of_size(10_000, approximation=name)
        assert 0.0 < found.seconds < 3600.0, name
        assert found.memory_bytes > 3e8, name


def test_arrays_tables_and_files_tell_their_shape(tmp_path):
    rows = table(500)
    path = tmp_path / "rows.parquet"
    pq.write_table(rows, path, row_group_size=100)
    frames = [rows, rows.to_pandas(), pl.from_arrow(rows)]
    shapes = [shape_of(X, target="y") for X in (*frames, path, str(path), [path])]
    assert {(found.n_rows, found.n_features) for found in shapes} == {(500, 2)}
    assert [found.file_bytes > 0 for found in shapes] == [False] * 3 + [True] * 3
    assert shapes[3].file_bytes <= path.stat().st_size
    assert shape_of(path, target="y", features=["a"]).file_bytes < shapes[3].file_bytes
    assert shape_of(np.zeros((30, 4))).n_features == 4


def test_a_folder_is_the_sum_of_its_files(tmp_path):
    for k in range(3):
        pq.write_table(table(100 + k), tmp_path / f"{k}.parquet")
    assert shape_of(tmp_path, target="y").n_rows == 303


def test_rows_of_a_csv_are_estimated_from_its_beginning(tmp_path):
    csv.write_csv(table(40_000), tmp_path / "rows.csv")
    found = shape_of(tmp_path / "rows.csv", target="y")
    assert found.n_rows == pytest.approx(40_000, rel=0.02)
    settings = {"target": "y", "machine": MACHINE, "approximation": "vfe"}
    assert "estimated" in plan(tmp_path / "rows.csv", **settings).warnings[0]
    assert plan(tmp_path / "rows.csv", n_rows=40_000, **settings).warnings == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "n_rows= and n_features="),
        ({"n_rows": 10}, "n_rows= and n_features="),
        ({"n_rows": 0, "n_features": 1}, "n_rows must be a whole number"),
        ({"n_rows": 10, "n_features": 1, "machines": 0}, "machines must be a whole number"),
        ({"n_rows": 10, "n_features": 1, "machines": []}, "empty list"),
        ({"n_rows": 10, "n_features": 1, "n_induced": 5}, "does not know n_induced"),
        ({"n_rows": 10, "n_features": 1, "approximation": "vfee"}, "approximation must be one of"),
        ({"n_rows": 10, "n_features": 1, "estimator": CommitteeGPRegressor()}, "got CommitteeGPRegressor"),
        (
            {"n_rows": 10, "n_features": 1, "estimator": SparseGPRegressor(approximation="vfe"), "power": 1.0},
            "not both",
        ),
        ({"n_rows": 10, "n_features": 1, "machine": {"cores": 2}}, "missing: memory_bytes"),
        ({"n_rows": 10, "n_features": 1, "machine": {**MACHINE.to_dict(), "cores": 0}}, "cores must be a positive"),
        ({"n_rows": 10, "n_features": 1, "machine": 3}, "got int"),
        ({"X": np.zeros(5)}, "matrix or a table"),
        ({"X": np.zeros((5, 2)), "n_features": 2}, "leave n_features= out"),
        ({"X": pd.DataFrame({"a": [1.0]}), "target": "y"}, "not a column"),
        ({"X": pd.DataFrame({"a": [1.0]}), "target": "a"}, "no column besides"),
        ({"X": np.zeros((0, 2))}, "no rows"),
        ({"X": "nowhere.parquet", "target": "y"}, "no file"),
    ],
)
def test_bad_input_is_explained(arguments, message):
    with pytest.raises(InputError, match=message):
        plan(**{"machine": MACHINE, **arguments})


def test_a_packed_csv_needs_the_number_of_rows(tmp_path):
    with pa.CompressedOutputStream(str(tmp_path / "rows.csv.gz"), "gzip") as out:
        csv.write_csv(table(20), out)
    with pytest.raises(InputError, match="give n_rows="):
        plan(tmp_path / "rows.csv.gz", target="y", machine=MACHINE)
    assert plan(tmp_path / "rows.csv.gz", target="y", n_rows=20, machine=MACHINE).n_rows == 20


def test_a_plan_is_readable_and_json(tmp_path):
    found = of_size(10**6, approximation="pic", machines=(1, 10))
    text = str(found)
    assert text.splitlines()[0].startswith("pic on 1,000,000 rows x 8 columns, 512 inducing inputs, 1,953 blocks")
    assert all(word in text for word in ("memory of a machine", "in memory", "on a cluster", "predict 1,000,000 rows"))
    assert "through the network" in text
    assert "through the network" not in str(of_size(10**6, approximation="pic"))  # nothing goes through it
    plain = json.loads(json.dumps(found.to_dict()))
    assert [e["machines"] for e in plain["estimates"]] == [1, 10]
    assert plain["estimates"][0]["seconds"] == found.seconds
    assert Machine.of(plain["machine"]) == MACHINE


def test_this_machine_is_measured_once():
    first, started = measured(), time.process_time()
    assert measured() is first
    assert time.process_time() - started < 0.01
    assert 1e8 < first.flops_per_second < 1e15
    assert first.memory_bytes > 1e8
    assert plan(n_rows=100, n_features=2).machine == first


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (duration(0.31), "0.3 s"),
        (duration(75), "75 s"),
        (duration(5400), "1.5 h"),
        (duration(3e5), "3.5 d"),
        (size(0), "0"),
        (size(2.6e5), "0.3 MB"),
        (size(1.26e9), "1.3 GB"),
        (size(7.2e13), "72 TB"),
    ],
)
def test_quantities_are_said_in_words(value, text):
    assert value == text
