"""Stochastic natural-gradient ascent: golden steps, laws of the average, equality with SVGP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal

from papers.sampling import PROPORTIONAL
from papers.steps import Constant
from problems import CHANGES, COMBINATIONS, INDUCING_ROWS, Problem, agree, get_row, random_problem, tensor, unwhitened
from sparsegp.core import approximations
from sparsegp.core.block import GivenBlocks, RandomBlocks
from sparsegp.core.evidence import kl_divergence, kl_to_prior, uncollapsed_objective
from sparsegp.core.local import LocalPosterior
from sparsegp.core.posterior import InducingPosterior, SparsePosterior, log_evidence
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.infer.anytime import WITHOUT_REPLACEMENT, AnytimeState, Draw, NaturalAscent, Reading, read
from test_golden import golden_problem

GOLDEN_STEPS: Mapping[str, tuple[tuple[int, ...], float, float]] = {
    "S=[1],rho=0.5,weight=P": ((1,), 0.5, 4.0),
    "S=[0,2],rho=0.25,weight=P/2": ((0, 2), 0.25, 2.0),
    "S=[1],rho=0.5,weight=n/|D_1|": ((1,), 0.5, 5.0),
}
MODELS = ("DTC", "FITC", "PITC")
ALL = (*INDUCING_ROWS, *COMBINATIONS)


def draw_of(index: tuple[int, ...], weight: float) -> Draw:
    return Draw(index, (weight,) * len(index), (True,) * len(index))


def take_steps(
    engine: NaturalAscent, source: Any, draws: Any, n_steps: int, state: AnytimeState | None = None
) -> AnytimeState:
    state = engine.init() if state is None else state
    for _, draw in zip(range(n_steps), draws, strict=False):
        state, _ = engine.step(state, draw, [source.block(k) for k in draw.index])
    return state


def total_statistics(problem: Problem, prior: SparsePrior) -> BlockStatistics:
    return BlockStatistics.from_blocks(prior, problem.rows.blocks())


def natural_parameters(prior: SparsePrior, statistics: BlockStatistics) -> tuple[torch.Tensor, torch.Tensor]:
    """theta_1 = Lambda mu and theta_2 = -Lambda/2 of u."""
    inverse_L = torch.linalg.inv(prior.Luu.factor)
    B = statistics.precision + torch.eye(prior.n_inducing, dtype=torch.float64)
    return inverse_L.mT @ statistics.shift, -0.5 * inverse_L.mT @ B @ inverse_L


@pytest.mark.parametrize("key", GOLDEN_STEPS)
@pytest.mark.parametrize("model", MODELS)
def test_golden_natural_gradient_step(golden: Mapping[str, Any], model: str, key: str) -> None:
    problem, expected = golden_problem(golden), golden["anytime"][model]["steps"][key]
    index, rho, weight = GOLDEN_STEPS[key]
    prior = problem.prior(approximations.get(model.lower()))
    engine = NaturalAscent(prior, Constant(rho))
    state = take_steps(engine, problem.rows, [draw_of(index, weight)], 1)
    q = InducingPosterior.from_statistics(state.iterate)
    everything = total_statistics(problem, prior)
    best = InducingPosterior.from_statistics(everything)
    got = (
        *natural_parameters(prior, state.iterate),
        *unwhitened(q, prior),
        *SparsePosterior(prior, q).joint(problem.X_test),
        kl_divergence(q, best),
        uncollapsed_objective(everything, q),
    )
    names = ("theta1", "theta2", "mu", "Sigma", "mean", "cov", "KL_q_qstar", "evidence_minus_KL")
    agree(got, tuple(expected[name] for name in names))


@pytest.mark.parametrize("key", GOLDEN_STEPS)
def test_golden_pic_prediction_after_a_step(golden: Mapping[str, Any], key: str) -> None:
    problem, expected = golden_problem(golden), golden["anytime"]["PITC"]["steps"][key]
    index, rho, weight = GOLDEN_STEPS[key]
    prior = problem.prior(approximations.get("pic"))
    state = take_steps(NaturalAscent(prior, Constant(rho)), problem.rows, [draw_of(index, weight)], 1)
    posterior = LocalPosterior(prior, InducingPosterior.from_statistics(state.iterate), problem.rows)
    agree(posterior.joint(problem.X_test, problem.test_labels), (expected["PIC_mean"], expected["PIC_cov"]))


@pytest.mark.parametrize("model", MODELS)
def test_golden_optimum(golden: Mapping[str, Any], model: str) -> None:
    problem, expected = golden_problem(golden), golden["anytime"][model]
    prior = problem.prior(approximations.get(model.lower()))
    draws = WITHOUT_REPLACEMENT.draws(GivenBlocks(problem.rows).sizes, 1, np.random.default_rng(0))
    best = InducingPosterior.from_statistics(take_steps(NaturalAscent(prior), problem.rows, draws, 4).iterate)
    agree(unwhitened(best, prior), (expected["mu_star"], expected["Sigma_star"]))


def test_golden_combination_after_one_epoch(golden: Mapping[str, Any]) -> None:
    problem, expected = golden_problem(golden), golden["anytime"]["combination_0.3DTC+0.7PITC"]
    prior = problem.prior(approximations.combine({"dtc": 0.3, "pitc": 0.7}))
    draws = WITHOUT_REPLACEMENT.draws(GivenBlocks(problem.rows).sizes, 3, np.random.default_rng(1))
    state = take_steps(NaturalAscent(prior), problem.rows, draws, 2)
    q = InducingPosterior.from_statistics(state.iterate)
    got = (*unwhitened(q, prior), log_evidence(state.iterate, q))
    agree(got, (expected["mu"], expected["Sigma"], expected["evidence"]))


@pytest.mark.parametrize("name", ALL)
@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 10_000), per_step=st.integers(1, 5), epochs=st.integers(1, 2))
def test_one_epoch_of_averaging_is_the_batch(name: str, seed: int, per_step: int, epochs: int) -> None:
    problem = random_problem(seed % 7)
    prior = problem.prior(get_row(name))
    rng = np.random.default_rng(seed)
    draws = WITHOUT_REPLACEMENT.draws(GivenBlocks(problem.rows).sizes, per_step, rng)
    steps_needed = -(-problem.n_blocks // per_step)
    state = take_steps(NaturalAscent(prior), problem.rows, draws, epochs * steps_needed)
    everything = total_statistics(problem, prior)
    for reading in Reading:
        got = read(state, reading, everything.n_rows)
        agree(scalars_and_matrices(got), scalars_and_matrices(everything))
    assert state.blocks_seen == problem.n_blocks
    assert state.spread == pytest.approx(1.0 / state.blocks_drawn)


def scalars_and_matrices(s: BlockStatistics) -> tuple[Any, ...]:
    return s.precision, s.shift, s.noise_logdet, s.target_sq, s.penalty, s.n_rows


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["fitc", "pic"])
def test_known_noise_and_weights_enter_as_in_the_batch(name: str, change: str) -> None:
    problem = CHANGES[change](random_problem(3))
    prior = problem.prior(get_row(name))
    source = GivenBlocks(problem.rows)
    draws = WITHOUT_REPLACEMENT.draws(source.sizes, 1, np.random.default_rng(0))
    state = take_steps(NaturalAscent(prior), source, draws, 4)
    agree(scalars_and_matrices(state.iterate), scalars_and_matrices(total_statistics(problem, prior)))
    assert source.sizes.sum() == pytest.approx(problem.block.n_rows)


@settings(deadline=None, max_examples=15)
@given(
    name=st.sampled_from(ALL),
    rates=st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
    per_step=st.integers(1, 3),
)
def test_every_iterate_is_at_least_as_precise_as_the_prior(
    name: str, rates: list[float], seed: int, per_step: int
) -> None:
    problem = random_problem(seed % 5)
    prior = problem.prior(get_row(name))
    draws = PROPORTIONAL.draws(GivenBlocks(problem.rows).sizes, per_step, np.random.default_rng(seed))
    state = None
    for rate in rates:
        state = take_steps(NaturalAscent(prior, Constant(rate)), problem.rows, draws, 1, state)
        assert float(torch.linalg.eigvalsh(state.iterate.precision).min()) > -1e-9
        InducingPosterior.from_statistics(state.iterate)


@pytest.mark.parametrize("name", ["dtc", "vfe"])
def test_a_step_of_dtc_is_the_natural_gradient_step_of_svgp(name: str) -> None:
    """Independent of the engine: autograd of the SVGP bound with respect to the mean parameters (m, S + m m^T)."""
    problem, gamma = random_problem(8), 0.3
    prior = problem.prior(get_row(name))
    source = RandomBlocks.build(problem.rows, 5, np.random.default_rng(1))
    weight = len(problem.y) / 5
    engine = NaturalAscent(prior, Constant(gamma))
    state = take_steps(engine, source, [draw_of((0,), weight), draw_of((2,), weight)], 2)
    q = InducingPosterior.from_statistics(state.iterate)
    after = InducingPosterior.from_statistics(take_steps(engine, source, [draw_of((1,), weight)], 1, state).iterate)

    batch = source.block(1)
    with torch.no_grad():
        A = torch.linalg.solve_triangular(prior.Luu.factor, problem.kernel(problem.inducing, batch.X), upper=False)
    first = q.mean.clone().requires_grad_()
    second = (q.covariance + torch.outer(q.mean, q.mean)).clone().requires_grad_()
    S = second - torch.outer(first, first)
    f_mean = A.mT @ first
    f_var = problem.kernel.diagonal(batch.X).detach() - A.square().sum(0) + (A * (S @ A)).sum(0)
    density = torch.distributions.Normal(f_mean, problem.noise_var**0.5).log_prob(batch.y)
    standard = MultivariateNormal(torch.zeros(6, dtype=torch.float64), torch.eye(6, dtype=torch.float64))
    divergence = torch.distributions.kl_divergence(MultivariateNormal(first, S), standard)
    (weight * (density - 0.5 * f_var / problem.noise_var).sum() - divergence).backward()
    precision = torch.linalg.inv(q.covariance)
    theta1 = precision @ q.mean + gamma * first.grad
    theta2 = -0.5 * precision + gamma * 0.5 * (second.grad + second.grad.mT)
    covariance = torch.linalg.inv(-2.0 * theta2)
    agree((after.mean, after.covariance), (covariance @ theta1, covariance))


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 1000), name=st.sampled_from(ALL))
def test_uncollapsed_objective_is_evidence_minus_divergence(seed: int, name: str) -> None:
    problem = random_problem(seed)
    prior = problem.prior(get_row(name))
    statistics = total_statistics(problem, prior)
    best = InducingPosterior.from_statistics(statistics)
    rng = np.random.default_rng(seed)
    root = tensor(rng.normal(size=(6, 6))) / 2.0
    q = InducingPosterior.from_moments(prior, tensor(rng.normal(size=6)), root @ root.mT + 0.1 * torch.eye(6))
    evidence = log_evidence(statistics, best)
    agree((uncollapsed_objective(statistics, best),), (evidence,))
    agree((uncollapsed_objective(statistics, q),), (evidence - kl_divergence(q, best),))


def test_divergences_against_torch_distributions() -> None:
    problem = random_problem(2)
    prior = problem.prior(get_row("fitc"))
    blocks = [InducingPosterior.from_statistics(BlockStatistics.from_block(prior, b)) for b in problem.rows.blocks()]
    q, p = (MultivariateNormal(b.mean, b.covariance) for b in (blocks[0], blocks[2]))
    standard = MultivariateNormal(torch.zeros(6, dtype=torch.float64), torch.eye(6, dtype=torch.float64))
    expected = [torch.distributions.kl_divergence(q, other) for other in (p, standard)]
    agree((kl_divergence(blocks[0], blocks[2]), kl_to_prior(blocks[0])), tuple(expected))


def test_readings_of_an_unfinished_run() -> None:
    problem = random_problem(4)
    prior = problem.prior(get_row("pitc"))
    blocks = list(problem.rows.blocks())
    state = take_steps(NaturalAscent(prior), problem.rows, [draw_of((0,), 4.0), draw_of((2,), 4.0)], 2)
    seen = BlockStatistics.from_blocks(prior, [blocks[0], blocks[2]])
    n_seen = len(blocks[0]) + len(blocks[2])
    agree(scalars_and_matrices(state.iterate), scalars_and_matrices(4 / 2 * seen))
    for reading, factor in ((Reading.SEEN, 1.0), (Reading.RATIO, 20 / n_seen)):
        got = read(state, reading, 20.0)
        agree(scalars_and_matrices(got), scalars_and_matrices(factor * seen))


def test_pic_keeps_prepared_blocks_when_the_posterior_changes() -> None:
    problem = random_problem(10)
    prior = problem.prior(get_row("pic"))
    first, second = (
        InducingPosterior.from_statistics(BlockStatistics.from_blocks(prior, blocks))
        for blocks in ([problem.rows.block(0)], problem.rows.blocks())
    )
    old = LocalPosterior(prior, first, problem.rows)
    before = problem.predict(old)
    prepared = {k: old._prepared.get(k) for k in range(3)}
    new = old.with_posterior(second)
    agree(problem.predict(new), problem.predict(LocalPosterior(prior, second, problem.rows)))
    agree(problem.predict(old), before)
    assert all(block is not None and new._prepared.get(k) is block for k, block in prepared.items())
