"""Streamed inference and learning: the same numbers as in memory, from any source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from problems import CHANGES, INDUCING_ROWS, Problem, agree, get_row, random_problem
from sparsegp import approximations, kernels, parallel
from sparsegp.data import Block, Rows
from sparsegp.engines import batch, streamed
from sparsegp.errors import InputError
from sparsegp.estimators.incoming.standardizer import Standardizer
from sparsegp.learning import direct, lbfgs
from sparsegp.learning.hyperparameters import Limits
from sparsegp.learning.objective import CollapsedObjective
from sparsegp.learning.streamed import StreamedObjective
from sparsegp.prior import SparsePrior
from sparsegp.sources import ModelRows, open_source, survey
from test_golden import SPARSE, golden_problem
from test_sources import OPENERS, columns, matrix


@dataclass(frozen=True)
class Cut:
    """The problem's rows in three groups, of whole blocks where the row has blocks; re-iterable."""

    problem: Problem
    by_block: bool

    def __iter__(self) -> Any:
        if self.by_block:
            last = self.problem.n_blocks - 1
            groups = ([0], list(range(1, last)), [last])
            return (self.problem.rows.subset_of_blocks(torch.tensor(group)) for group in groups)
        return (Rows(chunk) for chunk in Rows(self.problem.block).chunks(8))


def objective_of(problem: Problem, name: str) -> StreamedObjective:
    row, block = get_row(name), problem.block
    least = None if block.noise_var is None else float(block.noise_var.min())
    return StreamedObjective(Cut(problem, row.by_block), row, len(block), block.n_rows, least)


@pytest.mark.parametrize("name", ["SoR", "DTC", "VFE", "FITC", "PITC"])
def test_golden_evidence(golden: Mapping[str, Any], name: str) -> None:
    problem = golden_problem(golden)
    row = approximations.get(SPARSE[name])
    statistics = streamed.statistics_of(problem.prior(row), Cut(problem, row.by_block))
    expected = batch.infer(problem.prior(row), problem.rows)[2].log_evidence
    _, _, info = streamed.infer(problem.prior(row), Cut(problem, row.by_block))
    assert info.log_evidence == pytest.approx(expected, rel=1e-12)
    assert info.log_evidence == pytest.approx(golden["models"][name]["objective"], rel=1e-8)
    assert statistics.n_rows == 20


@pytest.mark.parametrize("change", [None, *CHANGES])
@pytest.mark.parametrize("name", INDUCING_ROWS)
def test_inference_over_groups_is_batch_inference(name: str, change: str | None) -> None:
    problem = random_problem(21)
    problem = problem if change is None else CHANGES[change](problem)
    row = get_row(name)
    _, posterior, info = streamed.infer(problem.prior(row), Cut(problem, row.by_block), problem.rows)
    expected, evidence = problem.infer(row)
    agree((info.log_evidence, *problem.predict(posterior)), (evidence, *problem.predict(expected)), rtol=1e-10)


