"""Carried SRGP: increments of the gradient against the batch gradient, and learning with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.carried_srgp.forward_gradient import ForwardGradient
from papers.carried_srgp.kernel_tangents import (
    DirectionalTangents,
    StationaryTangents,
    difference_quotient,
    forward_derivative,
    make_tangents,
)
from papers.carried_srgp.optimizer import CarriedEpoch, Settings, as_vector, maximize
from problems import CHANGES, KERNELS, Problem, get_row, random_problem
from sparsegp import kernels
from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.prior import SparsePrior
from sparsegp.errors import FactorizationError
from sparsegp.learn import lbfgs
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective
from sparsegp.learn.srgp import counted_for_all, gradient_alone
from test_golden import Golden, golden_problem, ordered_gradient, row_of, two_dimensional_problem
from test_srgp import (
    batch_gradient,
    check_known_noise_and_weights,
    check_seeds_and_callbacks,
    learning_problem,
    near,
    start,
)

POINT_ROWS = ("sor", "dtc", "vfe", "fitc", "fic", "pep", "points")


def forward_sum(hyper: Hyperparameters, row: Approximation, rows: MemoryRows, sizes: list[int]) -> np.ndarray:
    """The increments of consecutive batches of the given sizes, summed, as `Hyperparameters.gradient` orders them."""
    forward = ForwardGradient(hyper, row, learns_noise=rows.all.noise_var is None)
    prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, row)
    state, total = forward.init(prior), np.zeros(len(hyper.vector()))
    for batch in torch.arange(len(rows)).split(sizes):
        state, increment = forward.step(state, prior, rows.all.take(batch))
        total += as_vector(hyper, increment)
    missing = forward.deferred(state, prior, rows)
    return total if missing is None else total + as_vector(hyper, missing)


def pair(problem: Problem, name: str, sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    row, rows = get_row(name), MemoryRows(problem.block)
    return forward_sum(problem.hyperparameters(), row, rows, sizes), batch_gradient(
        problem.hyperparameters(), row, rows
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", POINT_ROWS)
def test_increments_sum_to_the_batch_gradient(name: str, kernel: str) -> None:
    # differences instead of derivatives for rq and product
    rtol = 1e-7 if kernel in ("rq", "product") else 1e-9
    near(*pair(random_problem(31 + len(kernel), kernel), name, [7, 1, 9, 3]), rtol)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", POINT_ROWS)
def test_increments_with_row_noise_and_weights(name: str, change: str) -> None:
    near(*pair(CHANGES[change](random_problem(41, "se+linear")), name, [6, 6, 8]))


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from(["vfe", "fitc", "pep"]), st.integers(1, 19), st.integers(1, 3))
def test_the_sum_does_not_depend_on_the_batches(seed: int, name: str, first: int, n_dims: int) -> None:
    problem = random_problem(seed, "se-ard", n_dims)
    near(*pair(problem, name, [first, 20 - first]), rtol=1e-8)


@pytest.mark.parametrize("model", ["DTC", "VFE", "FITC", "PEP"])
def test_golden_gradients(golden: Golden, model: str) -> None:
    cases = [(golden_problem(golden), golden["models"][model]["grad"])]
    cases.append((two_dimensional_problem(), golden["ard2d"]["models"][model]["grad"]))
    for problem, expected in cases:
        hyper, rows = problem.hyperparameters(), problem.rows
        total = forward_sum(hyper, row_of(golden, model), rows, [5, 4, 5, 6])
        hyper.load_vector(total)
        for parameter in hyper.parameters():
            parameter.grad = parameter.detach().clone()
        near(ordered_gradient(hyper), np.array(expected), 1e-8)


@pytest.mark.parametrize("name", ["vfe", "pep"])
def test_a_single_increment_is_the_difference_of_two_gradients(name: str) -> None:
    """d psi_2 = d J(both batches) - d J(first batch), up to the dense part of FITC and PEP that waits."""
    problem = random_problem(51)
    row, rows = get_row(name), MemoryRows(problem.block)
    fixed = Hyperparameters(problem.kernel, problem.noise_var, problem.inducing, learn_inducing=name == "vfe")
    first = batch_gradient(fixed, row, rows.subset(torch.arange(12)))
    expected = batch_gradient(fixed, row, rows) - first
    near(
        forward_sum(fixed, row, rows, [12, 8]) - forward_sum(fixed, row, rows.subset(torch.arange(12)), [12]), expected
    )


@pytest.mark.parametrize("name", ["vfe", "fitc"])
def test_increments_where_jitter_is_needed(name: str) -> None:
    crowded = torch.linspace(-0.3, 0.3, 12, dtype=torch.float64)[:, None]
    problem = random_problem(61, n_dims=1)
    hyper = Hyperparameters(kernels.SquaredExponential(1.7, 2.5), 0.2, crowded)
    rows, row = MemoryRows(problem.block), get_row(name)
    got = forward_sum(hyper, row, rows, [11, 9])
    objective = CollapsedObjective(rows, row)
    objective.value_and_gradient(hyper)
    assert objective.jitter > 0.0
    near(got, hyper.gradient(), 1e-4)


def test_float32_rows_give_nearly_the_float64_increments() -> None:
    problem = random_problem(71)
    single = MemoryRows(Block(problem.X.float(), problem.y.float()))
    got = forward_sum(problem.hyperparameters(), get_row("fitc"), single, [10, 10])
    near(got, batch_gradient(problem.hyperparameters(), get_row("fitc"), MemoryRows(problem.block)), 1e-5)


@pytest.mark.parametrize("kernel", ["se-ard", "matern32"])
def test_closed_tangents_are_those_of_differences(kernel: str) -> None:
    problem = random_problem(91, kernel)
    closed = make_tangents(problem.kernel, problem.inducing)
    assert isinstance(closed, StationaryTangents)
    general = DirectionalTangents(problem.kernel, difference_quotient)
    assert closed.n_shared == general.n_shared
    n = closed.n_shared + 2
    K, tangents = closed.covariance(problem.X, problem.inducing, n)
    torch.testing.assert_close(K, problem.kernel(problem.X, problem.inducing).detach(), rtol=1e-12, atol=1e-12)
    expected = list(general.covariance(problem.X, problem.inducing, n)[1])
    for tangent, reference in zip((t.clone() for t in tangents), expected, strict=True):
        torch.testing.assert_close(tangent, reference, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(closed.diagonal(problem.X), general.diagonal(problem.X), rtol=1e-8, atol=1e-9)


def test_tangents_of_some_columns_and_forward_mode() -> None:
    problem = random_problem(92, "se-ard", 3)
    partial = kernels.SquaredExponential(1.3, [0.7, 1.1], active_dims=[2, 0])
    modes = [make_tangents(partial, problem.inducing), DirectionalTangents(partial, forward_derivative)]
    closed, forward = (
        [t.clone() for t in mode.covariance(problem.X, problem.inducing, mode.n_shared + 3)[1]] for mode in modes
    )
    for tangent, reference in zip(closed, forward, strict=True):
        torch.testing.assert_close(tangent, reference, rtol=1e-10, atol=1e-12)
    assert make_tangents(partial + kernels.Linear(0.3), problem.inducing).derivative is forward_derivative
    assert make_tangents(kernels.RationalQuadratic(), problem.inducing).derivative is difference_quotient


@pytest.mark.parametrize(
    ("chosen", "n_epochs"),
    [
        (Settings(rate=0.06, batch_rows=40), 15),
        (Settings(batch_rows=40, horizon=20), 15),
        (Settings(batch_rows=400), 90),
    ],
)
@pytest.mark.parametrize("name", ["vfe", "dtc", "fitc", "pep"])
def test_learning_comes_close_to_lbfgs(name: str, chosen: Settings, n_epochs: int) -> None:
    rows, limits = learning_problem()
    row = approximations.get(name)
    reference = lbfgs.maximize(CollapsedObjective(rows, row), start(rows), limits, max_iterations=40).objective
    hyper, objective = start(rows), CollapsedObjective(rows, row)
    before = objective.value(hyper)
    result = maximize(objective, hyper, limits, max_iterations=n_epochs, settings=chosen)
    assert result.objective > before + 0.9 * (reference - before)
    assert objective.value(hyper) == pytest.approx(result.objective, rel=1e-9)
    assert 0 < result.iterations <= n_epochs
    assert (hyper.inducing >= limits.lower - 1e-12).all()
    assert (hyper.inducing <= limits.upper + 1e-12).all()


@pytest.mark.parametrize("name", ["vfe", "dtc", "fitc", "pep"])
def test_a_batch_alone_has_the_gradient_of_the_recursion(name: str) -> None:
    rows, limits = learning_problem(180)
    hyper, objective = start(rows, 5), CollapsedObjective(rows, get_row(name))
    counted = counted_for_all(rows, torch.arange(60))
    alone = gradient_alone(objective, hyper, counted)
    (carried,) = CarriedEpoch(objective, hyper, limits, Settings()).carried(counted, [60])
    near(alone, carried)


def test_rows_of_a_stretch_stand_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, limits = learning_problem(100)
    epoch = CarriedEpoch(
        CollapsedObjective(rows, get_row("vfe")), start(rows, 2), limits, Settings(batch_rows=15, horizon=3)
    )
    stretches = epoch.stretches()
    assert [len(stretch) for stretch in stretches] == [4, 3]
    assert sorted(torch.cat([torch.cat(stretch) for stretch in stretches]).tolist()) == list(range(100))
    seen = []
    monkeypatch.setattr(epoch, "carried", lambda block, sizes: seen.append((block.n_rows, sizes)) or [])
    epoch(1.0)
    assert [n_rows for n_rows, _ in seen] == pytest.approx([100.0, 100.0])
    assert [sum(sizes) for _, sizes in seen] == [len(torch.cat(stretch)) for stretch in stretches]


@pytest.mark.parametrize(("batch_rows", "horizon"), [(40, 10), (100, 4), (400, 1), (1_000, 1)])
def test_the_state_is_carried_over_enough_rows_for_the_inducing_values(batch_rows: int, horizon: int) -> None:
    assert Settings().stretch(batch_rows, 20) == horizon
    assert Settings(horizon=7).stretch(batch_rows, 20) == 7


@pytest.mark.parametrize("horizon", [1, 4])
def test_known_noise_and_weights_stay_what_they_are(horizon: int) -> None:
    check_known_noise_and_weights(maximize, Settings(batch_rows=50, horizon=horizon))


def test_same_seed_same_result_and_callbacks_stop() -> None:
    check_seeds_and_callbacks(maximize, lambda seed: Settings(batch_rows=50, seed=seed))


def test_a_failed_epoch_returns_to_the_best_point(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, limits = learning_problem(400)
    original, calls = ForwardGradient.step, []

    def fails_once(self, state, prior, batch):
        calls.append(1)
        if len(calls) == 4:
            raise FactorizationError("for the test")
        return original(self, state, prior, batch)

    monkeypatch.setattr(ForwardGradient, "step", fails_once)
    hyper, objective = start(rows), CollapsedObjective(rows, get_row("vfe"))
    before = objective.value(hyper)
    result = maximize(objective, hyper, limits, max_iterations=4, settings=Settings(batch_rows=50))
    assert result.objective > before
    assert len(calls) == 4 + 3 * 8
