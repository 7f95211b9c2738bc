"""The prior that remembers rows during a natural ascent says what a forgetful one says."""

from __future__ import annotations

import pytest
import torch

from problems import get_row, random_problem
from sparsegp import kernels
from sparsegp.heteroscedastic import held_prior
from sparsegp.heteroscedastic.bound import BoundState, natural_ascent
from sparsegp.heteroscedastic.held_prior import HeldPrior
from sparsegp.heteroscedastic.noise_process import NoiseProcess

ANY_NOISE = (1e-12, 1e12)


@pytest.mark.parametrize("name", ["vfe", "fitc", "pic"])
@pytest.mark.parametrize("most_bytes", [0, 4000, 10**9])
def test_ascent_ends_where_a_fresh_evaluation_agrees(
    name: str, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_prior, "MOST_BYTES", most_bytes)
    problem = random_problem(7)
    prior = problem.prior(get_row(name))
    noise_kernel = kernels.SquaredExponential(0.8, 1.2)
    process = NoiseProcess.at_prior(noise_kernel, problem.inducing[::2], -1.5, ANY_NOISE)
    end = natural_ascent(prior, process, problem.rows, max_steps=4).state
    fresh = BoundState.evaluate(prior, end.process, problem.rows)
    assert end.value == pytest.approx(fresh.value, rel=1e-12)
    torch.testing.assert_close(end.slopes().slope, fresh.slopes().slope, rtol=1e-10, atol=1e-12)
    assert not isinstance(end.f_prior, HeldPrior)
    assert not isinstance(end.process.prior, HeldPrior)


def test_what_is_given_out_by_points_may_be_changed_in_place() -> None:
    problem = random_problem(3)
    prior = HeldPrior.of(problem.prior(get_row("vfe")))
    X = problem.rows.all.X
    first = prior.features(X)
    expected = first.clone()
    first.zero_()
    torch.testing.assert_close(prior.features(X), expected)
    assert prior.kept
