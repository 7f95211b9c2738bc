"""Block statistics are a commutative group; the fingerprint keeps different models apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from problems import (
    COMBINATIONS,
    INDUCING_ROWS,
    Problem,
    agree,
    get_row,
    random_problem,
    unwhitened,
    with_row_noise,
    with_weights,
)
from sparsegp import FingerprintError, kernels
from sparsegp.core import approximations
from sparsegp.core.block import CHUNK_ROWS, Block, MemoryRows
from sparsegp.core.posterior import InducingPosterior, log_evidence
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.kernels import Kernel

POINT_ROWS = ("sor", "vfe", "fitc", "pep", "points")
ROW_NAMES = st.sampled_from([*INDUCING_ROWS, *COMBINATIONS])
SEEDS = st.integers(0, 1_000)
laws = settings(deadline=None, max_examples=20)


def hard_problem(seed: int) -> Problem:
    return with_weights(with_row_noise(random_problem(seed, "rq"), seed), seed)


def parts(statistics: BlockStatistics) -> tuple[object, ...]:
    s = statistics
    return s.precision, s.shift, s.noise_logdet, s.target_sq, s.penalty, s.n_rows


def block_by_block(seed: int, name: str) -> tuple[SparsePrior, list[BlockStatistics]]:
    problem = hard_problem(seed)
    prior = problem.prior(get_row(name))
    return prior, [BlockStatistics.from_block(prior, block) for block in problem.rows.blocks()]


def equal(left: BlockStatistics, right: BlockStatistics, rtol: float = 1e-12) -> None:
    agree(parts(left), parts(right), rtol)
    assert left.fingerprint == right.fingerprint


@laws
@given(seed=SEEDS, name=ROW_NAMES)
def test_statistics_of_all_blocks_are_the_sum_of_their_statistics(seed: int, name: str) -> None:
    prior, each = block_by_block(seed, name)
    equal(sum(each), BlockStatistics.from_blocks(prior, hard_problem(seed).rows.blocks()))


@laws
@given(seed=SEEDS, name=st.sampled_from(POINT_ROWS), mask=st.lists(st.booleans(), min_size=20, max_size=20))
def test_rows_without_blocks_add_up_over_any_split(seed: int, name: str, mask: list[bool]) -> None:
    problem, first = hard_problem(seed), torch.tensor(mask)
    prior, block = problem.prior(get_row(name)), problem.block
    left, right = (BlockStatistics.from_block(prior, block.take(part)) for part in (first, ~first))
    equal(left + right, BlockStatistics.from_block(prior, block))


@laws
@given(seed=SEEDS, name=ROW_NAMES, order=st.permutations(range(4)))
def test_addition_is_commutative_and_associative(seed: int, name: str, order: list[int]) -> None:
    _, each = block_by_block(seed, name)
    a, b, c, d = (each[k] for k in order)
    equal((a + b) + (c + d), ((each[0] + each[1]) + each[2]) + each[3])


@laws
@given(seed=SEEDS, name=ROW_NAMES, k=st.integers(0, 3))
def test_a_block_added_can_be_taken_away_again(seed: int, name: str, k: int) -> None:
    _, each = block_by_block(seed, name)
    rest = sum(each[:k] + each[k + 1 :])
    equal(sum(each) - each[k], rest, rtol=1e-11)
    assert InducingPosterior.from_statistics(sum(each) - each[k]).mean == pytest.approx(
        InducingPosterior.from_statistics(rest).mean, rel=1e-9, abs=1e-9
    )


@laws
@given(seed=SEEDS, name=ROW_NAMES, a=st.floats(-3.0, 3.0), b=st.floats(-3.0, 3.0))
def test_scaling_is_linear(seed: int, name: str, a: float, b: float) -> None:
    _, (s, t, *_) = block_by_block(seed, name)
    scale = 1e-11 * (1.0 + max(float(np.abs(np.asarray(part)).max()) for part in (*parts(s), *parts(t))))
    for left, right in (
        (a * s + b * s, (a + b) * s),
        (a * (s + t), s * a + t * a),
        (-s, -1.0 * s),
        (s + s, 2.0 * s),
    ):
        for got, expected in zip(parts(left), parts(right), strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-11, atol=scale)


@laws
@given(seed=SEEDS, name=ROW_NAMES)
def test_zero_is_neutral_and_is_the_prior(seed: int, name: str) -> None:
    prior, (s, *_) = block_by_block(seed, name)
    zero = BlockStatistics.zero(prior)
    for same in (s + zero, zero + s, s + (s - s), sum([s])):
        equal(same, s)
    q = InducingPosterior.from_statistics(zero)
    assert log_evidence(zero, q) == 0.0
    with torch.no_grad():
        agree(unwhitened(q, prior), (torch.zeros(prior.n_inducing), prior.kernel(prior.inducing)), rtol=1e-12)


@laws
@given(seed=SEEDS, name=ROW_NAMES)
def test_precision_is_symmetric_and_positive_semidefinite(seed: int, name: str) -> None:
    _, each = block_by_block(seed, name)
    for statistics in (*each, sum(each)):
        assert torch.equal(statistics.precision, statistics.precision.mT)
        values = torch.linalg.eigvalsh(statistics.precision)
        assert values.min() > -1e-12 * values.max()
    # a block of one row says one thing: rank 1
    assert torch.linalg.matrix_rank(each[1].precision) == 1


@pytest.mark.parametrize("name", POINT_ROWS)
def test_chunking_does_not_matter(name: str) -> None:
    problem = hard_problem(5)
    prior, rows = problem.prior(get_row(name)), problem.rows
    whole = BlockStatistics.from_block(prior, rows.all)
    for size in (1, 3, 7, 20, CHUNK_ROWS):
        equal(BlockStatistics.from_blocks(prior, rows.chunks(size)), whole)


def se(**changes: object) -> Kernel:
    return kernels.SquaredExponential(**({"variance": 1.2, "lengthscales": 0.7} | changes))


def matern(**changes: object) -> Kernel:
    return kernels.Matern32(**({"variance": 1.2, "lengthscales": 0.7} | changes))


def in_units(y_scale: float) -> Kernel:
    return kernels.Rescaled(se(), torch.zeros(2), torch.ones(2), y_scale)


DIFFERENT: dict[str, tuple[Kernel, Kernel]] = {
    "variance": (se(), se(variance=1.3)),
    "lengthscale": (se(), se(lengthscales=0.8)),
    "class": (se(), matern()),
    "class within a sum": (se() + kernels.Linear(0.5), matern() + kernels.Linear(0.5)),
    "class within a product": (se() * kernels.Periodic(), matern() * kernels.Periodic()),
    "sum or product": (se() + matern(), se() * matern()),
    "columns": (se(active_dims=[0]), se(active_dims=[1])),
    "exponent": (se() ** 2, se() ** 3),
    "center": (kernels.Linear(0.5), kernels.Linear(0.5, [0.1, 0.0])),
    "units of y": (in_units(1.5), in_units(1.6)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_statistics_of_different_kernels_do_not_add(what: str) -> None:
    problem = random_problem(7, n_inducing=2)
    left, right = (replace(problem, kernel=kernel) for kernel in DIFFERENT[what])
    row = get_row("vfe")
    assert not torch.equal(left.kernel(problem.X[:3]), right.kernel(problem.X[:3]))
    statistics = [BlockStatistics.from_block(p.prior(row), problem.block) for p in (left, right)]
    with pytest.raises(FingerprintError, match="same inducing inputs, hyper-parameters"):
        statistics[0] + statistics[1]


@pytest.mark.parametrize(
    "changed",
    [
        lambda p: replace(p, noise_var=p.noise_var * 1.01),
        lambda p: replace(p, inducing=p.inducing + 1e-9),
        lambda p: replace(p, inducing=p.inducing.flip(0)),
        lambda p: replace(p, inducing=p.inducing[:-1]),
    ],
)
def test_statistics_of_different_noise_or_inducing_inputs_do_not_add(changed: object) -> None:
    problem, row = random_problem(8), get_row("fitc")
    other = changed(problem)
    left, right = (BlockStatistics.from_block(p.prior(row), problem.block) for p in (problem, other))
    for operation in (left.__add__, left.__sub__):
        with pytest.raises(FingerprintError):
            operation(right)


def test_statistics_of_different_rows_do_not_add_and_those_of_equal_models_do() -> None:
    problem = random_problem(9)
    rows = [get_row(name) for name in (*INDUCING_ROWS, *COMBINATIONS)] + [approximations.power_ep(0.41)]
    prints = {problem.prior(row).fingerprint for row in rows}
    assert len(prints) == len(rows)
    again = random_problem(9)
    assert {again.prior(row).fingerprint for row in rows} == prints


def test_statistics_do_not_add_to_other_things() -> None:
    prior, (s, *_) = block_by_block(10, "vfe")
    for other in (1.0, "a", None, prior):
        with pytest.raises(TypeError):
            s + other
        with pytest.raises(TypeError):
            other + s


def test_blocks_of_rows_are_views_in_order_and_subsets_keep_whole_blocks() -> None:
    problem = hard_problem(11)
    rows = problem.rows
    assert [len(block) for block in rows.blocks()] == [9, 1, 6, 4]
    chosen = rows.subset_of_blocks(torch.tensor([2, 1]))
    assert [len(block) for block in chosen.blocks()] == [6, 1]
    for got, expected in ((chosen.block(0), rows.block(2)), (chosen.block(1), rows.block(1))):
        assert all(torch.equal(getattr(got, f), getattr(expected, f)) for f in ("X", "y", "noise_var", "weight"))
    assert rows.all.n_rows == float(problem.weight.sum())
    assert MemoryRows(Block(problem.X, problem.y)).subset(torch.tensor([3, 1])).all.y.tolist() == [
        float(problem.y[3]),
        float(problem.y[1]),
    ]
