"""Exact gradients against central finite differences of the value, for every (row, kernel)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from problems import (
    CHANGES,
    COMBINATIONS,
    INDUCING_ROWS,
    KERNELS,
    Problem,
    get_row,
    random_problem,
    with_row_noise,
    with_weights,
)
from sparsegp import kernels, linalg
from sparsegp.core import approximations, noise_model
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.prior import SparsePrior
from sparsegp.learn import direct
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective, ExactObjective, Objective, objective_of
from sparsegp.testing import oracle


def make_objective(problem: Problem, name: str) -> Objective:
    if name == "exact":
        return ExactObjective(problem.block)
    return CollapsedObjective(problem.rows, get_row(name))


def value_of(objective: Objective, hyper: Hyperparameters) -> float:
    if isinstance(objective, CollapsedObjective):
        return objective.value(hyper)
    return objective.value_and_gradient(hyper)


def gradient_of(objective: Objective, problem: Problem) -> np.ndarray:
    hyper = problem.hyperparameters()
    objective.value_and_gradient(hyper)
    return hyper.gradient()


def near(got: np.ndarray, expected: np.ndarray, rtol: float) -> None:
    """Relative to the largest entry of the gradient."""
    np.testing.assert_allclose(got, expected, rtol=0.0, atol=rtol * np.abs(expected).max())


def check_gradient(objective: Objective, hyper: Hyperparameters, rtol: float = 1e-6, step: float = 1e-5) -> None:
    start = hyper.vector()
    value = objective.value_and_gradient(hyper)
    gradient = hyper.gradient()

    def moved(vector: np.ndarray) -> float:
        hyper.load_vector(vector)
        return value_of(objective, hyper)

    near(gradient, oracle.gradient(moved, start, step), rtol)
    assert value == pytest.approx(moved(start), rel=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["exact", *INDUCING_ROWS, *COMBINATIONS])
def test_gradient_of_every_row_and_kernel(name: str, kernel: str) -> None:
    problem = random_problem(100 + len(kernel), kernel)
    check_gradient(make_objective(problem, name), problem.hyperparameters())


@pytest.mark.parametrize("n_dims", [1, 3])
@pytest.mark.parametrize("name", ["vfe", "fitc", "block-pep"])
def test_gradient_in_other_dimensions(name: str, n_dims: int) -> None:
    problem = random_problem(111, "rq", n_dims)
    check_gradient(make_objective(problem, name), problem.hyperparameters())


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["exact", *INDUCING_ROWS, *COMBINATIONS])
def test_gradient_with_row_noise_and_weights(name: str, change: str) -> None:
    problem = CHANGES[change](random_problem(121, "se+linear"))
    check_gradient(make_objective(problem, name), problem.hyperparameters())


def test_known_noise_leaves_the_models_own_without_gradient() -> None:
    problem = with_row_noise(random_problem(122))
    for name in ("exact", "vfe", "fitc", "pitc"):
        hyper = problem.hyperparameters()
        make_objective(problem, name).value_and_gradient(hyper)
        assert hyper.log_noise_var.grad is None


@pytest.mark.parametrize(("power", "rtol"), [(0.0, 1e-12), (1e-6, 1e-4), (1.0, 1e-12)])
@pytest.mark.parametrize("by_block", [False, True])
def test_gradient_of_power_ep_is_regular_at_both_ends(power: float, by_block: bool, rtol: float) -> None:
    problem = with_weights(random_problem(131))
    limit = "vfe" if power < 0.5 else "pitc" if by_block else "fitc"
    power_ep = CollapsedObjective(problem.rows, approximations.power_ep(power, by_block=by_block))
    near(gradient_of(power_ep, problem), gradient_of(make_objective(problem, limit), problem), rtol)


@pytest.mark.parametrize("name", ["vfe", "fitc", "points"])
def test_gradient_does_not_depend_on_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(141)
    whole = gradient_of(make_objective(problem, name), problem)
    monkeypatch.setattr("sparsegp.core.block.MemoryRows.chunks.__defaults__", (3,))
    near(gradient_of(make_objective(problem, name), problem), whole, 1e-12)


@pytest.mark.parametrize("name", INDUCING_ROWS)
def test_gradient_where_jitter_is_needed(name: str) -> None:
    """Twelve close inducing inputs, a long lengthscale: value and gradient see the same jittered matrix."""
    crowded = torch.linspace(-0.3, 0.3, 12, dtype=torch.float64)[:, None]
    kernel = kernels.SquaredExponential(1.7, 2.5)
    problem = replace(random_problem(151, n_dims=1), inducing=crowded, kernel=kernel)
    objective = CollapsedObjective(problem.rows, get_row(name))
    objective.value(problem.hyperparameters())
    jitter = objective.jitter
    assert jitter > 0.0
    check_gradient(objective, problem.hyperparameters(), rtol=1e-4, step=1e-4)
    assert objective.jitter == jitter


@pytest.mark.parametrize("name", ["exact", "vfe", "fitc", "pitc"])
def test_fixed_parameters_are_left_out_of_the_vector(name: str) -> None:
    problem = random_problem(161)
    fixed = {"learn_noise": False, "learn_inducing": False}
    hyper = Hyperparameters(problem.kernel, problem.noise_var, problem.inducing, **fixed)
    assert len(hyper.vector()) == 3
    check_gradient(make_objective(problem, name), hyper)


@pytest.mark.parametrize("name", INDUCING_ROWS)
def test_float32_rows_give_nearly_the_float64_gradient(name: str) -> None:
    problem = random_problem(171)
    single = replace(problem, X=problem.X.float(), y=problem.y.float())
    expected = gradient_of(make_objective(problem, name), problem)
    near(gradient_of(make_objective(single, name), single), expected, 1e-3)


@pytest.mark.parametrize("name", ["vfe", "dtc"])
def test_learning_without_whitening_gives_the_same_value_and_gradient(name, monkeypatch):
    generator = torch.Generator().manual_seed(3)
    X = 4.0 * torch.rand(200, 2, dtype=torch.float64, generator=generator)
    noise_var = 0.02 + 0.1 * torch.rand(200, dtype=torch.float64, generator=generator)
    weight = torch.randint(1, 4, (200,), generator=generator).to(torch.float64)
    values, gradients = [], []
    for limit in (0.0, float("inf")):
        monkeypatch.setattr(direct, "LARGEST_LOSS", limit)
        for known in (None, noise_var):
            rows = MemoryRows(Block(X, torch.sin(X[:, 0]), known, weight))
            hyper = Hyperparameters(kernels.SquaredExponential(1.4, [0.6, 0.9]), 0.05, X[:15])
            values.append(CollapsedObjective(rows, approximations.get(name)).value_and_gradient(hyper))
            gradients.append(hyper.gradient())
    np.testing.assert_allclose(values[2:], values[:2], rtol=1e-10)
    for unwhitened, whitened in zip(gradients[2:], gradients[:2], strict=True):
        np.testing.assert_allclose(unwhitened, whitened, rtol=1e-9, atol=1e-9 * np.abs(whitened).max())


def test_whitening_is_left_out_only_where_that_is_safe():
    X = torch.linspace(-2.0, 2.0, 300, dtype=torch.float64)[:, None]
    safe = [
        direct.is_safe(prior, linalg.inverse_lower(prior.Luu.factor), MemoryRows(Block(rows, rows[:, 0])))
        for lengthscale, rows in ((0.4, X), (1.5, X), (0.4, X.float()))
        for prior in [
            SparsePrior.build(kernels.SquaredExponential(1.4, lengthscale), X[::30], 0.05, approximations.get("vfe"))
        ]
    ]
    assert safe == [True, False, False]


@pytest.mark.parametrize("name", ["vfe", "fitc", "pitc"])
def test_threads_give_the_same_value_and_gradient(name, monkeypatch):
    problem = random_problem(5)
    objective = make_objective(problem, name)
    monkeypatch.setattr("sparsegp.core.block.MemoryRows.chunks.__defaults__", (7,))
    results = []
    for count in (1, 3):
        monkeypatch.setattr("sparsegp.parallel.available", lambda count=count: count)
        hyper = problem.hyperparameters()
        results.append((objective.value_and_gradient(hyper), hyper.gradient()))
    (value, gradient), (threaded_value, threaded_gradient) = results
    assert threaded_value == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(threaded_gradient, gradient, rtol=1e-9, atol=1e-9 * np.abs(gradient).max())


@pytest.mark.parametrize("name", ["fitc", "pep", "pitc", "block-pep", "points"])
@pytest.mark.parametrize(("lengthscales", "is_coarse"), [([0.5, 0.5, 1.0], True), ([0.3], False)])
def test_coarse_products_keep_value_and_gradient(
    name: str, lengthscales: list[float], is_coarse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right to 1e-6 where Kuu is well conditioned. Where it is not, which would cost half of the digits, not used."""
    rng = np.random.default_rng(7)
    X = torch.from_numpy(rng.uniform(0.0, 4.0, (700, len(lengthscales))))
    y = torch.sin(3.0 * X[:, 0]) + 0.1 * torch.from_numpy(rng.standard_normal(700))
    rows = MemoryRows(Block(X, y), torch.tensor([0, 300, 700]))
    kernel = kernels.SquaredExponential(1.3, lengthscales)
    objective = CollapsedObjective(rows, get_row(name))
    values, gradients = [], []
    for coarse_from in (1, 10**6):
        monkeypatch.setattr("sparsegp.learn.adjoint.COARSE_FROM", coarse_from)
        hyper = Hyperparameters(kernel, 0.02, X[:140])
        values.append(objective.value_and_gradient(hyper))
        gradients.append(hyper.gradient())
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    near(gradients[0], gradients[1], 1e-6)
    assert np.array_equal(gradients[0], gradients[1]) != is_coarse


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["pic", "pitc"])
def test_a_single_block_is_learned_as_the_exact_model(name: str, weighted: bool) -> None:
    problem = random_problem(181)
    problem = with_weights(problem) if weighted else problem
    rows = MemoryRows(problem.block, torch.tensor([0, len(problem.block)]))
    approx, held = get_row(name), {"learn_inducing": False}
    exact = objective_of(rows, approx)
    assert isinstance(exact, ExactObjective)
    found = []
    for objective in (exact, CollapsedObjective(rows, approx)):
        hyper = Hyperparameters(problem.kernel, problem.noise_var, problem.inducing, **held)
        found.append((objective.value_and_gradient(hyper), objective.value(hyper), hyper.gradient()))
    assert found[0][:2] == pytest.approx(found[1][:2], rel=1e-10)
    near(found[0][2], found[1][2], 1e-8)


def test_other_approximations_and_more_blocks_keep_their_objective() -> None:
    block = random_problem(182).block
    one, two = torch.tensor([0, len(block)]), torch.tensor([0, 3, len(block)])
    assert isinstance(objective_of(MemoryRows(block, two), get_row("pic")), CollapsedObjective)
    assert isinstance(objective_of(MemoryRows(block, one), get_row("block-pep")), CollapsedObjective)
    assert isinstance(objective_of(MemoryRows(block, one), get_row("vfe")), CollapsedObjective)


@pytest.mark.parametrize("name", ["fitc", "pep", "points", "vfe"])
def test_the_bound_of_the_pullback_holds(name: str) -> None:
    approx = get_row(name)
    generator = torch.Generator().manual_seed(1)
    d, noise = (10.0 ** (8.0 * torch.rand(500, dtype=torch.float64, generator=generator) - 6.0) for _ in range(2))
    v = noise_model.point_variance(approx, d, noise)
    # the least that bar v can be: a row without error and without uncertainty of f
    d_bar, _ = noise_model.point_pullback(approx, d, noise, v, -0.5 / v)
    bound = noise_model.pullback_bound(approx)
    assert (d_bar * v >= -bound * (1.0 + 1e-12)).all()
