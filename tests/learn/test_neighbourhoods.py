"""Kernel and noise from neighbourhoods: what is close is taken, quick variation is found, worse rounds are undone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sparsegp import kernels
from sparsegp.core.block import Block
from sparsegp.core.dense import ExactPosterior
from sparsegp.learn import neighbourhoods
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.neighbourhoods import Opening, Rounds, held_out_log_density, learn
from sparsegp.learn.trace import Terms

QUICK = Rounds(counts=(4, 4, 4), n_rows=80, iterations=30, n_judged=40, n_neighbours=40)


def quickly_varying(n_rows: int = 3000) -> Block:
    """Varies within 0.02 of the first column, not at all along the second."""
    rng = np.random.default_rng(4)
    X = rng.uniform(-1.0, 1.0, (n_rows, 2))
    y = np.sin(60.0 * X[:, 0]) + 0.1 * rng.standard_normal(n_rows)
    return Block(torch.from_numpy(X), torch.from_numpy(y))


def start(block: Block) -> tuple[Hyperparameters, Limits]:
    hyper = Hyperparameters(kernels.Matern32(1.0, [1.0, 1.0]), 0.3, block.X[:1], learn_inducing=False)
    return hyper, Limits((1e-6, 100.0), block.X.amin(0), block.X.amax(0))


def test_a_neighbourhood_holds_the_rows_nearest_in_the_metric() -> None:
    block = quickly_varying(200)
    metric = torch.tensor([5.0, 0.1], dtype=torch.float64)
    for part in neighbourhoods.neighbourhoods(block, metric, 3, 25, np.random.default_rng(1)):
        distance = ((block.X[:, None] - part.X) * metric).square().sum(2)
        radii = distance.topk(25, dim=0, largest=False).values[-1]
        assert any(
            sorted(map(tuple, part.X.tolist())) == sorted(map(tuple, block.X[distance[:, k] <= radii[k]].tolist()))
            for k in range(25)
        )


def test_no_more_neighbourhoods_than_rows_allow() -> None:
    parts = neighbourhoods.neighbourhoods(quickly_varying(30), torch.ones(2), 8, 500, np.random.default_rng(1))
    assert [len(part) for part in parts] == [30]


def test_quick_variation_is_found() -> None:
    block = quickly_varying()
    hyper, limits = start(block)
    before = held_out_log_density(block, hyper, torch.arange(50), 40)
    results = learn(block, hyper, Terms(limits, np.random.default_rng(2)), QUICK)
    quick, flat = hyper.kernel.lengthscales.tolist()
    assert quick < 0.2 < 1.0 < flat
    assert float(hyper.noise_var) == pytest.approx(0.01, rel=0.7)
    assert held_out_log_density(block, hyper, torch.arange(50), 40) > before + 0.5
    assert 1 <= len(results) <= 3


def test_a_round_that_predicts_worse_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    block = quickly_varying(400)
    hyper, limits = start(block)
    seen: list[np.ndarray] = []

    def worse_each_time(block: Block, hyper: Hyperparameters, judged: torch.Tensor, n: int) -> float:
        seen.append(hyper.vector())
        return -float(len(seen))

    monkeypatch.setattr(neighbourhoods, "held_out_log_density", worse_each_time)
    results = learn(block, hyper, Terms(limits, np.random.default_rng(2)), QUICK)
    n_openings = len(seen) - 1
    assert len(results) == len(seen)
    assert n_openings == 2
    np.testing.assert_array_equal(hyper.vector(), seen[0])


def test_openings_take_turns_and_repeat_only_where_rows_differ() -> None:
    """Each climb sees other neighbourhoods where rows are many; one of a kind is enough where all see all rows."""
    openings = (Opening(1.0, 1.0, 2), Opening(0.3, 1.0, 3), Opening(0.3, 0.1, 2))
    rounds = replace(QUICK, counts=(), openings=openings, opening_count=2, opening_rows=20, opening_iterations=2)

    def n_climbs(n_rows: int, kernel: kernels.Kernel | None = None) -> int:
        block = quickly_varying(n_rows)
        hyper, limits = start(block)
        hyper.kernel = kernel or hyper.kernel
        return len(learn(block, hyper, Terms(limits, np.random.default_rng(2)), rounds))

    assert n_climbs(1000) == 7
    assert n_climbs(300) == 5  # a tenth of the rows is too few
    assert n_climbs(40) == 2
    assert n_climbs(1000, kernels.Linear()) == 5  # no lengthscales to shorten: all of the rows, and a tenth


def test_a_caller_can_stop_it() -> None:
    block = quickly_varying(400)
    hyper, limits = start(block)
    results = learn(block, hyper, Terms(limits, np.random.default_rng(2), on_step=lambda step: True), QUICK)
    assert len(results) == 1
    assert results[0].stopped


def test_held_out_rows_are_predicted_without_their_own_target() -> None:
    block = quickly_varying(120)
    hyper, _ = start(block)
    judged = torch.tensor([3, 50])
    changed = Block(block.X, block.y.clone())
    changed.y[3] += 100.0
    assert held_out_log_density(changed, hyper, judged, 30) < held_out_log_density(block, hyper, judged, 30) - 100.0


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize("n_rows", [60, 700])
def test_rows_predicted_together_are_those_of_exact_models(n_rows: int, known_noise: bool) -> None:
    """From covariances of all rows where they are few, and of groups where they are many; copies are left out."""
    block = quickly_varying(n_rows)
    block = block.take(torch.cat([torch.arange(n_rows), torch.tensor([0])]))
    if known_noise:
        block = replace(block, noise_var=torch.linspace(0.1, 0.4, len(block), dtype=torch.float64))
    hyper = Hyperparameters(kernels.Matern32(1.3, [0.2, 0.7]), 0.2, block.X[:1])
    judged = torch.tensor([0, 7, 31])
    mean, var = neighbourhoods.predicted_by_neighbours(block, hyper, judged, 20)
    for k, row in enumerate(judged.tolist()):
        distance = ((block.X - block.X[row]) / hyper.kernel.lengthscales.detach()).square().sum(1)
        distance[distance == 0.0] = torch.inf
        near = block.take(distance.topk(20, largest=False).indices)
        posterior = ExactPosterior.build(hyper.kernel, near, hyper.noise_var)
        expected, spread = posterior.marginals(block.X[[row]])
        own = hyper.noise_var if block.noise_var is None else block.noise_var[row]
        assert float(mean[k]) == pytest.approx(float(expected), rel=1e-9)
        assert float(var[k]) == pytest.approx(float(spread + own), rel=1e-9)
