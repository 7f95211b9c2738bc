"""The heteroscedastic bound: gradients, the natural ascent, and the limits it must reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from problems import Problem, agree, get_row, random_problem, tensor, with_weights
from sparsegp import kernels
from sparsegp.core import approximations
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.trend import Trend
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.lbfgs import maximize
from sparsegp.learn.objective import CollapsedObjective
from sparsegp.learn.trace import Terms
from sparsegp.noise import noise_learning
from sparsegp.noise.bound import BoundState, ProfiledBound, natural_ascent
from sparsegp.noise.joint_hyperparameters import JointHyperparameters
from sparsegp.noise.process import NoiseProcess, limit_slope, limited
from sparsegp.testing import oracle

ANY_NOISE = (1e-12, 1e12)
Golden = Mapping[str, Any]


def joint_hyper(problem: Problem, seed: int = 5) -> JointHyperparameters:
    rng = np.random.default_rng(seed)
    noise_inducing = problem.inducing[::2] + torch.from_numpy(rng.normal(0.0, 0.2, problem.inducing[::2].shape))
    noise_kernel = kernels.SquaredExponential(rng.uniform(0.4, 1.2), rng.uniform(0.8, 1.8, problem.X.shape[1]))
    given = problem.kernel, problem.inducing, noise_kernel, noise_inducing, -1.7
    return JointHyperparameters(*given, trend=problem.trend)


def tight(problem: Problem, name: str) -> ProfiledBound:
    return ProfiledBound(problem.rows, get_row(name), ANY_NOISE, tolerance=1e-14, max_steps=400)


def check_gradient(objective: Any, hyper: JointHyperparameters, rtol: float) -> None:
    """Along random directions, so that every entry counts and few evaluations are needed."""
    start = hyper.vector()
    objective.value_and_gradient(hyper)
    gradient = hyper.gradient()
    rng = np.random.default_rng(0)
    for direction in rng.standard_normal((4, len(start))):

        def moved(t: np.ndarray, direction: np.ndarray = direction) -> float:
            hyper.load_vector(start + t[0] * direction)
            return float(objective.value(hyper))

        (expected,) = oracle.gradient(moved, np.zeros(1), 1e-5)
        size = np.linalg.norm(gradient) * np.linalg.norm(direction) / np.sqrt(len(start))
        assert gradient @ direction == pytest.approx(expected, abs=rtol * size)


@pytest.mark.parametrize("name", ["dtc", "vfe", "fitc", "pep", "pic", "with blocks"])
def test_gradient_of_the_profiled_bound(name: str) -> None:
    problem = random_problem(11)
    check_gradient(tight(problem, name), joint_hyper(problem), rtol=1e-5)


@pytest.mark.parametrize("name", ["vfe", "fitc", "pic"])
def test_gradient_of_the_profiled_bound_with_a_trend(name: str) -> None:
    problem = replace(random_problem(3, "matern32"), trend=Trend((0, 1)))
    check_gradient(tight(problem, name), joint_hyper(problem), rtol=1e-5)


@pytest.mark.parametrize("name", ["dtc", "vfe", "fitc", "pep", "pitc", "block-pep", "all shapes"])
@pytest.mark.parametrize("weighted", [False, True])
def test_slopes_are_derivatives_of_the_rows_objective(name: str, weighted: bool) -> None:
    """slope_i = R_i dJ/dR_i for every approximation, and lambda_i = slope_i + w_i/2 is never negative."""
    problem = random_problem(17)
    problem = with_weights(problem) if weighted else problem
    hyper = joint_hyper(problem)
    process = NoiseProcess.at_prior(hyper.noise_kernel, hyper.noise_inducing, -1.7, ANY_NOISE)
    state = BoundState.evaluate(problem.prior(get_row(name)), process, problem.rows)
    slopes, rows = state.row_noise.slopes, state.row_noise.rows
    plain = Hyperparameters(problem.kernel, 1.0, problem.inducing)

    def moved(log_R: np.ndarray) -> float:
        block = replace(rows.all, noise_var=torch.from_numpy(log_R).exp())
        return CollapsedObjective(MemoryRows(block, rows.offsets), get_row(name)).value(plain)

    expected = oracle.gradient(moved, rows.all.noise_var.log().numpy(), 1e-5)
    np.testing.assert_allclose(slopes.slope.numpy(), expected, rtol=1e-6, atol=1e-7)
    assert float(slopes.lam.min()) >= 0.0
    weight = 1.0 if problem.weight is None else rows.all.weight
    np.testing.assert_allclose(slopes.lam, slopes.slope + 0.5 * weight, rtol=1e-12)


@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(["vfe", "fitc", "pic"]))
def test_ascent_never_descends_and_stays_positive_definite(seed: int, name: str) -> None:
    problem = random_problem(seed)
    hyper = joint_hyper(problem, seed)
    process = NoiseProcess.at_prior(hyper.noise_kernel, hyper.noise_inducing, hyper.noise_mean, ANY_NOISE)
    values = [BoundState.evaluate(problem.prior(get_row(name)), process, problem.rows).value]
    for _ in range(4):
        step = natural_ascent(problem.prior(get_row(name)), process, problem.rows, max_steps=1)
        process = step.state.process
        values.append(step.state.value)
        assert float(process.q.LB.factor.diagonal().min()) > 0.0
    assert (np.diff(values) >= -1e-10).all()


@pytest.mark.parametrize("name", ["vfe", "fitc", "pic"])
def test_no_noise_variation_gives_the_homoscedastic_row(name: str) -> None:
    """sg2 -> 0: the row itself with noise exp(mu0)."""
    problem = random_problem(31)
    still = kernels.SquaredExponential(1e-12, 1.0)
    process = NoiseProcess.at_prior(still, problem.inducing, np.log(problem.noise_var), ANY_NOISE)
    ascent = natural_ascent(problem.prior(get_row(name)), process, problem.rows)
    _, evidence = problem.infer(get_row(name))
    assert ascent.state.value == pytest.approx(evidence, abs=1e-7)


NARROW = (0.1, 0.2)


@pytest.mark.parametrize("name", ["vfe", "pic"])
def test_noise_stays_inside_its_limits(name: str) -> None:
    """The bound and its gradient are smooth there: what a row says counts less the closer its noise is to a limit."""
    problem = random_problem(41)
    bound = ProfiledBound(problem.rows, get_row(name), NARROW, tolerance=1e-14, max_steps=400)
    ascent = bound.ascend(joint_hyper(problem))
    R = ascent.state.row_noise.moments.R
    assert NARROW[0] <= float(R.min()) <= float(R.max()) <= NARROW[1]
    assert float(ascent.state.row_noise.moments.limit_slope.min()) < 0.75
    check_gradient(bound, joint_hyper(problem), rtol=1e-5)


@given(st.floats(-60.0, 60.0), st.floats(-12.0, 0.0), st.floats(0.5, 20.0))
@settings(deadline=None)
def test_limited_noise(log_noise: float, lowest: float, width: float) -> None:
    """Inside the limits, never falling, with limit_slope as its slope; the value itself where both are far."""
    limits = float(np.exp(lowest)), float(np.exp(lowest + width))
    x = tensor([log_noise]).requires_grad_()
    value = limited(x, limits)
    value.sum().backward()
    assert lowest - 1e-9 <= float(value.detach()) <= lowest + width + 1e-9
    torch.testing.assert_close(x.grad, limit_slope(x.detach(), limits))
    assert 0.0 <= float(x.grad) <= 1.0
    if lowest + 10.0 < log_noise < lowest + width - 10.0:
        assert float(value.detach()) == pytest.approx(log_noise, abs=1e-12)


def test_learning_finds_noise_that_varies() -> None:
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-4.0, 4.0, (300, 1)), axis=0)
    std = 0.05 + 0.4 / (1.0 + np.exp(-2.0 * X[:, 0]))
    rows = MemoryRows(Block(tensor(X), tensor(np.sin(X[:, 0]) + std * rng.standard_normal(300))))
    hyper = JointHyperparameters(
        kernels.SquaredExponential(1.0, 1.0),
        tensor(np.linspace(-4, 4, 12)[:, None]),
        kernels.SquaredExponential(1.0, 2.0),
        tensor(np.linspace(-4, 4, 8)[:, None]),
        -2.0,
    )
    limits = Limits((1e-6, 1e2), rows.all.X.amin(0), rows.all.X.amax(0))
    objective = ProfiledBound(rows, approximations.get("vfe"), limits.noise_var)
    before = objective.value(hyper)
    result = maximize(objective, hyper, limits, max_iterations=40)
    assert result.objective > before + 10.0
    moments = objective.ascend(hyper).state.process.moments(rows.all.X)
    found = torch.exp(0.5 * moments.mean + 0.25 * moments.var).numpy()
    assert np.abs(np.log(found / std)).mean() < 0.25


def test_what_f_leaves_of_a_block_is_its_row_of_the_fisher_information() -> None:
    """With all rows in one block S = Kff + R, whatever the inducing inputs are."""
    problem = random_problem(3)
    rows = MemoryRows(problem.rows.all, torch.tensor([0, len(problem.y)]))
    hyper = joint_hyper(problem)
    state = ProfiledBound(rows, get_row("pic"), ANY_NOISE, max_steps=2).ascend(hyper).state
    R = state.row_noise.moments.R
    with torch.no_grad():
        S_inv = torch.linalg.inv(problem.kernel(rows.all.X) + torch.diag(R))
    expected = R * (S_inv.square() @ R)
    agree((state.row_noise.slopes.unabsorbed,), (expected,))
    assert bool((expected <= R * S_inv.diagonal() * (1.0 + 1e-12)).all())


@pytest.mark.parametrize("name", ["vfe", "pic"])
def test_parts_of_the_rows_first_lead_to_the_same_noise(name: str) -> None:
    rng = np.random.default_rng(4)
    X = torch.from_numpy(np.sort(rng.uniform(-2.0, 2.0, (120, 2)), axis=0))
    y = torch.sin(2.0 * X[:, 0]) + torch.from_numpy(rng.standard_normal(120)) * torch.exp(0.5 * X[:, 1] - 1.0)
    hyper, limits = joint_hyper(random_problem(4)), Limits(ANY_NOISE, X.amin(0), X.amax(0))
    rows = MemoryRows(Block(X, y), torch.arange(0, 121, 10) if get_row(name).by_block else None)
    small = replace(noise_learning.INFERENCE, parts=replace(noise_learning.INFERENCE.parts, first_rows=20))
    whole, parts = (
        noise_learning.infer(rows, get_row(name), hyper, Terms(limits, np.random.default_rng(0)), None, options)
        for options in (noise_learning.INFERENCE, small)
    )
    assert parts.bound == pytest.approx(whole.bound, abs=1e-2)
    for got, expected in zip(parts.process.predict(X), whole.process.predict(X), strict=True):
        np.testing.assert_allclose(got, expected, atol=0.02)


@pytest.mark.parametrize("factor", [1.5, None])
def test_lengthscales_of_f_go_no_farther_than_they_may(factor: float | None) -> None:
    """Of a straight line the likeliest lengthscale is longer than the start."""
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.uniform(-1.0, 1.0, (60, 1)))
    y = X[:, 0] + torch.from_numpy(0.05 * rng.standard_normal(60))
    kernel, noise_kernel = kernels.SquaredExponential(1.0, [0.5]), kernels.SquaredExponential(1.0, [0.7])
    given = (kernel, X[:12], noise_kernel, X[:6], -5.0)
    hyper = JointHyperparameters(*given, learn_inducing=False, lengthscale_factor=factor)
    limits = Limits((1e-6, 1e2), X.amin(0), X.amax(0))
    maximize(ProfiledBound(MemoryRows(Block(X, y)), get_row("vfe"), limits.noise_var), hyper, limits, max_iterations=40)
    grown = float(hyper.kernel.log_lengthscales.detach().exp()) / 0.5
    assert grown == pytest.approx(factor) if factor is not None else grown > 2.0
