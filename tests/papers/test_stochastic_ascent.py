"""Steps, samplings and readings of the papers: schedules, clipped gradient ascent, the iterate's own error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from papers.extrapolation import standard_error
from papers.gradient_ascent import GradientAscent, stable_rate
from papers.sampling import UNIFORM
from papers.steps import Constant, RobbinsMonro
from problems import agree, get_row, random_problem, unwhitened
from sparsegp.core import approximations
from sparsegp.core.block import GivenBlocks
from sparsegp.core.evidence import kl_divergence
from sparsegp.core.posterior import InducingPosterior
from sparsegp.errors import InputError
from sparsegp.infer import anytime, stopping
from sparsegp.infer.anytime import WITHOUT_REPLACEMENT, NaturalAscent, default_recent
from test_anytime import MODELS, draw_of, take_steps, total_statistics
from test_golden import golden_problem
from test_stopping import N_BLOCKS, line_prior, mixed_rows, standardised_errors


@pytest.mark.parametrize("model", MODELS)
def test_golden_gradient_step(golden: Mapping[str, Any], model: str) -> None:
    problem, expected = golden_problem(golden), golden["anytime"][model]
    prior = problem.prior(approximations.get(model.lower()))
    engine = GradientAscent(prior, Constant(1e-4), whitened=False)
    state, info = engine.step(engine.init(), draw_of((1,), 4.0), [problem.rows.block(1)])
    step = expected["SGA_S=[1],rho=1e-4"]
    assert info.rate == 1e-4
    agree((state.mean, state.covariance), (step["mu"], step["Sigma"]))
    agree(unwhitened(engine.posterior(state), prior), (step["mu"], step["Sigma"]))


def test_robbins_monro_with_replacement_converges_to_the_batch() -> None:
    problem = random_problem(6)
    prior = problem.prior(get_row("fitc"))
    target = total_statistics(problem, prior)

    def gap(n_steps: int) -> float:
        errors = []
        for seed in range(4):
            draws = UNIFORM.draws(GivenBlocks(problem.rows).sizes, 1, np.random.default_rng(seed))
            engine = NaturalAscent(prior, RobbinsMonro(1.0, 0.7, 0.9))
            state = take_steps(engine, problem.rows, draws, n_steps)
            errors.append(float((state.iterate.precision - target.precision).norm() / target.precision.norm()))
        return float(np.mean(errors))

    assert gap(200) < 0.5 * gap(10)


def test_schedules() -> None:
    assert RobbinsMonro(0.5, 2.0, 0.8).rate(3, 1, 4) == pytest.approx(0.5 / (1 + 2.0 * 0.5 * 3) ** 0.8)
    for make in (
        lambda: Constant(0.0),
        lambda: Constant(1.01),
        lambda: RobbinsMonro(1.5),
        lambda: RobbinsMonro(1.0, 1.0, 0.5),
        lambda: RobbinsMonro(1.0, 0.0, 0.8),
    ):
        with pytest.raises(InputError, match="got"):
            make()


@pytest.mark.parametrize("whitened", [True, False])
def test_gradient_ascent_is_clipped_where_it_would_break(whitened: bool) -> None:
    problem = random_problem(7)
    prior = problem.prior(get_row("fitc"))
    engine = GradientAscent(prior, Constant(1.0), whitened=whitened)
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
    engine = GradientAscent(prior, Constant(1.0))
    state = engine.init()
    divergence = [kl_divergence(engine.posterior(state), best)]
    for _ in range(60):
        state, _ = engine.step(state, draw_of((0, 1, 2, 3), 1.0), list(problem.rows.blocks()))
        divergence.append(kl_divergence(engine.posterior(state), best))
    assert divergence[-1] < 1e-3 * divergence[0]


CASES = {
    "early": (12, WITHOUT_REPLACEMENT, anytime.Averaging()),
    "late": (28, WITHOUT_REPLACEMENT, anytime.Averaging()),
    "with replacement": (40, UNIFORM, RobbinsMonro(1.0, 1.0, 0.8)),
}


@pytest.mark.parametrize("case", CASES)
def test_standard_error_of_the_iterate_is_calibrated(case: str) -> None:
    n_steps, sampling, schedule = CASES[case]

    def judge(state, slopes):
        fraction = stopping.unseen_fraction(state, N_BLOCKS, schedule.averages and sampling.exhaustive)
        return InducingPosterior.from_statistics(state.iterate), standard_error(state, slopes, fraction=fraction)

    errors = standardised_errors(mixed_rows(), "fitc", n_steps, sampling, schedule, judge)
    assert 0.85 < float(np.sqrt(np.mean(errors**2))) < 1.2
    assert abs(float(errors.mean())) < 0.3


def test_too_few_blocks_are_no_basis_for_an_error() -> None:
    rows, prior = mixed_rows(), line_prior("fitc")
    engine = NaturalAscent(prior, n_recent=default_recent(prior))
    state = take_steps(engine, rows, [draw_of((0,), 4.0)], 1)
    with pytest.raises(InputError, match="the state remembers 1"):
        standard_error(state, torch.eye(12, dtype=torch.float64))