@pytest.mark.parametrize("change", [None, *CHANGES])
@pytest.mark.parametrize("name", ["vfe", "dtc", "fitc", "pep", "pitc", "block-pep"])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_value_and_gradient_over_groups(
    name: str, change: str | None, n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(22)
    problem = problem if change is None else CHANGES[change](problem)
    expected = problem.hyperparameters()
    value = CollapsedObjective(problem.rows, get_row(name)).value_and_gradient(expected)
    # More threads than this machine has or the last group has units.
    monkeypatch.setattr(parallel, "available", lambda: n_threads)
    hyper = problem.hyperparameters()
    assert objective_of(problem, name).value_and_gradient(hyper) == pytest.approx(value, rel=1e-11)
    agree((hyper.gradient(),), (expected.gradient(),), rtol=1e-9)


@pytest.mark.parametrize("is_safe", [True, False])
def test_both_ways_to_whiten_give_the_gradient(is_safe: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(23)
    expected = problem.hyperparameters()
    value = CollapsedObjective(problem.rows, get_row("vfe")).value_and_gradient(expected)
    asked: list[Block] = []

    def decide(prior: SparsePrior, inverse_L: torch.Tensor, rows: Block) -> bool:
        asked.append(rows)
        return is_safe

    monkeypatch.setattr(direct, "is_safe", decide)
    hyper = problem.hyperparameters()
    assert objective_of(problem, "vfe").value_and_gradient(hyper) == pytest.approx(value, rel=1e-11)
    agree((hyper.gradient(),), (expected.gradient(),), rtol=1e-9)
    assert asked[-1].n_rows == len(problem.y)


def test_learning_over_groups_climbs_to_the_same_place() -> None:
    problem = random_problem(24)
    limits = Limits((1e-6, 10.0), problem.X.amin(0), problem.X.amax(0))
    inside, outside = problem.hyperparameters(), problem.hyperparameters()
    start = CollapsedObjective(problem.rows, get_row("vfe")).value(inside)
    one = lbfgs.maximize(CollapsedObjective(problem.rows, get_row("vfe")), inside, limits, max_iterations=8)
    two = lbfgs.maximize(objective_of(problem, "vfe"), outside, limits, max_iterations=8)
    assert two.objective > start + 1.0
    assert two.objective == pytest.approx(one.objective, rel=1e-6)
    assert two.n_rows == len(problem.y)


def model_of(kind: str, folder: Path, name: str) -> tuple[Any, ...]:
    """Evidence and predictions of a model with given hyper-parameters, in the user's units, from a source."""
    source = OPENERS[kind](folder)
    found = survey(source, np.random.default_rng(0), sample_rows=30)
    units = Standardizer(found.x_mean, found.x_scale, found.y_mean, found.y_scale)
    prior = fixed_prior(units, name)
    _, posterior, info = streamed.infer(prior, ModelRows(source, units, found.n_rows, group_rows=64))
    mean, var = posterior.marginals(prior.inducing + 0.3)
    return info.log_evidence, mean * units.y_scale + units.y_mean, var * units.y_scale**2


def fixed_prior(units: Standardizer, name: str) -> SparsePrior:
    inducing = torch.from_numpy(units.inputs(matrix(columns())[::10]))
    return SparsePrior.build(kernels.Matern52(0.8, [1.2, 0.7, 1.5]), inducing, 0.2, get_row(name))


def in_memory(name: str) -> tuple[Any, ...]:
    """The same model by the batch engine from arrays."""
    table = columns()
    X, kept = matrix(table), table["weight"] > 0
    units = Standardizer.from_data(X, table["y"], table["weight"])
    parts = units.inputs(X), units.targets(table["y"]), table["noise"] / units.y_scale**2, table["weight"]
    block = Block(*(torch.from_numpy(part[kept]) for part in parts))
    prior = fixed_prior(units, name)
    _, posterior, info = batch.infer(prior, Rows(block))
    mean, var = posterior.marginals(prior.inducing + 0.3)
    return info.log_evidence, mean * units.y_scale + units.y_mean, var * units.y_scale**2


@pytest.mark.parametrize("name", ["vfe", "fitc"])
@pytest.mark.parametrize("kind", OPENERS)
def test_every_source_gives_the_model_of_the_arrays_in_memory(kind: str, name: str, tmp_path: Path) -> None:
    agree(model_of(kind, tmp_path, name), in_memory(name), rtol=1e-9)


def test_groups_do_not_depend_on_the_batches_of_the_source() -> None:
    table = columns()
    units = Standardizer.identity(3)

    def groups(batch_rows: int) -> list[Rows]:
        source = open_source(matrix(table), table["y"], sample_weight=table["weight"], batch_rows=batch_rows)
        return list(ModelRows(source, units, int((table["weight"] > 0).sum()), group_rows=50))

    one, two = groups(7), groups(157)
    assert [len(rows) for rows in one][:-1] == [50] * (len(one) - 1)
    for left, right in zip(one, two, strict=True):
        assert torch.equal(left.all.X, right.all.X)
        assert torch.equal(left.all.y, right.all.y)
        assert torch.equal(left.all.weight, right.all.weight)


def test_float32_rows_in_the_model_units() -> None:
    table = columns()
    units = Standardizer.from_data(matrix(table), table["y"], None)
    source = open_source(matrix(table), table["y"], noise_var=table["noise"])
    (rows,) = ModelRows(source, units, 157, dtype=torch.float32)
    assert rows.all.X.dtype == rows.all.noise_var.dtype == torch.float32
    np.testing.assert_allclose(rows.all.noise_var * units.y_scale**2, table["noise"], rtol=1e-6)


def test_a_source_that_changes_between_passes_is_noticed() -> None:
    batches = [(np.ones((5, 2)), np.ones(5))]
    rows = ModelRows(open_source(batches), Standardizer.identity(2), 5)
    assert sum(map(len, rows)) == 5
    batches.append((np.ones((3, 2)), np.ones(3)))
    with pytest.raises(InputError, match="met 5 rows, this one 8"):
        list(rows)


def test_noise_that_comes_and_goes_is_noticed() -> None:
    batches = [(np.ones((5, 2)), np.ones(5)), (np.ones((5, 2)), np.ones(5), np.ones(5))]
    with pytest.raises(InputError, match="give all or none"):
        list(ModelRows(open_source(batches), Standardizer.identity(2), 10))


@pytest.mark.parametrize("name", ["pitc", "pic"])
def test_block_rows_need_blocks(name: str) -> None:
    problem = random_problem(25)
    groups = Cut(problem, by_block=False)
    with pytest.raises(InputError, match=r"is defined by blocks.*write_blocks"):
        streamed.infer(problem.prior(get_row(name)), groups, problem.rows)
    objective = StreamedObjective(groups, get_row(name), 20, 20.0)
    with pytest.raises(InputError, match="is defined by blocks"):
        objective.value_and_gradient(problem.hyperparameters())
    if get_row(name).is_local:
        with pytest.raises(InputError, match="give the blocks as `store`"):
            streamed.infer(problem.prior(get_row(name)), Cut(problem, by_block=True))
