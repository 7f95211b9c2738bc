"""Products and factors of the second BLAS are those of torch, in both layouts and precisions, and only where wanted."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import Tensor

from sparsegp import blas, linalg, parallel

DTYPES = [torch.float64, torch.float32]
LAYOUTS = [lambda A: A.contiguous(), lambda A: A.mT.contiguous().mT]
N, M = 210, 130


def random_matrix(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).normal(size=shape)).to(dtype)


def lower(dtype: torch.dtype, size: int = M) -> Tensor:
    A = random_matrix(torch.float64, size, size)
    return torch.linalg.cholesky(A @ A.mT + size * torch.eye(size, dtype=torch.float64)).to(dtype)


def close(got: Tensor, expected: Tensor) -> None:
    limit = 1e-12 if got.dtype == torch.float64 else 2e-5
    assert got.dtype == expected.dtype
    assert float((got - expected).abs().max()) <= limit * float(expected.abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("of_factor", LAYOUTS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("size", [M, 300])
def test_triangular_solves_and_products(dtype, layout, of_factor, transposed, size):
    """Of few rows at once, and of so many that a solve goes block by block."""
    L, B = of_factor(lower(dtype, size)), layout(random_matrix(dtype, size, N + size))
    op = L.mT if transposed else L
    solved = torch.linalg.solve_triangular(op, B, upper=transposed)
    close(blas.solve_lower_(L, B.clone(), transposed=transposed), solved)
    close(blas.multiply_lower_(L, B.clone(), transposed=transposed), op @ B)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_grams_and_factors(dtype, layout):
    A, B, total = layout(random_matrix(dtype, N, M)), layout(random_matrix(dtype, M, N)), random_matrix(dtype, M, M)
    close(blas.product(A, B), A @ B)
    expected = total + A.mT @ A
    blas.add_gram(total, A)
    close(total.triu(), expected.triu())
    S = layout(expected + expected.mT + 4 * N * torch.eye(M, dtype=dtype))
    factor = S.clone()
    assert blas.cholesky_(factor)
    close(factor.tril(), torch.linalg.cholesky(S))
    inverse = blas.inverse_(factor).tril()
    close(inverse + inverse.tril(-1).mT, torch.linalg.inv(S))
    assert not blas.cholesky_(-S)


def test_only_a_thread_that_computes_alone_uses_it():
    A = random_matrix(torch.float64, N, M)
    assert not blas.suits("syrk", A)
    with parallel.single():
        assert blas.suits("syrk", A)
        assert not blas.suits("syrk", A, A.float())
        assert not blas.suits("syrk", A[:, ::2])
        assert not blas.suits("syrk", A[:20])
        assert not blas.suits("syrk", A.clone().requires_grad_())
        others: list[bool] = []
        thread = threading.Thread(target=lambda: others.append(blas.is_alone()))
        thread.start()
        thread.join()
        assert others == [False]
    assert not blas.is_alone()
    assert parallel.run([blas.is_alone] * 2) == [True, True]


def test_the_processor_decides_which_routines_it_has(monkeypatch):
    A = random_matrix(torch.float64, N, M)
    for of_amd, expected in ((True, [True] * 6), (False, [True, True, True, False, False, False])):
        monkeypatch.setattr(blas, "_is_of_amd", lambda of_amd=of_amd: of_amd)
        with parallel.single():
            routines = ("syrk", "trmm", "potrf", "gemm", "trsm", "potri")
            assert [blas.suits(routine, A) for routine in routines] == expected


@pytest.mark.parametrize("of_amd", [False, True])
def test_linear_algebra_is_the_same_with_either_library(monkeypatch, of_amd):
    monkeypatch.setattr(blas, "_is_of_amd", lambda: of_amd)
    K, L = random_matrix(torch.float64, N, M), lower(torch.float64)
    S = L @ L.mT

    def found() -> list[Tensor]:
        gram, mixed = torch.zeros(M, M, dtype=torch.float64), torch.zeros(M, M, dtype=torch.float64)
        linalg.add_gram(gram, K)
        linalg.add_gram(mixed, K.float())
        return [
            linalg.whiten_rows(K, L),
            linalg.solve_lower_transposed(L, K.mT),
            linalg.rows_times_lower_(K.clone(), L),
            linalg.whiten_rows(K.clone(), L, overwrite=True),
            linalg.product(K, S),
            linalg.row_gram(K.mT),
            linalg.mirror_upper(gram),
            linalg.cholesky(S, name="S").factor,
            linalg.inverse_from_cholesky(L),
            1e-7 * linalg.mirror_upper(mixed),
        ]

    usual = found()
    with parallel.single():
        for got, expected in zip(found(), usual, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_factors_of_many_matrices_say_which_need_jitter():
    safe, singular = torch.eye(3, dtype=torch.float64), torch.ones(3, 3, dtype=torch.float64)
    factors, is_safe = linalg.cholesky_each(torch.stack([4.0 * safe, singular, -safe]))
    assert is_safe.tolist() == [True, False, False]
    torch.testing.assert_close(factors[0], 2.0 * safe)
