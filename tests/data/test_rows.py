"""Rows wherever they are: the conformance suite over all places, and the same models from any source."""

from __future__ import annotations

import copy
import gc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from problems import CHANGES, INDUCING_ROWS, Problem, agree, get_row, random_problem
from source_problems import OPENERS, columns, matrix
from sparsegp import kernels, parallel
from sparsegp.core import approximations
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.prior import SparsePrior
from sparsegp.data import open_source, scan
from sparsegp.data.disk_rows import write_blocks
from sparsegp.data.rows import SourceRows
from sparsegp.errors import InputError
from sparsegp.fit.scaling import Scaling
from sparsegp.infer import batch
from sparsegp.learn import direct, lbfgs
from sparsegp.learn.hyperparameters import Limits
from sparsegp.learn.objective import CollapsedObjective
from sparsegp.testing import check_rows
from test_golden import SPARSE, golden_problem


@dataclass(frozen=True)
class Cut:
    """`Rows` that come in three groups, of whole blocks where the approximation has blocks."""

    whole: MemoryRows
    by_block: bool

    def __len__(self) -> int:
        return len(self.whole)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def sum(self, task: Any) -> Any:
        return reduce(add, map(task, self.groups()))

    def groups(self) -> Any:
        if self.by_block:
            last = self.whole.n_blocks - 1
            groups = ([0], list(range(1, last)), [last])
            return (self.whole.subset_of_blocks(torch.tensor(group)) for group in groups)
        return (MemoryRows(chunk) for chunk in self.whole.chunks(8))


def cut(problem: Problem, name: str) -> Cut:
    return Cut(problem.rows, get_row(name).by_block)


def objective_of(problem: Problem, name: str) -> CollapsedObjective:
    return CollapsedObjective(cut(problem, name), get_row(name))


def in_memory_rows(change: str | None, *, blocks: bool) -> MemoryRows:
    problem = random_problem(26)
    problem = problem if change is None else CHANGES[change](problem)
    return problem.rows if blocks else MemoryRows(problem.block)


def as_source(rows: MemoryRows, group_rows: int = 6) -> SourceRows:
    block = rows.all
    given = {"noise_var": block.noise_var, "sample_weight": block.weight}
    arrays = {name: None if values is None else values.numpy() for name, values in given.items()}
    source = open_source(block.X.numpy(), block.y.numpy(), batch_rows=5, **arrays)
    found = scan(source, np.random.default_rng(0), sample_rows=11)
    return SourceRows.of(source, found, Scaling.identity(rows.n_features), group_rows=group_rows)


@dataclass(frozen=True)
class LabelOf:
    """The block of each row of a problem, by its inputs."""

    labels: dict[tuple[float, ...], int]

    @classmethod
    def of(cls, rows: MemoryRows) -> LabelOf:
        pairs = ((tuple(x), k) for k in range(rows.n_blocks) for x in rows.block(k).X.tolist())
        return cls(dict(pairs))

    def __call__(self, X: torch.Tensor) -> torch.Tensor:
        return torch.tensor([self.labels[tuple(x)] for x in X.tolist()], dtype=torch.int64)


@pytest.mark.parametrize("change", [None, *CHANGES])
@pytest.mark.parametrize("blocks", [False, True], ids=["no blocks", "blocks"])
def test_rows_in_memory_conform(change: str | None, blocks: bool) -> None:
    rows = in_memory_rows(change, blocks=blocks)
    check_rows(rows, rows)


@pytest.mark.parametrize("change", [None, *CHANGES])
def test_rows_of_a_source_conform(change: str | None) -> None:
    rows = in_memory_rows(change, blocks=False)
    check_rows(as_source(rows), rows)


@pytest.mark.parametrize("change", [None, *CHANGES])
def test_rows_on_disk_conform(change: str | None, tmp_path: Path) -> None:
    rows = in_memory_rows(change, blocks=True)
    assign = LabelOf.of(rows)
    sorted_rows = as_source(rows).in_blocks(assign, rows.n_blocks)
    check_rows(sorted_rows, rows)
    parts = (MemoryRows(chunk) for chunk in MemoryRows(rows.all).chunks(7))
    check_rows(write_blocks(parts, assign, rows.n_blocks, tmp_path / "b", n_rows=len(rows), file_bytes=300), rows)


def test_the_suite_names_what_is_broken() -> None:
    rows = in_memory_rows("weights", blocks=False)
    with pytest.raises(AssertionError, match="total_weight"):
        check_rows(MemoryRows(replace(rows.all, weight=None)), rows)

    class Doubled(Cut):
        def sum(self, task: Any) -> Any:
            return 2.0 * task(self.whole)

    with pytest.raises(AssertionError, match="sums of precision"):
        check_rows(Doubled(rows, by_block=False), rows)


def test_scratch_folders_end_with_their_rows() -> None:
    rows = in_memory_rows(None, blocks=True)
    sorted_rows = as_source(rows).in_blocks(LabelOf.of(rows), rows.n_blocks)
    folder, copied = sorted_rows.folder, copy.deepcopy(sorted_rows)
    del sorted_rows
    assert len(copied.block(0)) == len(rows.block(0))
    del copied
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize("name", ["SoR", "DTC", "VFE", "FITC", "PITC"])
def test_golden_evidence(golden: Mapping[str, Any], name: str) -> None:
    problem = golden_problem(golden)
    row = approximations.get(SPARSE[name])
    rows = Cut(problem.rows, row.by_block)
    statistics = batch.statistics_of(problem.prior(row), rows)
    expected = batch.infer(problem.prior(row), problem.rows)[2].log_evidence
    _, _, info = batch.infer(problem.prior(row), rows)
    assert info.log_evidence == pytest.approx(expected, rel=1e-12)
    assert info.log_evidence == pytest.approx(golden["models"][name]["objective"], rel=1e-8)
    assert statistics.n_rows == 20


