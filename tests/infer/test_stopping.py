"""The stopping rule and the budgeted run: influence, calibration, deadlines, readings, bad input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from problems import COMBINATIONS, INDUCING_ROWS, agree, get_row, random_problem, tensor
from sparsegp import kernels
from sparsegp.core.block import Block, GivenBlocks, MemoryRows
from sparsegp.core.posterior import InducingPosterior, SparsePosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics, whiten_block
from sparsegp.errors import InputError
from sparsegp.infer import anytime, stopping
from sparsegp.infer.anytime import (
    WITHOUT_REPLACEMENT,
    AnytimeState,
    NaturalAscent,
    Reading,
    Sampling,
    default_recent,
    read,
)
from sparsegp.metrics import predictive_efficiency, time_efficiency

N_BLOCKS = 40
SIZES = np.tile([4, 8, 12, 16], 10)


def clustered_rows(seed: int = 0) -> MemoryRows:
    """40 blocks of 4 to 16 rows on a line, each with an offset of its own: blocks differ."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(N_BLOCKS), SIZES)
    X = (labels + rng.uniform(0.0, 1.0, len(labels))) / 4.0
    y = np.sin(X) + 0.15 * rng.normal(size=N_BLOCKS)[labels] + 0.3 * rng.normal(size=len(X))
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(SIZES)]))
    return MemoryRows(Block(tensor(X)[:, None], tensor(y)), offsets)


def mixed_rows(seed: int = 0) -> MemoryRows:
    """The same rows dealt out to blocks at random: every block knows a little of everything."""
    rows = clustered_rows(seed)
    order = torch.from_numpy(np.random.default_rng(seed + 1).permutation(len(rows)))
    return MemoryRows(rows.all.take(order), rows.offsets)


def line_prior(name: str) -> SparsePrior:
    inducing = torch.linspace(0.3, 9.7, 12, dtype=torch.float64)[:, None]
    return SparsePrior.build(kernels.SquaredExponential(1.3, 1.1), inducing, 0.15, get_row(name))


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 500), name=st.sampled_from([*INDUCING_ROWS, *COMBINATIONS]), weight=st.floats(0.5, 4.0))
def test_influence_is_the_change_of_the_mean_without_the_block(seed: int, name: str, weight: float) -> None:
    problem = random_problem(seed)
    prior = problem.prior(get_row(name))
    parts = [BlockStatistics.from_block(prior, block) for block in problem.rows.blocks()]
    total = weight * sum(parts[1:], start=parts[0])
    q = InducingPosterior.from_statistics(total)
    without = InducingPosterior.from_statistics(total - weight * parts[2])
    h = prior.features(problem.X_test)
    B = total.precision + torch.eye(6, dtype=torch.float64)
    phi = stopping.influence(h, B, q.mean, parts[2], weight)
    agree((weight * phi,), (h @ (q.mean - without.mean),), rtol=1e-7)
    # the form with the leverage of the block (derivations/anytime.md), on its b rows
    with torch.no_grad():
        block = whiten_block(prior, problem.rows.block(2))
    leverage = torch.eye(len(block.target), dtype=torch.float64) - weight * block.A @ q.covariance @ block.A.mT
    expected = h @ q.covariance @ block.A.mT @ torch.linalg.solve(leverage, block.target - block.A @ q.mean)
    agree((phi,), (expected,), rtol=1e-7)


Judge = Callable[[AnytimeState, Tensor], tuple[InducingPosterior, Tensor]]
"""What a state says, and the standard error of its mean at probes with these slopes."""


def standardised_errors(
    rows: MemoryRows, name: str, n_steps: int, sampling: Sampling, schedule: anytime.StepSchedule, judge: Judge
) -> np.ndarray:
    """(mean after n_steps - mean of the batch)/se at probes, over 80 orders of the blocks."""
    prior, source = line_prior(name), GivenBlocks(rows)
    parts = [BlockStatistics.from_block(prior, block) for block in rows.blocks()]
    best = InducingPosterior.from_statistics(sum(parts[1:], start=parts[0]))
    slopes = prior.features(torch.linspace(0.5, 9.5, 7, dtype=torch.float64)[:, None])
    engine = NaturalAscent(prior, schedule, default_recent(prior))
    errors = []
    for seed in range(80):
        draws = sampling.draws(source.sizes, 1, np.random.default_rng(seed))
        state = engine.init()
        for _, draw in zip(range(n_steps), draws, strict=False):
            state, _ = engine.fold(state, draw, [parts[k] for k in draw.index])
        q, se = judge(state, slopes)
        errors.append(((slopes @ (q.mean - best.mean)) / se).numpy())
    return np.array(errors)


@pytest.mark.parametrize("n_steps", [12, 16, 28])
def test_standard_error_is_calibrated(n_steps: int) -> None:
    def judge(state: AnytimeState, slopes: Tensor) -> tuple[InducingPosterior, Tensor]:
        statistics = read(state, Reading.RATIO, float(SIZES.sum()))
        q, fraction = InducingPosterior.from_statistics(statistics), stopping.unseen_fraction(state, N_BLOCKS, True)
        return q, stopping.standard_error(state, statistics, q, slopes, fraction=fraction)

    errors = standardised_errors(mixed_rows(), "fitc", n_steps, WITHOUT_REPLACEMENT, anytime.Averaging(), judge)
    assert 0.85 < float(np.sqrt(np.mean(errors**2))) < 1.2
    assert abs(float(errors.mean())) < 0.3


def probe_points(X: Tensor, labels: Tensor | None = None) -> stopping.ProbePoints:
    return stopping.ProbePoints(X, labels, 0.15)


@pytest.mark.parametrize("name", ["sor", "dtc", "fitc", "fic", "pitc", "pic", "pep"])
def test_probes_have_the_predictive_std(name: str) -> None:
    problem = random_problem(1)
    posterior, _ = problem.infer(get_row(name))
    probes = stopping.Probes.prepare(posterior, probe_points(problem.X_test, problem.test_labels))
    mean, var = posterior.marginals(problem.X_test, problem.test_labels)
    agree((probes.std(posterior.q),), ((var + 0.15).sqrt(),))
    moved = InducingPosterior(posterior.q.mean + 0.3, posterior.q.LB)
    other = replace(posterior, q=moved) if name == "pic" else SparsePosterior(posterior.prior, moved)
    change = other.marginals(problem.X_test, problem.test_labels)[0] - mean
    agree((probes.slopes @ (moved.mean - posterior.q.mean),), (change,))


def test_efficiencies_of_an_anytime_model() -> None:
    assert time_efficiency(30.0, 1.5) == 20.0
    assert predictive_efficiency(0.19, 0.2) == pytest.approx(0.95)
    for bad in ((1.0, 0.0), (-1.0, 1.0), (np.nan, 1.0)):
        with pytest.raises(InputError, match="must be finite"):
            time_efficiency(*bad)
