"""A trend is a kernel b^2 T(x) T(x')^T that no approximation touches: against the dense oracle, and by itself."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from problems import (
    ALL_ROWS,
    CHANGES,
    COMBINATIONS,
    INDUCING_ROWS,
    DenseProblem,
    Problem,
    agree,
    get_row,
    random_problem,
)
from sparsegp import kernels, linalg
from sparsegp.core.block import Block
from sparsegp.core.posterior import InducingPosterior, SparsePosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.core.trend import Trend, detrended
from sparsegp.errors import FingerprintError
from sparsegp.testing.approximation_checks import check_approximation

TRENDS = {"linear": Trend((0, 1)), "constant": Trend(()), "one column": Trend((1,), width=3.0)}


def with_trend(seed: int, name: str = "linear", kernel: str = "se-ard") -> Problem:
    return replace(random_problem(seed, kernel), trend=TRENDS[name])


@pytest.mark.parametrize("trend", TRENDS)
@pytest.mark.parametrize("name", ALL_ROWS)
def test_row_with_a_trend_is_its_dense_definition(name: str, trend: str) -> None:
    problem = with_trend(50, trend, "rq")
    agree(problem.results(name), DenseProblem.of(problem).results(name), rtol=1e-7)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ALL_ROWS)
def test_weights_and_row_noise_with_a_trend(name: str, change: str) -> None:
    problem = CHANGES[change](with_trend(51))
    agree(problem.results(name), DenseProblem.of(problem).results(name), rtol=1e-7)


@pytest.mark.parametrize("name", [*ALL_ROWS, "sod", *COMBINATIONS])
def test_value_and_gradient_are_those_of_the_effective_prior(name: str) -> None:
    kernel = kernels.SquaredExponential(1.4, [0.8, 1.3])
    check_approximation(get_row(name), kernel=kernel, seed=4, trend=TRENDS["linear"])


@pytest.mark.parametrize("name", [name for name in INDUCING_ROWS if name not in ("pic", "block-pep", "pitc")])
def test_a_few_rows_are_predicted_without_a_root(name: str) -> None:
    """`transient` posteriors answer by solves, others by a signed root: the same."""
    problem = with_trend(52)
    posterior, _ = problem.infer(get_row(name))
    assert isinstance(posterior, SparsePosterior)
    few = replace(posterior, transient=True)
    one = torch.cat([few.marginals(x[None])[1] for x in problem.X_test])
    agree((one,), (posterior.marginals(problem.X_test)[1],), rtol=1e-10)


@pytest.mark.parametrize("name", ["vfe", "fitc", "exact"])
def test_a_broad_prior_is_nowhere_subtracted(name: str) -> None:
    """Variances far below b^2 keep their digits: little noise, many rows of a plane."""
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(400, 2)))
    y = X @ torch.tensor([0.6, -0.3], dtype=torch.float64)
    kernel = kernels.SquaredExponential(1e-6, 1.0)
    problem = Problem(kernel, X, y, X[:10], 1e-8, X[:5] + 0.01, torch.zeros(400).long(), torch.zeros(5).long())
    variances = []
    for width in (3.0, 1000.0):
        posterior = replace(problem, trend=Trend((0, 1), width)).posterior(name)[0]
        variances.append(posterior.marginals(X[:50] * 2.0)[1])
    assert float(variances[0].min()) > 0.0
    agree((variances[1],), (variances[0],), rtol=1e-4)


def test_float32_rows_have_the_variances_of_float64() -> None:
    problem = with_trend(53)
    posterior, _ = problem.infer(get_row("vfe"))
    agree(posterior.marginals(problem.X_test.float()), posterior.marginals(problem.X_test), rtol=3e-3)


def test_least_squares_is_recovered() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 3))
    y = X @ [0.8, -0.4, 0.1] + 0.3 * rng.normal(size=60)
    A = np.column_stack([np.ones(60), X])
    expected = y - A @ np.linalg.lstsq(A, y, rcond=None)[0]
    left = detrended(Block(torch.from_numpy(X), torch.from_numpy(y)), Trend((0, 1, 2)))
    np.testing.assert_allclose(left.y.numpy(), expected, atol=1e-3)


def test_rows_of_weight_zero_have_no_say_in_what_is_left() -> None:
    X, y = torch.arange(6.0).double()[:, None], torch.tensor([0.0, 1, 2, 3, 4, 50], dtype=torch.float64)
    weight = torch.tensor([1.0, 1, 1, 1, 1, 0], dtype=torch.float64)
    left = detrended(Block(X, y, weight=weight), Trend((0,), 1000.0))
    np.testing.assert_allclose(left.y[:5].numpy(), 0.0, atol=1e-3)


def test_without_a_trend_the_block_is_left_alone() -> None:
    block = Block(torch.ones(3, 1), torch.ones(3))
    assert detrended(block, None) is block


def test_far_from_the_data_the_trend_is_followed_and_the_std_grows() -> None:
    problem = with_trend(54)
    posterior, _ = problem.infer(get_row("fitc"))
    far = torch.tensor([[10.0, 10.0], [20.0, 20.0], [40.0, 40.0], [80.0, 80.0]], dtype=torch.float64)
    mean, var = posterior.marginals(far)
    slope = problem.trend.width * posterior.q.mean[-2:]  # type: ignore[union-attr]
    np.testing.assert_allclose(mean[1:] - mean[:-1], (far[1:] - far[:-1]) @ slope, rtol=1e-6)
    assert bool((var[1:] > var[:-1]).all())


def test_statistics_of_another_trend_do_not_add() -> None:
    problem = with_trend(55)
    one, other = (BlockStatistics.zero(replace(problem, trend=trend).prior(get_row("vfe"))) for trend in TRENDS_OF_TWO)
    with pytest.raises(FingerprintError):
        one + other


TRENDS_OF_TWO = (Trend((0, 1)), Trend((0, 1), 9.0))


def test_a_prior_travels_with_its_trend() -> None:
    prior = with_trend(56).prior(get_row("vfe"))
    copy: SparsePrior = pickle.loads(pickle.dumps(prior))
    assert (copy.trend, copy.fingerprint) == (prior.trend, prior.fingerprint)


def test_moments_of_inducing_values_and_coefficients_become_q() -> None:
    problem = with_trend(57)
    posterior, _ = problem.infer(get_row("vfe"))
    root, q = posterior.prior.root, posterior.q
    found = InducingPosterior.from_moments(posterior.prior, root @ q.mean, root @ q.covariance @ root.mT)
    agree((found.mean, linalg.symmetric(found.covariance)), (q.mean, q.covariance), rtol=1e-6)
