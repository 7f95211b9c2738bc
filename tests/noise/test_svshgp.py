"""SVSHGP: the factorised bound, its natural steps and its gradient against golden values; learning by mini-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from problems import agree, get_row, random_problem, tensor, unwhitened
from sparsegp import kernels
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.learn.hyperparameters import Limits
from sparsegp.learn.trace import Terms
from sparsegp.noise import svshgp
from sparsegp.noise.bound import BoundState, ProfiledBound
from sparsegp.noise.joint_hyperparameters import JointHyperparameters
from sparsegp.noise.svshgp import Factorised
from sparsegp.testing import oracle

Golden = Mapping[str, Any]
ANY_NOISE = Limits((1e-12, 1e12), tensor([-3.0]), tensor([3.0]))


def golden_hyper(golden: Golden) -> JointHyperparameters:
    return JointHyperparameters(
        kernels.SquaredExponential(1.5, 0.8),
        tensor(golden["meta"]["U"])[:, None],
        kernels.SquaredExponential(0.7, 1.5),
        tensor([-2.0, 0.0, 2.0])[:, None],
        -1.2,
    )


def given_q(prior: SparsePrior, mean: list[float], fraction: float) -> InducingPosterior:
    """N(mean, fraction K + 0.05 I)."""
    K = prior.Luu.factor @ prior.Luu.factor.mT
    return InducingPosterior.from_moments(prior, tensor(mean), fraction * K + 0.05 * torch.eye(len(mean)).double())


def golden_state(golden: Golden) -> tuple[Factorised, Block]:
    state = svshgp.initial(golden_hyper(golden), get_row("vfe"), ANY_NOISE)
    q_f = given_q(state.prior, [0.4 * np.cos(j) for j in range(5)], 0.2)
    q_g = given_q(state.process.prior, [0.3 * np.sin(j) for j in range(3)], 0.5)
    block = Block(tensor(golden["data"]["X"])[:, None], tensor(golden["data"]["y"]))
    return replace(state, q=q_f, process=state.process.with_q(q_g)), block


def test_golden_bound_and_minibatch(golden: Golden) -> None:
    state, block = golden_state(golden)
    expected = golden["svshgp"]
    assert state.value(block) == pytest.approx(expected["F"], rel=1e-8)
    half = block.take(slice(0, 10))
    assert state.value(half, 2.0) == pytest.approx(expected["F_minibatch_first10_scale2"], rel=1e-8)


def test_golden_predictions(golden: Golden) -> None:
    state, _ = golden_state(golden)
    at, expected = tensor(golden["meta"]["Xs"])[:, None], golden["svshgp"]["predict"]
    agree(
        (*state.moments(at), *state.process.predict(at)),
        tuple(expected[name] for name in ("mu_f", "var_f", "mu_g", "var_g")),
    )


def test_golden_natural_step_on_f(golden: Golden) -> None:
    state, block = golden_state(golden)
    expected = golden["svshgp"]["natural_step_f_gamma0p1"]
    stepped = state.stepped_f(block, 1.0, 0.1)
    agree(unwhitened(stepped.q, state.prior), (expected["mu"], expected["Sigma"]))
    assert stepped.value(block) == pytest.approx(expected["F_after"], rel=1e-8)


@pytest.mark.parametrize(("name", "rows", "scale"), [("", 20, 1.0), ("_minibatch_first10", 10, 2.0)])
def test_golden_natural_step_on_g(golden: Golden, name: str, rows: int, scale: float) -> None:
    state, block = golden_state(golden)
    expected = golden["svshgp"][f"natural_step_g_gamma0p1{name}"]
    part = block.take(slice(0, rows))
    stepped = state.stepped_g(part, scale, 0.1)
    mean, covariance = unwhitened(stepped.process.q, state.process.prior)
    agree((mean - 1.2, covariance), (expected["mu"], expected["Sigma"]))
    assert stepped.value(part, scale) == pytest.approx(expected["F_after"], rel=1e-8)


def test_full_natural_step_on_f_gives_the_collapsed_bound(golden: Golden) -> None:
    """F = F_V - KL(q(f_m) || q*(f_m)): a step of one is the exact maximum over q(f_m)."""
    state, block = golden_state(golden)
    collapsed = BoundState.evaluate(state.prior, state.process, MemoryRows(block)).value
    assert state.stepped_f(block, 1.0, 1.0).value(block) == pytest.approx(collapsed, rel=1e-10)
    assert state.value(block) < collapsed


def test_gradient_with_both_q_held(golden: Golden) -> None:
    state, block = golden_state(golden)
    hyper = golden_hyper(golden)
    start = hyper.vector()
    svshgp.expected_log_likelihood(hyper, state, block.take(slice(0, 10)), 2.0).backward()
    gradient = hyper.gradient()

    def moved(vector: np.ndarray) -> float:
        hyper.load_vector(vector)
        fresh = svshgp.initial(hyper, get_row("vfe"), ANY_NOISE)
        now = Factorised(fresh.prior, state.q, fresh.process.with_q(state.process.q))
        return now.value(block.take(slice(0, 10)), 2.0)

    expected = oracle.gradient(moved, start, 1e-5)
    np.testing.assert_allclose(gradient, expected, rtol=0.0, atol=1e-6 * np.abs(expected).max())


def test_step_sizes_follow_the_schedule_of_the_paper() -> None:
    assert svshgp.step_size(0) == pytest.approx(1e-4)
    assert svshgp.step_size(2) == pytest.approx(np.sqrt(1e-4 * 0.1))
    assert [svshgp.step_size(t) for t in (4, 5, 1000)] == pytest.approx([0.1, 0.1, 0.1])


EPS = float(torch.finfo(torch.float64).eps)


@settings(deadline=None, max_examples=8)
@example(seed=4, step=1.0, scale=1820.0)
@given(seed=st.integers(0, 10_000), step=st.floats(1e-3, 1.0), scale=st.floats(1.0, 1e5))
def test_any_step_on_any_batch_keeps_both_posteriors_positive_definite(seed: int, step: float, scale: float) -> None:
    problem = random_problem(seed)
    hyper = JointHyperparameters(problem.kernel, problem.inducing, problem.kernel, problem.inducing[:4], -2.0)
    state = svshgp.initial(hyper, get_row("vfe"), ANY_NOISE)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        block = problem.block.take(torch.from_numpy(rng.permutation(len(problem.y))[:3]))
        state = state.stepped_f(block, scale, step).stepped_g(block, scale, step)
        for q in (state.q, state.process.q):
            # a mixture of precisions >= I is >= I, but for the rounding of the largest eigenvalue
            assert float(q.LB.factor.diagonal().min()) > 0.0
            eigenvalues = torch.linalg.eigvalsh(q.LB.factor @ q.LB.factor.mT)
            assert float(eigenvalues.min()) >= 1.0 - 1e-6 - 100 * EPS * float(eigenvalues.max())
            assert bool(torch.isfinite(q.mean).all())


def toy(n: int = 400) -> MemoryRows:
    rng = np.random.default_rng(4)
    X = rng.uniform(-4.0, 4.0, (n, 1))
    std = 0.05 + 0.4 / (1.0 + np.exp(-2.0 * X[:, 0]))
    return MemoryRows(Block(tensor(X), tensor(np.sin(X[:, 0]) + std * rng.standard_normal(n))))


def test_minibatches_come_near_the_bound_of_all_rows() -> None:
    rows = toy()
    limits = Limits((1e-6, 1e2), rows.all.X.amin(0), rows.all.X.amax(0))
    inducing = tensor(np.linspace(-4, 4, 10)[:, None])
    hyper = JointHyperparameters(
        kernels.SquaredExponential(0.5, 0.6), inducing, kernels.SquaredExponential(0.5, 1.0), inducing[::2], -1.0
    )
    before = ProfiledBound(rows, get_row("vfe"), limits.noise_var).value(hyper)
    q, result = svshgp.learn(
        rows, get_row("vfe"), hyper, Terms(limits, np.random.default_rng(0)), batch_size=100, n_steps=120
    )
    optimum = ProfiledBound(rows, get_row("vfe"), limits.noise_var).value(hyper)
    reached = ProfiledBound(rows, get_row("vfe"), limits.noise_var, q=q, max_steps=0).value(hyper)
    assert result.iterations == 120
    assert optimum > before + 10.0
    assert reached > optimum - 0.05 * len(rows)


def test_a_caller_can_stop_it() -> None:
    rows = toy(60)
    limits = Limits((1e-6, 1e2), rows.all.X.amin(0), rows.all.X.amax(0))
    kernel = kernels.SquaredExponential(1.0, 1.0)
    hyper = JointHyperparameters(kernel, rows.all.X[:5], kernel, rows.all.X[:3], -1.0)
    seen = []

    def stop_at_three(step: Any) -> bool:
        seen.append(step)
        return len(seen) == 3

    _, result = svshgp.learn(
        rows,
        get_row("vfe"),
        hyper,
        Terms(limits, np.random.default_rng(0), on_step=stop_at_three),
        batch_size=20,
        n_steps=50,
    )
    assert result.stopped
    assert result.iterations == len(seen) == 3
