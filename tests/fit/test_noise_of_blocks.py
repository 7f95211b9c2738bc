"""Noise next to nothing: a block that cannot be factored gets more of it, and only where it is learned."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sparsegp import FactorizationError, kernels
from sparsegp.core import approximations
from sparsegp.core.block import Block, MemoryRows
from sparsegp.fit.in_steps import MOST_ADDED_NOISE, with_enough_noise
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective

SIGNAL, NOISE = 1e6, 1e-12


def case(*, approximation: str = "pic", learn_noise: bool = True) -> tuple[Hyperparameters, Any]:
    X = torch.from_numpy(np.random.default_rng(0).uniform(-1.0, 1.0, (200, 1)))
    block, approx = Block(X, torch.sin(3.0 * X[:, 0])), approximations.get(approximation)
    rows = MemoryRows(block, torch.tensor([0, 200])) if approx.by_block else MemoryRows(block)
    kernel = kernels.SquaredExponential(SIGNAL, [1.0])
    hyper = Hyperparameters(kernel, NOISE, X[:80], learn_noise=learn_noise, learn_inducing=False)
    return hyper, SimpleNamespace(problem=SimpleNamespace(approx=approx), rows=rows)


def test_noise_grows_tenfold_until_a_block_can_be_factored() -> None:
    hyper, arranged = case()
    objective = CollapsedObjective(arranged.rows, arranged.problem.approx)
    with pytest.raises(FactorizationError, match="noise covariance of a block"):
        objective.value(hyper)
    value = with_enough_noise(hyper, arranged, lambda: objective.value(hyper))
    steps = math.log10(float(hyper.noise_var) / NOISE)
    assert math.isfinite(value)
    assert steps == pytest.approx(round(steps), abs=1e-6)
    assert 1 <= round(steps) <= math.log10(MOST_ADDED_NOISE * SIGNAL / NOISE) + 1


@pytest.mark.parametrize(
    ("settings", "grows"), [({"learn_noise": False}, False), ({"approximation": "vfe"}, False), ({}, True)]
)
def test_what_cannot_be_mended_is_raised(settings: dict[str, Any], grows: bool) -> None:
    """Noise that was given stays, approximations without blocks have another trouble, and more has an end."""
    hyper, arranged = case(**settings)

    def fails() -> None:
        raise FactorizationError("always")

    with pytest.raises(FactorizationError, match="always"):
        with_enough_noise(hyper, arranged, fails)
    assert (float(hyper.noise_var) > 2.0 * NOISE) is grows
    assert float(hyper.noise_var) <= 10.0 * MOST_ADDED_NOISE * SIGNAL * 1.01
