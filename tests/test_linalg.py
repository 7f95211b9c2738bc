"""The jitter policy and the products written once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsegp import FactorizationError, linalg

SEEDS = st.integers(0, 1_000)
laws = settings(deadline=None, max_examples=25)


def random_matrix(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def positive_definite(seed: int, n: int) -> Tensor:
    A = random_matrix(seed, n, n)
    return A @ A.mT + 0.1 * torch.eye(n, dtype=torch.float64)


def close(got: Tensor, expected: Tensor, rtol: float = 1e-10) -> None:
    torch.testing.assert_close(got, expected, rtol=rtol, atol=rtol * float(expected.abs().max()) + 1e-300)


def singular(n: int, rank: int, scale: float = 1.0) -> Tensor:
    A = random_matrix(n, n, rank)
    return scale * A @ A.mT


@laws
@given(seed=SEEDS, n=st.integers(1, 8), scale=st.sampled_from([1e-12, 1.0, 1e12]))
def test_a_safe_matrix_is_factored_as_it_is(seed: int, n: int, scale: float) -> None:
    A = scale * positive_definite(seed, n)
    result = linalg.cholesky(A, name="A")
    assert result.jitter == 0.0
    close(result.factor @ result.factor.mT, A)
    assert float(result.logdet) == pytest.approx(float(torch.linalg.slogdet(A)[1]), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize(("n", "rank"), [(5, 1), (12, 4)])
def test_a_singular_matrix_gets_the_same_relative_jitter_at_any_scale(n: int, rank: int, scale: float) -> None:
    A = singular(n, rank, scale)
    result = linalg.cholesky(A, name="A")
    assert 0.0 < result.jitter == linalg.cholesky(singular(n, rank), name="A").jitter <= 1e-8
    close(result.factor @ result.factor.mT, linalg.add_jitter(A, result.jitter), rtol=1e-12)
    assert (result.factor.diagonal().square() > linalg.SMALLEST_PIVOT * A.diagonal().mean()).all()


def test_a_pivot_of_rounding_noise_counts_as_a_failure() -> None:
    A = torch.diag(torch.tensor([1.0, 1e-13], dtype=torch.float64))
    assert linalg.cholesky(A, name="A").jitter > 0.0
    assert linalg.cholesky(A, name="A", smallest_pivot=0.0).jitter == 0.0


def test_jitter_is_the_smallest_of_the_policy_that_works_and_never_below_the_least_asked() -> None:
    A = torch.eye(3, dtype=torch.float64)
    A[0, 1] = A[1, 0] = 1.0 + 3e-7
    assert linalg.cholesky(A, name="A").jitter == 1e-6
    for least in linalg.JITTERS:
        assert linalg.cholesky(torch.eye(2, dtype=torch.float64), name="I", least_jitter=least).jitter == least


def test_an_indefinite_matrix_is_an_error_that_names_it_and_says_what_to_do() -> None:
    A = torch.diag(torch.tensor([1.0, -0.5], dtype=torch.float64))
    with pytest.raises(FactorizationError, match=r"Kuu \(2 x 2\) is not positive definite.*Try fewer inducing"):
        linalg.cholesky(A, name="Kuu")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_entries_that_are_not_finite_are_an_error_not_a_nan(bad: float) -> None:
    A = torch.eye(3, dtype=torch.float64)
    A[2, 1] = bad
    with pytest.raises(FactorizationError, match="Kuu has entries that are not finite"):
        linalg.cholesky(A, name="Kuu")


def test_the_gradient_sees_the_jitter_of_the_value() -> None:
    A = positive_definite(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda A: linalg.add_jitter(A, 1e-3), (A,))
    (adjoint,) = torch.autograd.grad(linalg.add_jitter(A, 0.5).diagonal().sum(), A)
    close(adjoint, 1.5 * torch.eye(4, dtype=torch.float64))
    assert linalg.add_jitter(A, 0.0) is A


@laws
@given(seed=SEEDS, m=st.integers(1, 6), n=st.integers(1, 6))
def test_triangular_solves_and_inverses(seed: int, m: int, n: int) -> None:
    A, B, rows = positive_definite(seed, m), random_matrix(seed, m, n), random_matrix(seed + 1, n, m)
    L = linalg.cholesky(A, name="A").factor
    close(L @ linalg.solve_lower(L, B), B)
    close(L.mT @ linalg.solve_lower_transposed(L, B), B)
    close(linalg.whiten_rows(rows, L) @ L.mT, rows)
    close(linalg.inverse_lower(L) @ L, torch.eye(m, dtype=torch.float64))
    close(linalg.inverse_from_cholesky(L), torch.linalg.inv(A), rtol=1e-8)


@settings(deadline=None, max_examples=10)
@given(seed=SEEDS, columns=st.sampled_from([1, 5, 63, 64, 65, 130, 260, 401]))
def test_panels_of_the_gram_matrix_are_the_whole_product(seed: int, columns: int) -> None:
    A, B = random_matrix(seed, 7, columns), random_matrix(seed + 1, 3, columns)
    total = torch.zeros(columns, columns, dtype=torch.float64)
    for part in (A, B):
        linalg.add_gram(total, part)
    full = linalg.mirror_upper(total)
    assert torch.equal(full, full.mT)
    close(full, A.mT @ A + B.mT @ B, rtol=1e-12)


@settings(deadline=None, max_examples=10)
@given(seed=SEEDS, n=st.sampled_from([1, 5, 64, 65, 130, 401]))
def test_panels_of_a_symmetric_product_are_the_whole_product(seed: int, n: int) -> None:
    """A B^T that is known to be symmetric: here B = A S with symmetric S."""
    A, S = random_matrix(seed, n, 4), linalg.symmetric(random_matrix(seed + 1, 4, 4))
    product = linalg.symmetric_product(A, A @ S)
    assert torch.equal(product, product.mT)
    close(product, A @ S @ A.mT, rtol=1e-12)


def test_the_gram_matrix_of_float32_rows_is_summed_in_float64() -> None:
    total = torch.zeros(3, 3, dtype=torch.float64)
    linalg.add_gram(total, torch.ones(1, 3, dtype=torch.float32))
    total *= 2.0**30
    linalg.add_gram(total, torch.ones(1, 3, dtype=torch.float32))
    assert float(total[0, 0]) == 2.0**30 + 1.0


@laws
@given(seed=SEEDS, n=st.integers(1, 6), rank=st.integers(1, 6))
def test_signed_root_squares_to_the_matrix(seed: int, n: int, rank: int) -> None:
    A = random_matrix(seed, n, rank)
    signs = torch.where(torch.arange(rank) % 2 == 0, 1.0, -1.0).to(A)
    root, values = linalg.signed_root((A * signs) @ A.mT)
    close((root * values.sign()) @ root.mT, (A * signs) @ A.mT)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 6), m=st.integers(1, 6))
def test_row_dots_and_the_symmetric_part(seed: int, n: int, m: int) -> None:
    A, B, S = random_matrix(seed, n, m), random_matrix(seed + 1, n, m), random_matrix(seed, n, n)
    close(linalg.row_dots(A, B), (A * B).sum(1))
    assert torch.equal(linalg.symmetric(S), linalg.symmetric(S).mT)
    close(linalg.symmetric(S) + 0.5 * (S - S.mT), S)


@laws
@given(seed=SEEDS, n=st.integers(1, 6))
def test_the_condition_estimate_is_near_and_not_below(seed: int, n: int) -> None:
    A = random_matrix(seed, n, n)
    S = A @ A.mT + 0.01 * torch.eye(n, dtype=torch.float64)
    L = torch.linalg.cholesky(S)
    ratio = linalg.condition_estimate(L, linalg.inverse_lower(L)) / float(torch.linalg.cond(S))
    assert 1.0 <= ratio <= 2.0 + 1e-9


def test_denormal_numbers_are_flushed_only_within() -> None:
    tiny = torch.tensor(1e-310, dtype=torch.float64)
    with linalg.flushed_denormals():
        assert float(tiny * 0.5) == 0.0
    assert float(tiny * 0.5) > 0.0