@pytest.mark.parametrize("change", [None, *CHANGES])
@pytest.mark.parametrize("name", INDUCING_ROWS)
def test_inference_over_groups_is_batch_inference(name: str, change: str | None) -> None:
    problem = random_problem(21)
    problem = problem if change is None else CHANGES[change](problem)
    row = get_row(name)
    _, posterior, info = batch.infer(problem.prior(row), Cut(problem.rows, row.by_block))
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
    asked: list[Any] = []

    def decide(prior: SparsePrior, inverse_L: torch.Tensor, rows: Any) -> bool:
        asked.append(rows)
        return is_safe

    monkeypatch.setattr(direct, "is_safe", decide)
    hyper = problem.hyperparameters()
    assert objective_of(problem, "vfe").value_and_gradient(hyper) == pytest.approx(value, rel=1e-11)
    agree((hyper.gradient(),), (expected.gradient(),), rtol=1e-9)
    assert asked[-1].total_weight == len(problem.y)


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
    found = scan(source, np.random.default_rng(0), sample_rows=30)
    units = Scaling(found.x_mean, found.x_scale, found.y_mean, found.y_scale)
    prior = fixed_prior(units, name)
    _, posterior, info = batch.infer(prior, SourceRows.of(source, found, units, group_rows=64))
    mean, var = posterior.marginals(prior.inducing + 0.3)
    return info.log_evidence, mean * units.y_scale + units.y_mean, var * units.y_scale**2


def fixed_prior(units: Scaling, name: str) -> SparsePrior:
    inducing = torch.from_numpy(units.inputs(matrix(columns())[::10]))
    return SparsePrior.build(kernels.Matern52(0.8, [1.2, 0.7, 1.5]), inducing, 0.2, get_row(name))


def in_memory(name: str) -> tuple[Any, ...]:
    """The same model by the batch engine from arrays."""
    table = columns()
    X, kept = matrix(table), table["weight"] > 0
    units = Scaling.from_data(X, table["y"], table["weight"])
    parts = units.inputs(X), units.targets(table["y"]), table["noise"] / units.y_scale**2, table["weight"]
    block = Block(*(torch.from_numpy(part[kept]) for part in parts))
    prior = fixed_prior(units, name)
    _, posterior, info = batch.infer(prior, MemoryRows(block))
    mean, var = posterior.marginals(prior.inducing + 0.3)
    return info.log_evidence, mean * units.y_scale + units.y_mean, var * units.y_scale**2


@pytest.mark.parametrize("name", ["vfe", "fitc"])
@pytest.mark.parametrize("kind", OPENERS)
def test_every_source_gives_the_model_of_the_arrays_in_memory(kind: str, name: str, tmp_path: Path) -> None:
    agree(model_of(kind, tmp_path, name), in_memory(name), rtol=1e-9)


def test_groups_do_not_depend_on_the_batches_of_the_source() -> None:
    table = columns()
    units = Scaling.identity(3)

    def groups(batch_rows: int) -> list[MemoryRows]:
        source = open_source(matrix(table), table["y"], sample_weight=table["weight"], batch_rows=batch_rows)
        found = scan(source, np.random.default_rng(0))
        return list(SourceRows.of(source, found, units, group_rows=50))

    one, two = groups(7), groups(157)
    assert [len(rows) for rows in one][:-1] == [50] * (len(one) - 1)
    for left, right in zip(one, two, strict=True):
        assert torch.equal(left.all.X, right.all.X)
        assert torch.equal(left.all.y, right.all.y)
        assert torch.equal(left.all.weight, right.all.weight)


def test_float32_rows_in_the_model_units() -> None:
    table = columns()
    units = Scaling.from_data(matrix(table), table["y"], None)
    source = open_source(matrix(table), table["y"], noise_var=table["noise"])
    found = scan(source, np.random.default_rng(0))
    (rows,) = SourceRows.of(source, found, units, torch.empty(0, dtype=torch.float32))
    assert rows.all.X.dtype == rows.all.noise_var.dtype == torch.float32
    np.testing.assert_allclose(rows.all.noise_var * units.y_scale**2, table["noise"], rtol=1e-6)


def test_a_source_that_changes_between_passes_is_noticed() -> None:
    batches = [(np.ones((5, 2)), np.ones(5))]
    source = open_source(batches)
    rows = SourceRows.of(source, scan(source, np.random.default_rng(0)), Scaling.identity(2))
    assert sum(map(len, rows)) == 5
    batches.append((np.ones((3, 2)), np.ones(3)))
    with pytest.raises(InputError, match="met 5 rows, this one 8"):
        list(rows)


def test_noise_that_comes_and_goes_is_noticed() -> None:
    batches = [(np.ones((5, 2)), np.ones(5)), (np.ones((5, 2)), np.ones(5), np.ones(5))]
    with pytest.raises(InputError, match="give all or none"):
        scan(open_source(batches), np.random.default_rng(0))


@pytest.mark.parametrize("name", ["pitc", "pic"])
def test_approximations_by_blocks_need_blocks(name: str) -> None:
    problem = random_problem(25)
    for rows in (MemoryRows(problem.block), as_source(MemoryRows(problem.block))):
        with pytest.raises(InputError, match="blocks"):
            batch.infer(problem.prior(get_row(name)), rows)
        with pytest.raises(InputError, match="blocks"):
            CollapsedObjective(rows, get_row(name)).value_and_gradient(problem.hyperparameters())
