"""Features that rows in memory keep during a natural ascent change nothing."""

from __future__ import annotations

import pytest
import torch

from problems import get_row, random_problem
from sparsegp import kernels
from sparsegp.core.statistics import BlockStatistics, whiten_block
from sparsegp.noise.bound import BoundState, natural_ascent
from sparsegp.noise.noise_gradient import GroupFeatures
from sparsegp.noise.process import NoiseProcess

ANY_NOISE = (1e-12, 1e12)


@pytest.mark.parametrize("name", ["vfe", "fitc", "pic"])
@pytest.mark.parametrize("most_bytes", [0, 4000, 10**9])
def test_ascent_ends_where_a_fresh_evaluation_agrees(name: str, most_bytes: int) -> None:
    problem = random_problem(7)
    prior = problem.prior(get_row(name))
    noise_kernel = kernels.SquaredExponential(0.8, 1.2)
    process = NoiseProcess.at_prior(noise_kernel, problem.inducing[::2], -1.5, ANY_NOISE)
    end = natural_ascent(prior, process, problem.rows, max_steps=4, most_bytes=most_bytes).state
    fresh = BoundState.evaluate(prior, end.process, problem.rows)
    assert end.value == pytest.approx(fresh.value, rel=1e-12)
    torch.testing.assert_close(end.row_noise.slopes.slope, fresh.row_noise.slopes.slope, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["vfe", "fitc", "pic"])
def test_statistics_leave_the_features_as_they_are(name: str) -> None:
    problem = random_problem(3)
    prior = problem.prior(get_row(name))
    groups = list(problem.rows.groups(prior.approx.by_block))
    kept = GroupFeatures(prior, groups, 10**9)
    before = [features.W.clone() for features in kept]
    for _ in range(2):
        whitened = (whiten_block(prior, group, kept[k]) for k, group in enumerate(groups))
        got = BlockStatistics.from_whitened(prior, whitened)
        expected = BlockStatistics.from_blocks(prior, groups)
        torch.testing.assert_close(got.precision, expected.precision, rtol=1e-13, atol=0.0)
    for features, W in zip(kept, before, strict=True):
        torch.testing.assert_close(features.W, W, rtol=0.0, atol=0.0)


def test_features_are_computed_once_and_only_as_many_as_fit_are_kept() -> None:
    problem = random_problem(3)
    prior = problem.prior(get_row("pic"))
    groups = list(problem.rows.blocks())
    n_bytes = 8 * len(groups[0]) * (prior.n_inducing + len(groups[0]))
    kept = GroupFeatures(prior, groups, n_bytes)
    assert kept[0] is kept[0]
    assert kept[1] is not kept[1]
    assert GroupFeatures(prior, groups, 0)[0] is not kept[0]
