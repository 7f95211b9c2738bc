"""Natural-gradient steps on q with Adam on the rest: its gradient is the right one, and learning works."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from problems import CHANGES, INDUCING_ROWS, Problem, get_row, random_problem, tensor
from sparsegp import kernels
from sparsegp.core.block import Block, BlockSource, GivenBlocks, MemoryRows, RandomBlocks
from sparsegp.core.evidence import expected_log_likelihood
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.core.trend import Trend
from sparsegp.errors import InputError
from sparsegp.learn import stochastic
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.objective import CollapsedObjective
from sparsegp.learn.stochastic import accumulate_gradient
from sparsegp.learn.trace import LearningStep

WIDE = Limits((1e-4, 10.0), torch.full((2,), -4.0, dtype=torch.float64), torch.full((2,), 4.0, dtype=torch.float64))


def prior_of(hyper: Hyperparameters, name: str) -> SparsePrior:
    return hyper.prior(get_row(name))


def block_gradients(problem: Problem, name: str, q: InducingPosterior, blocks: list[Block]) -> np.ndarray:
    """Gradient of each block's term of J(q), one row a block."""
    hyper = problem.hyperparameters()
    prior = prior_of(hyper, name)
    gradients = []
    for block in blocks:
        accumulate_gradient(hyper, prior, q, [block], [BlockStatistics.from_block(prior, block)])
        gradients.append(hyper.gradient())
    return np.array(gradients)


def near(got: np.ndarray, expected: np.ndarray, rtol: float) -> None:
    np.testing.assert_allclose(got, expected, rtol=0.0, atol=rtol * np.abs(expected).max())


def blocks_of(rows: MemoryRows, name: str) -> BlockSource:
    return rows.draws(stochastic.BLOCK_ROWS, np.random.default_rng(0), by_block=get_row(name).by_block)


def with_plane(problem: Problem) -> Problem:
    return replace(problem, trend=Trend((0, 1)))


@pytest.mark.parametrize("change", ["plain", "trend", *CHANGES])
@pytest.mark.parametrize("name", [*INDUCING_ROWS, "all shapes"])
def test_expected_gradient_at_the_optimum_is_that_of_the_evidence(name: str, change: str) -> None:
    problem = {"plain": lambda same: same, "trend": with_plane, **CHANGES}[change](random_problem(21))
    hyper = problem.hyperparameters()
    CollapsedObjective(problem.rows, get_row(name)).value_and_gradient(hyper)
    blocks = list(problem.rows.blocks())
    q = InducingPosterior.from_statistics(BlockStatistics.from_blocks(prior_of(hyper, name), blocks))
    # K blocks drawn with chance 1/K and weight K: the expectation is the plain sum
    near(block_gradients(problem, name, q, blocks).sum(0), hyper.gradient(), 1e-8)


@pytest.mark.parametrize("name", [*INDUCING_ROWS, "all shapes"])
def test_gradient_of_a_block_at_any_posterior(name: str) -> None:
    """Against central differences of the block's term, q(v) held."""
    problem = random_problem(22)
    rng = np.random.default_rng(0)
    root = tensor(rng.normal(size=(6, 6))) / 3.0
    prior = problem.prior(get_row(name))
    q = InducingPosterior.from_moments(prior, tensor(rng.normal(size=6)), root @ root.mT + 0.2 * torch.eye(6))
    block = problem.rows.block(0)
    (gradient,) = block_gradients(problem, name, q, [block])
    hyper = problem.hyperparameters()
    start = hyper.vector()

    def value(vector: np.ndarray) -> float:
        hyper.load_vector(vector)
        return expected_log_likelihood(BlockStatistics.from_block(prior_of(hyper, name), block), q)

    steps = 1e-5 * np.eye(len(start))
    numeric = [(value(start + step) - value(start - step)) / 2e-5 for step in steps]
    near(gradient, np.array(numeric), 1e-6)


def test_gradients_of_several_blocks_add_up() -> None:
    problem = random_problem(23)
    for name in ("vfe", "fitc", "pitc"):
        prior = problem.prior(get_row(name))
        blocks = list(problem.rows.blocks())[:3]
        q = InducingPosterior.from_statistics(BlockStatistics.from_block(prior, blocks[1]))
        hyper = problem.hyperparameters()
        parts = [BlockStatistics.from_block(prior, block) for block in blocks]
        accumulate_gradient(hyper, prior, q, blocks, parts)
        near(hyper.gradient(), block_gradients(problem, name, q, blocks).sum(0), 1e-10)


def learning_rows(n: int = 800) -> MemoryRows:
    """Rows sorted into 16 cells of a grid."""
    rng = np.random.default_rng(5)
    X = rng.uniform(-2.0, 2.0, (n, 2))
    cell = np.floor(X[:, 0] + 2.0).astype(int) * 4 + np.floor(X[:, 1] + 2.0).astype(int)
    order = np.argsort(cell, kind="stable")
    X, cell = X[order], cell[order]
    y = np.sin(2.5 * X[:, 0]) * np.cos(1.5 * X[:, 1]) + 0.2 * rng.normal(size=n)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(cell, minlength=16))])
    return MemoryRows(Block(tensor(X), tensor(y)), torch.from_numpy(offsets))


