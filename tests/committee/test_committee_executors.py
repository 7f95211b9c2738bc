"""Experts on workers that part no memory: sums as in one process, and what an expert's error does to the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from problems import agree
from sparsegp import kernels
from sparsegp.committee import shared_learning
from sparsegp.committee.experts import DenseSpec, ExpertSpec, Recipe
from sparsegp.core import approximations
from sparsegp.core.block import Block
from sparsegp.errors import FactorizationError
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import Objective
from sparsegp.learn.sum_objective import SumObjective, place
from sparsegp.learn.trace import Terms
from sparsegp.parallel import Executor, Placed, Threads
from sparsegp.processes import Processes


class Scripted(Threads):
    """An executor that has all answers, and gives them in the order of the items."""

    def step(self, fn, placed, *broadcast, each=None):
        return placed, [placed.handles[k] for k in range(len(placed))]


@given(st.permutations(range(5)))
def test_sums_do_not_depend_on_who_has_which_expert(order: list[int]) -> None:
    values = [1e16, 1.0, -1e16, 3.0, 0.1]
    hyper = problem("exact")[1]
    answers = [(value, tuple(np.full(p.shape, value) for p in hyper.parameters())) for value in values]
    placed = Placed(tuple(answers), tuple(order), tuple(map(float, order)))
    total = SumObjective(Scripted(), placed, 5).value_and_gradient(hyper)
    assert total == sum(values)
    assert all((p.grad == sum(values)).all() for p in hyper.parameters())


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(2) as started:
        yield started


def problem(row: str) -> tuple[list[ExpertSpec], Hyperparameters, shared_learning.Lesson]:
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.uniform(-3.0, 3.0, (180, 2)))
    y = torch.sin(2.0 * X[:, 0]) + 0.4 * X[:, 1] + 0.1 * torch.from_numpy(rng.standard_normal(180))
    kernel = kernels.Matern52(1.5, [2.0, 0.7])
    recipe = Recipe(approximations.get(row), 6, "random", kernel, torch.ones(2, dtype=torch.float64), rng)
    specs = [recipe.spec(Block(X[a:b], y[a:b])) for a, b in ((0, 40), (40, 140), (140, 180))]
    limits = shared_learning.Limits((1e-4, 10.0), X.amin(0), X.amax(0))
    schedule = shared_learning.Schedule(inducing_iterations=2)
    lesson = shared_learning.Lesson(Terms(limits, rng), True, schedule=schedule)
    return specs, Hyperparameters(kernel, 0.1, X[:1], learn_inducing=False), lesson


def evaluated(specs: Placed, shared: Hyperparameters, executor: Executor) -> list[tuple[float, np.ndarray]]:
    """Three evaluations: experts go on from where the one before left them."""
    objective, start, found = SumObjective.of(specs, shared, executor), shared.vector(), []
    assert objective.n_rows == 180
    for shift in (0.0, 0.1, 0.0):
        shared.load_vector(start + shift)
        found.append((objective.value_and_gradient(shared), shared.gradient().copy()))
    shared.load_vector(start)
    return found


def everything(row: str, executor: Executor) -> list[tuple[float, np.ndarray]]:
    """Evaluations before and after inducing inputs are learned, and the evidence of every expert in the end."""
    specs, shared, lesson = problem(row)
    lesson = replace(lesson, executor=executor)
    placed = place(specs, executor)
    better = shared_learning.with_own_inducing(shared_learning.Learned(specs, placed), shared, lesson).placed
    found = evaluated(placed, shared, executor) + evaluated(better, shared, executor)
    inference = shared_learning.infer(better, shared, executor, communicates=True)
    return [*found, (inference.log_evidence, np.array([len(inference.experts)]))]


@pytest.mark.parametrize("row", ["exact", "vfe"])
def test_all_executors_add_up_and_learn_as_one_thread_does(processes: Processes, row: str) -> None:
    expected = everything(row, Threads(1))
    for executor in (Threads(2), processes):
        for (value, gradient), (reference, slope) in zip(everything(row, executor), expected, strict=True):
            agree((value, gradient), (reference, slope), 1e-9)


@dataclass(frozen=True)
class Hopeless(DenseSpec):
    """An expert whose matrix is not positive definite."""

    @property
    def objective(self) -> Objective:
        raise FactorizationError("K is not positive definite.")


def test_errors_of_an_expert_come_back_as_they_are(processes: Processes) -> None:
    specs, shared, _ = problem("exact")
    assert isinstance(specs[0], DenseSpec)
    with pytest.raises(FactorizationError, match="positive definite"):
        SumObjective.of(place([Hopeless(specs[0].block)], processes), shared, processes)
    objective = SumObjective.of(place(specs, processes), shared, processes)
    assert np.isfinite(objective.value_and_gradient(shared))


@pytest.mark.parametrize("row", ["exact", "vfe"])
def test_an_evaluation_after_one_that_failed_starts_from_the_one_before(processes: Processes, row: str) -> None:
    for executor in (Threads(2), processes):
        specs, shared, _ = problem(row)
        objective = SumObjective.of(place(specs, executor), shared, executor)
        value, good, members = objective.value_and_gradient(shared), shared.vector(), objective.members
        shared.load_vector(np.full_like(good, np.nan))
        with pytest.raises(FactorizationError):
            objective.value_and_gradient(shared)
        assert objective.members is members
        shared.load_vector(good)
        assert objective.value_and_gradient(shared) == pytest.approx(value, rel=1e-9)


def test_objectives_on_the_same_workers_do_not_disturb_one_another(processes: Processes) -> None:
    specs, shared, _ = problem("vfe")
    placed = place(specs, processes)
    all_of_them = SumObjective.of(placed, shared, processes)
    value = all_of_them.value_and_gradient(shared)
    two = SumObjective.of(placed.subset([2, 0]), shared, processes)
    assert two.n_rows == 80
    assert two.value_and_gradient(shared) != value
    assert all_of_them.value_and_gradient(shared) == pytest.approx(value, rel=1e-12)


def test_every_stage_of_learning_is_divided_among_workers(processes: Processes) -> None:
    specs, shared, lesson = problem("exact")
    specs = [specs[0], specs[2]] * 8
    lesson = replace(lesson, executor=processes, schedule=shared_learning.Schedule((4, 8), (1, 1)))
    order = np.random.default_rng(3).permutation(len(specs))
    learned = next(
        shared_learning.learn(specs, shared, replace(lesson, terms=replace(lesson.terms, rng=np.random.default_rng(3))))
    )
    assert learned.results == ()
    for n_experts in (4, 8, 16):
        homes = learned.placed.subset(order[:n_experts]).homes
        assert homes.count(0) == homes.count(1) == n_experts // 2


@pytest.mark.parametrize("row", ["exact", "vfe"])
def test_more_rows_are_more_work(row: str) -> None:
    small, large, _ = problem(row)[0]
    assert 0.0 < small.work < large.work
