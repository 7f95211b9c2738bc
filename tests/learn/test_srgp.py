"""SRGP on mini-batches that stand alone, distributed accumulation of the gradient, and learning with both."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from problems import get_row, random_problem
from sparsegp import SparseGPRegressor, kernels, linalg
from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.errors import FactorizationError, InputError
from sparsegp.learn import lbfgs
from sparsegp.learn.adam import AdamSteps
from sparsegp.learn.adjoint import SharedAdjoint, inducing_adjoint
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.objective import (
    CollapsedObjective,
    ExactObjective,
    inducing_through_kernel,
    noise_adjoint,
    through_kernel,
)
from sparsegp.learn.srgp import (
    Decay,
    Settings,
    batch_size,
    counted_for_all,
    gradient_alone,
    maximize,
    random_batches,
    run_epochs,
)
from sparsegp.learn.trace import LearningResult


def batch_gradient(hyper: Hyperparameters, row: Approximation, rows: MemoryRows) -> np.ndarray:
    CollapsedObjective(rows, row).value_and_gradient(hyper)
    return hyper.gradient()


def near(got: np.ndarray, expected: np.ndarray, rtol: float = 1e-9) -> None:
    np.testing.assert_allclose(got, expected, rtol=0.0, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize("name", ["dtc", "vfe", "fitc", "pep", "pitc"])
def test_distributed_accumulation_gives_the_batch_gradient(name: str) -> None:
    """003 sec. 4.2: two workers sum statistics, then gradients from the broadcast posterior; then both are summed."""
    problem, row = random_problem(81), get_row(name)
    hyper, rows = problem.hyperparameters(), problem.rows
    expected = batch_gradient(hyper, row, rows)
    prior = problem.prior(row)
    units = (
        list(rows.groups(True)) if row.by_block else [rows.all.take(part) for part in torch.arange(20).split([7, 13])]
    )
    workers = [(copy.deepcopy(hyper), units[:1]), (copy.deepcopy(hyper), units[1:])]
    statistics = sum(BlockStatistics.from_blocks(prior, share) for _, share in workers)
    q = InducingPosterior.from_statistics(statistics)
    shared = SharedAdjoint.build(prior, q, linalg.inverse_lower(prior.Luu.factor), direct=False)
    gram, noise = torch.zeros_like(statistics.precision), torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        for own, share in workers:
            own.clear_gradient()
            for block in share:
                adjoint = through_kernel(own, prior, shared, block)
                gram += 0.0 if adjoint.residual_gram is None else adjoint.residual_gram
                noise += 0.0 if adjoint.noise is None else adjoint.noise.sum()
        Kuu_bar = inducing_adjoint(prior, shared, statistics.precision, gram if row.keeps_residual else None)
        inducing_through_kernel(workers[0][0], prior, Kuu_bar)
        noise = noise if row.keeps_residual else noise_adjoint(prior, statistics, q)
    workers[0][0].log_noise_var.grad = noise * prior.noise_var
    near(sum(own.gradient() for own, _ in workers), expected)


def learning_problem(n: int = 800) -> tuple[MemoryRows, Limits]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, dtype=torch.float64, generator=generator) * 6 - 3
    y = torch.sin(2 * X[:, 0]) + 0.1 * torch.randn(n, dtype=torch.float64, generator=generator)
    return MemoryRows(Block(X, y)), Limits((1e-6, 10.0), X.amin(0), X.amax(0))


def start(rows: MemoryRows, M: int = 20) -> Hyperparameters:
    return Hyperparameters(kernels.SquaredExponential(1.0, [1.5, 1.5]), 0.5, rows.all.X[:M])


@pytest.mark.parametrize("name", ["vfe", "dtc", "fitc", "pep"])
def test_learning_comes_close_to_lbfgs(name: str) -> None:
    rows, limits = learning_problem()
    row = approximations.get(name)
    reference = lbfgs.maximize(CollapsedObjective(rows, row), start(rows), limits, max_iterations=40).objective
    hyper, objective = start(rows), CollapsedObjective(rows, row)
    before = objective.value(hyper)
    result = maximize(objective, hyper, limits, max_iterations=90, settings=Settings(batch_rows=400))
    assert result.objective > before + 0.9 * (reference - before)
    assert objective.value(hyper) == pytest.approx(result.objective, rel=1e-9)
    assert 0 < result.iterations <= 90
    assert (hyper.inducing >= limits.lower - 1e-12).all()
    assert (hyper.inducing <= limits.upper + 1e-12).all()


def test_a_batch_counts_for_all_rows() -> None:
    rows, _ = learning_problem(90)
    hyper, row = start(rows, 5), get_row("vfe")
    batches = random_batches(90, 30, np.random.default_rng(0))
    assert sorted(torch.cat(batches).tolist()) == list(range(90))
    counted = counted_for_all(rows, batches[0])
    assert (len(counted), counted.n_rows) == (30, pytest.approx(90.0))
    got = gradient_alone(CollapsedObjective(rows, row), hyper, counted)
    near(got * 90.0, batch_gradient(hyper, row, MemoryRows(counted)))
    everything = counted_for_all(rows, torch.arange(90))
    assert everything.weight is None


def test_known_noise_and_weights_stay_what_they_are() -> None:
    check_known_noise_and_weights(maximize, Settings(batch_rows=50))


def check_seeds_and_callbacks(climb: Callable[..., LearningResult], settings: Callable[[int], Any]) -> None:
    """The same seed, the same result; a callback stops after the step that it wants to be the last."""
    rows, limits = learning_problem(400)
    ends = []
    for seed in (3, 3, 4):
        hyper = start(rows)
        climb(CollapsedObjective(rows, get_row("vfe")), hyper, limits, max_iterations=2, settings=settings(seed))
        ends.append(hyper.vector())
    np.testing.assert_array_equal(ends[0], ends[1])
    assert np.abs(ends[0] - ends[2]).max() > 1e-6
    steps = []
    stopped = climb(
        CollapsedObjective(rows, get_row("vfe")),
        start(rows),
        limits,
        on_step=lambda step: bool(steps.append(step)) or len(steps) == 2,
    )
    assert (stopped.stopped, stopped.iterations, len(steps)) == (True, 2, 2)


def check_known_noise_and_weights(climb: Callable[..., LearningResult], settings: Any) -> None:
    rows, limits = learning_problem(200)
    known = Block(rows.all.X, rows.all.y, torch.full_like(rows.all.y, 0.01), torch.full_like(rows.all.y, 2.0))
    hyper, objective = start(rows, 5), CollapsedObjective(MemoryRows(known), get_row("vfe"))
    before = objective.value(hyper)
    assert climb(objective, hyper, limits, max_iterations=5, settings=settings).objective > before
    assert float(hyper.noise_var.detach()) == pytest.approx(0.5)


def test_same_seed_same_result_and_callbacks_stop() -> None:
    check_seeds_and_callbacks(maximize, lambda seed: Settings(batch_rows=200, seed=seed))


def test_a_failed_epoch_returns_to_the_best_point() -> None:
    rows, _ = learning_problem(400)
    hyper, objective = start(rows), CollapsedObjective(rows, get_row("vfe"))
    first, fractions = hyper.vector(), []

    def fails_once(fraction: float) -> None:
        fractions.append(fraction)
        hyper.load_vector(hyper.vector() + 100.0 if len(fractions) == 1 else first)
        if len(fractions) == 1:
            raise FactorizationError("for the test")

    result = run_epochs(fails_once, objective, hyper, Decay(), max_iterations=3, tolerance=1e-6)
    np.testing.assert_array_equal(hyper.vector(), first)
    assert (result.objective, len(fractions)) == (pytest.approx(objective.value(hyper)), 3)
    np.testing.assert_allclose(fractions, [1.0, 0.03**0.5, 0.03])


@pytest.mark.parametrize("name", ["pitc", "pic", "block-pep"])
def test_block_rows_are_refused(name: str) -> None:
    problem = random_problem(95)
    limits = Limits((1e-6, 10.0), problem.X.amin(0), problem.X.amax(0))
    with pytest.raises(InputError, match="vfe, dtc, fitc, pep, sor and fic"):
        maximize(CollapsedObjective(problem.rows, get_row(name)), problem.hyperparameters(), limits)
    with pytest.raises(InputError, match="lbfgs"):
        maximize(ExactObjective(problem.block), problem.hyperparameters(), limits)


def test_adam_steps_are_those_of_torch() -> None:
    rng, rate = np.random.default_rng(0), 0.05
    ours, theirs = np.zeros(4), torch.zeros(4, dtype=torch.float64)
    steps, peer = AdamSteps((0.9, 0.95)), torch.optim.Adam([theirs], lr=rate, betas=(0.9, 0.95), maximize=True)
    for _ in range(30):
        gradient = rng.standard_normal(4) * [1.0, 1e-3, 1e3, 0.0]
        ours = ours + steps.step(gradient, rate)
        theirs.grad = torch.from_numpy(gradient)
        peer.step()
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)


@pytest.mark.parametrize("name", ["pitc", "pic", "block-pep", "exact", "sod"])
def test_the_regressor_refuses_srgp_before_it_looks_at_the_rows(name: str) -> None:
    with pytest.raises(InputError, match="mini-batches of rows"):
        SparseGPRegressor(approximation=name, optimizer="srgp").fit(None, None)


def test_the_regressor_learns_by_srgp() -> None:
    rows, _ = learning_problem(800)
    X, y = rows.all.X.numpy(), rows.all.y.numpy()
    model = SparseGPRegressor(approximation="vfe", n_inducing=20, optimizer="srgp", random_state=0).fit(
        X[:700], y[:700]
    )
    assert model.score(X[700:], y[700:]) > 0.9
    assert model.info_["evaluations"] > 1


@pytest.mark.parametrize(
    ("n_rows", "n_inducing", "size"),
    [(50, 60, 50), (4_000, 60, 1_200), (100_000, 60, 5_000), (1_000_000, 60, 10_000), (1_000_000, 800, 16_000)],
)
def test_batch_sizes(n_rows: int, n_inducing: int, size: int) -> None:
    assert batch_size(n_rows, n_inducing) == size
    assert batch_size(n_rows, n_inducing, 30) == 30