def wrong_start() -> Hyperparameters:
    grid = torch.linspace(-1.5, 1.5, 4, dtype=torch.float64)
    kernel = kernels.SquaredExponential(0.5, [2.5, 2.5])
    return Hyperparameters(kernel, 0.5, torch.cartesian_prod(grid, grid))


@pytest.mark.parametrize("name", ["vfe", "dtc", "fitc", "pitc", "pic"])
def test_learning_raises_the_evidence(name: str) -> None:
    rows, hyper = learning_rows(), wrong_start()
    objective = CollapsedObjective(rows, get_row(name))
    before = objective.value(hyper)
    source = GivenBlocks(rows) if get_row(name).by_block else RandomBlocks.build(rows, 80, np.random.default_rng(0))
    values: list[float] = []

    def listen(step: LearningStep) -> bool:
        values.append(step.objective)
        return False

    result = stochastic.learn(
        source, get_row(name), hyper, WIDE, rng=np.random.default_rng(1), steps=200, on_step=listen
    )
    after = objective.value(hyper)
    sensible = Hyperparameters(kernels.SquaredExponential(0.6, [0.9, 1.4]), 0.06, hyper.inducing)
    assert after - before > 0.9 * (objective.value(sensible) - before) > 300.0
    assert abs(result.objective - after) < 0.1 * abs(before)
    assert (result.iterations, len(values), result.n_rows, result.stopped) == (200, 200, 800, False)
    assert 0.01 < float(hyper.noise_var) < 0.2


def test_learning_from_rows_respects_limits_and_the_listener() -> None:
    rows, hyper = learning_rows(300), wrong_start()
    narrow = Limits((0.4, 0.6), torch.full((2,), -1.6, dtype=torch.float64), torch.full((2,), 1.6, dtype=torch.float64))
    result = stochastic.learn(
        blocks_of(MemoryRows(rows.all), "vfe"),
        get_row("vfe"),
        hyper,
        narrow,
        rng=np.random.default_rng(0),
        steps=50,
        blocks_per_step=2,
    )
    assert 0.4 <= float(hyper.noise_var) <= 0.6
    assert float(hyper.inducing.detach().abs().max()) <= 1.6 + 1e-12
    assert result.reason == "budget used"
    stopped = stochastic.learn(
        blocks_of(rows, "pitc"),
        get_row("pitc"),
        hyper,
        narrow,
        rng=np.random.default_rng(0),
        seconds=60.0,
        on_step=lambda step: True,
    )
    assert (stopped.iterations, stopped.stopped) == (1, True)


def test_seconds_are_those_of_the_clock() -> None:
    rows, hyper, now = learning_rows(200), wrong_start(), [0.0]

    def one_second_later(_: LearningStep) -> bool:
        now[0] += 1.0
        return False

    result = stochastic.learn(
        blocks_of(rows, "pitc"),
        get_row("pitc"),
        hyper,
        WIDE,
        rng=np.random.default_rng(0),
        seconds=7.0,
        on_step=one_second_later,
        clock=lambda: now[0],
    )
    assert (result.iterations, result.seconds, result.reason) == (7, 7.0, "budget used")


def test_what_is_fixed_stays_and_known_noise_is_not_learned() -> None:
    rows = learning_rows(200)
    known = MemoryRows(replace(rows.all, noise_var=torch.full_like(rows.all.y, 0.05)), rows.offsets)
    start = wrong_start()
    hyper = Hyperparameters(start.kernel, 0.5, start.inducing, learn_inducing=False)
    stochastic.learn(blocks_of(known, "vfe"), get_row("vfe"), hyper, WIDE, rng=np.random.default_rng(0), steps=30)
    assert float(hyper.noise_var) == pytest.approx(0.5)
    assert torch.equal(hyper.inducing, start.inducing)
    assert not torch.equal(hyper.kernel.lengthscales, start.kernel.lengthscales)


def test_a_failed_factorisation_leads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third Adam step asks for a model that cannot be factorised; learning returns to the last good one."""
    rows, hyper = learning_rows(200), wrong_start()
    build, calls = SparsePrior.build, [0]

    def failing(*arguments: object, **options: object) -> SparsePrior:
        calls[0] += 1
        if calls[0] == 14:
            raise stochastic.FactorizationError("made up")
        return build(*arguments, **options)

    monkeypatch.setattr(stochastic.SparsePrior, "build", failing)
    result = stochastic.learn(
        blocks_of(rows, "pitc"), get_row("pitc"), hyper, WIDE, rng=np.random.default_rng(0), steps=40
    )
    assert result.iterations == 40
    assert np.isfinite(hyper.vector()).all()
    assert np.isfinite(result.objective)


@pytest.mark.parametrize("budget", [{}, {"seconds": 0.0}, {"seconds": -1.0}, {"steps": 0}])
def test_a_budget_is_needed(budget: dict[str, float]) -> None:
    with pytest.raises(InputError, match="seconds > 0 or steps >= 1"):
        stochastic.learn(
            blocks_of(learning_rows(100), "vfe"),
            get_row("vfe"),
            wrong_start(),
            WIDE,
            rng=np.random.default_rng(0),
            **budget,
        )
