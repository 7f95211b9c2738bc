"""What a step draws and how far it goes: block sources, samplings, schedules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from papers.sampling import PROPORTIONAL, UNIFORM
from problems import CHANGES, get_row, random_problem
from sparsegp.core.block import GivenBlocks, RandomBlocks
from sparsegp.core.statistics import BlockStatistics
from sparsegp.errors import InputError
from sparsegp.infer import anytime
from sparsegp.infer.anytime import WITHOUT_REPLACEMENT, Draw


def test_averaging_rates() -> None:
    assert anytime.Averaging().rate(3, 1, 4) == 0.25
    assert anytime.Averaging().rate(1, 3, 7) == pytest.approx(3 / 7)


@pytest.mark.parametrize("scheme", [UNIFORM, PROPORTIONAL, WITHOUT_REPLACEMENT])
def test_estimates_are_unbiased_for_uneven_blocks(scheme: anytime.Sampling) -> None:
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
def test_blocks_come_as_often_as_their_chance_says(scheme: anytime.Sampling) -> None:
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
