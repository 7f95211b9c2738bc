"""What a step draws and how far it goes: block sources, samplings, schedules, and the clipped gradient ascent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from problems import CHANGES, get_row, random_problem
from sparsegp.engines import sampling, steps
from sparsegp.engines.anytime import NaturalAscent
from sparsegp.engines.divergence import kl_divergence
from sparsegp.engines.gradient_ascent import GradientAscent, stable_rate
from sparsegp.engines.sampling import PROPORTIONAL, UNIFORM, WITHOUT_REPLACEMENT, Draw, GivenBlocks, RandomBlocks
from sparsegp.errors import InputError
from sparsegp.posterior import InducingPosterior
from sparsegp.statistics import BlockStatistics
from test_anytime import draw_of, take_steps, total_statistics


@pytest.mark.parametrize("scheme", [UNIFORM, PROPORTIONAL, WITHOUT_REPLACEMENT])
def test_estimates_are_unbiased_for_uneven_blocks(scheme: sampling.Sampling) -> None:
    """The mean of sum_s w_s stat_s over many draws is the sum of all blocks; n/b_s with equal chances would not be."""
    problem = random_problem(5)
    prior = problem.prior(get_row("fitc"))
    source = GivenBlocks(problem.rows)
    parts = [BlockStatistics.from_block(prior, source.block(k)) for k in range(problem.n_blocks)]
    sizes, precisions = source.sizes, torch.stack([part.precision for part in parts])
    mean, wrong, n_draws = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64), 4000
    for _, draw in zip(range(n_draws), scheme.draws(sizes, 2, np.random.default_rng(0)), strict=False):
        for k, weight in zip(draw.index, draw.weights, strict=True):
            mean[k] += weight / n_draws
            wrong[k] += sizes.sum() / (2 * sizes[k]) / n_draws
    total = precisions.sum(0)

    def bias(weights: torch.Tensor) -> float:
        return float(((weights[:, None, None] * precisions).sum(0) - total).norm() / total.norm())

    assert bias(mean) < 0.05
    assert scheme is PROPORTIONAL or bias(wrong) > 0.1


@pytest.mark.parametrize("scheme", [UNIFORM, PROPORTIONAL, WITHOUT_REPLACEMENT])
def test_blocks_come_as_often_as_their_chance_says(scheme: sampling.Sampling) -> None:
    sizes = np.array([9.0, 0.0, 6.0, 1.0])
    draws = scheme.draws(sizes, 2, np.random.default_rng(4))
    counts, weighted = np.zeros(4), np.zeros(4)
    fresh: list[int] = []
    for _, draw in zip(range(3000), draws, strict=False):
        for k, weight, new in zip(draw.index, draw.weights, draw.fresh, strict=True):
            counts[k], weighted[k] = counts[k] + 1, weighted[k] + weight
            fresh += [k] * new
    assert counts[1] == 0
    assert sorted(fresh) == [0, 2, 3]
    np.testing.assert_allclose(weighted[sizes > 0] / 3000, 1.0, atol=0.15)


def test_robbins_monro_with_replacement_converges_to_the_batch() -> None:
    problem = random_problem(6)
    prior = problem.prior(get_row("fitc"))
    target = total_statistics(problem, prior)

    def gap(n_steps: int) -> float:
        errors = []
        for seed in range(4):
            draws = UNIFORM.draws(GivenBlocks(problem.rows).sizes, 1, np.random.default_rng(seed))
            engine = NaturalAscent(prior, steps.RobbinsMonro(1.0, 0.7, 0.9))
            state = take_steps(engine, problem.rows, draws, n_steps)
            errors.append(float((state.iterate.precision - target.precision).norm() / target.precision.norm()))
        return float(np.mean(errors))

    assert gap(200) < 0.5 * gap(10)


def test_schedules() -> None:
    assert steps.Averaging().rate(3, 1, 4) == 0.25
    assert steps.RobbinsMonro(0.5, 2.0, 0.8).rate(3, 1, 4) == pytest.approx(0.5 / (1 + 2.0 * 0.5 * 3) ** 0.8)
    for make in (
        lambda: steps.Constant(0.0),
        lambda: steps.Constant(1.01),
        lambda: steps.RobbinsMonro(1.5),
        lambda: steps.RobbinsMonro(1.0, 1.0, 0.5),
        lambda: steps.RobbinsMonro(1.0, 0.0, 0.8),
    ):
        with pytest.raises(InputError, match="got"):
            make()


@pytest.mark.parametrize("whitened", [True, False])
def test_gradient_ascent_is_clipped_where_it_would_break(whitened: bool) -> None:
    problem = random_problem(7)
    prior = problem.prior(get_row("fitc"))
    engine = GradientAscent(prior, steps.Constant(1.0), whitened=whitened)
    draws = UNIFORM.draws(GivenBlocks(problem.rows).sizes, 1, np.random.default_rng(0))
    state = engine.init()
    for _, draw in zip(range(40), draws, strict=False):
        state, info = engine.step(state, draw, [problem.rows.block(k) for k in draw.index])
        assert info.rate == info.stable_rate < 1.0
        assert float(torch.linalg.eigvalsh(state.covariance).min()) > 0.0
        assert bool(torch.isfinite(engine.posterior(state).mean).all())
    # Sigma = 0.1 I, Lambda = 100 I and rho = 0.01: the plain step is indefinite, half the bound is not
    precision, covariance = 100.0 * torch.eye(3, dtype=torch.float64), 0.1 * torch.eye(3, dtype=torch.float64)
    plain = covariance + 0.005 * (torch.linalg.inv(covariance) - precision)
    clipped = covariance + 0.5 * stable_rate(precision) * (torch.linalg.inv(covariance) - precision)
    assert float(plain.diagonal().min()) < 0.0 < float(clipped.diagonal().min())


def test_gradient_ascent_approaches_the_batch_posterior() -> None:
    problem = replace(random_problem(9), noise_var=2.0)
    prior = problem.prior(get_row("dtc"))
    best = InducingPosterior.from_statistics(total_statistics(problem, prior))
    engine = GradientAscent(prior, steps.Constant(1.0))
    state = engine.init()
    divergence = [kl_divergence(engine.posterior(state), best)]
    for _ in range(60):
        state, _ = engine.step(state, draw_of((0, 1, 2, 3), 1.0), list(problem.rows.blocks()))
        divergence.append(kl_divergence(engine.posterior(state), best))
    assert divergence[-1] < 1e-3 * divergence[0]


@pytest.mark.parametrize("block_rows", [1, 3, 50])
def test_random_blocks_partition_the_rows(block_rows: int) -> None:
    problem = random_problem(11)
    source = RandomBlocks.build(problem.rows, block_rows, np.random.default_rng(3))
    y = torch.cat([source.block(k).y for k in range(source.n_blocks)])
    assert torch.equal(y.sort().values, problem.y.sort().values)
    assert source.sizes.max() - source.sizes.min() <= 1
    assert source.sizes.max() <= block_rows
    weighted = CHANGES["weights"](problem)
    sizes = RandomBlocks.build(weighted.rows, block_rows, np.random.default_rng(3)).sizes
    assert sizes.sum() == pytest.approx(weighted.block.n_rows)


def test_sampling_says_what_is_wrong() -> None:
    problem, rng = random_problem(12), np.random.default_rng(0)
    with pytest.raises(InputError, match="at least one row"):
        RandomBlocks.build(problem.rows, 0, rng)
    with pytest.raises(InputError, match="sorted by block"):
        GivenBlocks(replace(problem.rows, offsets=None))
    with pytest.raises(InputError, match="None of the 2 blocks"):
        next(UNIFORM.draws(np.zeros(2), 1, rng))
    with pytest.raises(InputError, match="blocks_per_step"):
        next(WITHOUT_REPLACEMENT.draws(np.ones(2), 0, rng))
    with pytest.raises(InputError, match="negative weight"):
        Draw((0,), (-1.0,), (True,))
    with pytest.raises(InputError, match="at least one block"):
        Draw((), (), ())
