"""Dense linear algebra with one jitter policy; the only caller of `torch.linalg` and of `blas` in the package."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegp import blas
from sparsegp.errors import FactorizationError

JITTERS = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
SMALLEST_PIVOT = 1e-11
_PANELS = 4
POWER_ITERATIONS = 12


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Within, this thread computes with denormal numbers as zero; threads of torch that start within keep doing so.

    Nearly diagonal covariances make products of tiny numbers, and denormal ones cost ten times as much.
    """
    already = float(torch.tensor(1e-310, dtype=torch.float64) * 0.5) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(already)


@dataclass(frozen=True)
class Cholesky:
    """Lower factor of A + jitter * mean(diag A) * I, with the relative jitter that was needed."""

    factor: Tensor
    jitter: float

    @property
    def logdet(self) -> Tensor:
        return 2.0 * self.factor.diagonal().log().sum()


def cholesky(A: Tensor, *, name: str, least_jitter: float = 0.0, smallest_pivot: float = SMALLEST_PIVOT) -> Cholesky:
    """Factor A with the smallest jitter of the policy (at least `least_jitter`) that leaves every pivot safe.

    A pivot below `smallest_pivot` times the mean diagonal is rounding noise: the factorisation "succeeds" but
    solves with it are garbage, so it counts as a failure and the jitter grows.
    """
    scale = A.diagonal().mean()
    for jitter in JITTERS:
        if jitter < least_jitter:
            continue
        factor, is_factored = _factored(add_jitter(A, jitter, scale))
        if is_factored and factor.diagonal().min().square() > smallest_pivot * scale:
            return Cholesky(factor, jitter)
    if not torch.isfinite(A).all():
        raise FactorizationError(
            f"{name} has entries that are not finite. The hyper-parameters or the inputs overflow: "
            "standardise the data (normalize=True) or use less extreme hyper-parameters."
        )
    raise FactorizationError(
        f"{name} ({A.shape[0]} x {A.shape[0]}) is not positive definite, even with {JITTERS[-1]:g} of its mean "
        "diagonal added. Likely causes: many (nearly) equal inducing inputs, a kernel that is not positive "
        "semi-definite, or a lengthscale far beyond the data. Try fewer inducing inputs, "
        "inducing='greedy', or check the kernel with sparsegp.testing.check_kernel."
    )


def _factored(A: Tensor) -> tuple[Tensor, bool]:
    """The lower factor, column by column in memory whoever computes it, and whether A has one."""
    if blas.suits("potrf", A):
        upper = A.mT.contiguous()
        is_factored = blas.cholesky_(upper.mT)
        return upper.triu_().mT, is_factored  # tril_ of what lies column by column takes six times as long
    factor, failed = torch.linalg.cholesky_ex(A)
    return factor, not failed


def add_jitter(A: Tensor, jitter: float, scale: Tensor | None = None) -> Tensor:
    """A + jitter * mean(diag A) * I; differentiable, so value and gradient see the same matrix."""
    if jitter == 0.0:
        return A
    scale = A.diagonal().mean() if scale is None else scale
    return A + jitter * scale * torch.eye(A.shape[0], dtype=A.dtype, device=A.device)


def solve_lower(L: Tensor, A: Tensor) -> Tensor:
    """L^-1 A for lower-triangular L."""
    if blas.suits("trsm", L, A):
        return blas.solve_lower_(L, A.clone())
    solution: Tensor = torch.linalg.solve_triangular(L, A, upper=False)
    return solution


def solve_lower_transposed(L: Tensor, A: Tensor) -> Tensor:
    """L^-T A for lower-triangular L."""
    if blas.suits("trsm", L, A):
        return blas.solve_lower_(L, A.clone(), transposed=True)
    solution: Tensor = torch.linalg.solve_triangular(L.mT, A, upper=True)
    return solution


def whiten_rows(K: Tensor, L: Tensor, *, overwrite: bool = False) -> Tensor:
    """V = K L^-T, row by row the whitened features L^-1 k_i. Written as L^-1 K^T so that BLAS sees its own layout.

    With `overwrite` K may be lost: memory that is new costs as much as a third of the solve.
    """
    if not overwrite or K.requires_grad or L.requires_grad:
        return solve_lower(L, K.mT).mT
    B = K.mT
    return (
        blas.solve_lower_(L, B) if blas.suits("trsm", L, K) else torch.linalg.solve_triangular(L, B, upper=False, out=B)
    ).mT


def product(A: Tensor, B: Tensor) -> Tensor:
    """A B, by the faster BLAS."""
    return blas.product(A, B) if blas.suits("gemm", A, B) else A @ B


def rows_times_lower_(A: Tensor, L: Tensor) -> Tensor:
    """A L for lower-triangular L; A may be lost."""
    return blas.multiply_lower_(L, A.mT, transposed=True).mT if blas.suits("trmm", L, A) else A @ L


def inverse_lower(L: Tensor) -> Tensor:
    """L^-1 as a matrix, for multiplying many rows with it; column-wise as accurate as the triangular solve."""
    return solve_lower(L, torch.eye(L.shape[0], dtype=L.dtype, device=L.device))


@dataclass(frozen=True)
class InverseLower:
    """L^-1 for products with rows, few or many: panel j has some of its rows up to their last entry that counts.

    A product with it takes 5/8 of one with a square, and no row waits for the one before, as it does in a solve.
    """

    panels: tuple[Tensor, ...]

    @classmethod
    def of(cls, L: Tensor) -> "InverseLower":
        inverse = inverse_lower(L)
        return cls(tuple(inverse[panel, : panel.stop].contiguous() for panel in _panels(L.shape[0])))

    @property
    def size(self) -> int:
        return self.panels[-1].shape[1] if self.panels else 0

    @property
    def n_bytes(self) -> int:
        return sum(panel.nbytes for panel in self.panels)

    def to(self, dtype: torch.dtype) -> "InverseLower":
        return InverseLower(tuple(panel.to(dtype) for panel in self.panels))

    def whiten(self, K: Tensor, less: Tensor | None = None) -> Tensor:
        """K L^-T, row by row L^-1 k_i, minus `less`, which is overwritten."""
        out = K.new_empty(K.shape[0], self.size) if less is None else less
        for panel, place in zip(self.panels, _panels(self.size), strict=True):
            part = out[:, place]
            torch.addmm(part, K[:, : place.stop], panel.mT, beta=0.0 if less is None else -1.0, out=part)
        return out

    def solve_transposed(self, v: Tensor) -> Tensor:
        """L^-T v of a vector."""
        out = torch.zeros_like(v)
        for panel, place in zip(self.panels, _panels(self.size), strict=True):
            out[: place.stop] += v[place] @ panel
        return out


def condition_estimate(L: Tensor, inverse_L: Tensor) -> float:
    """The condition number of L L^T by power iterations on it and on its inverse, times two for safety."""

    def largest_eigenvalue(A: Tensor) -> Tensor:
        v = torch.cos(torch.arange(A.shape[0], dtype=A.dtype, device=A.device))
        for _ in range(POWER_ITERATIONS):
            v = A @ (A.mT @ (v / v.norm()))
        return torch.sqrt(v @ v)

    return 2.0 * float(largest_eigenvalue(L) * largest_eigenvalue(inverse_L.mT))


def inverse_from_cholesky(L: Tensor) -> Tensor:
    """(L L^T)^-1."""
    return mirror_upper_(blas.inverse_(L.clone()).mT) if blas.suits("potri", L) else torch.cholesky_inverse(L)


def _panels(size: int) -> Iterator[slice]:
    step = max(64, -(-size // _PANELS))
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def add_gram(total: Tensor, A: Tensor, *, factor: float = 1.0) -> None:
    """total += factor A^T A on the upper triangle only (at most 5/8 of a full product); see `mirror_upper`."""
    if blas.suits("syrk", A):
        same = total.dtype == A.dtype and total.is_contiguous()
        own = total if same else A.new_zeros(total.shape)
        blas.add_gram(own, A, factor)
        if not same:
            total += own
        return
    for panel in _panels(A.shape[1]):
        total[panel, panel.start :] += (A[:, panel].mT @ A[:, panel.start :]).mul_(factor).to(total.dtype)


def row_gram(A: Tensor) -> Tensor:
    """A A^T, whose upper triangle is computed and mirrored."""
    total = A.new_zeros(A.shape[0], A.shape[0])
    add_gram(total, A.mT)
    return mirror_upper_(total)


def less_row_gram_(S: Tensor, A: Tensor) -> Tensor:
    """S - A A^T for symmetric S, which is overwritten: the upper triangle is computed and mirrored."""
    add_gram(S, A.mT, factor=-1.0)
    return mirror_upper_(S)


def congruence_(S: Tensor, L: Tensor) -> Tensor:
    """L^T S L for symmetric S, which may be lost, and lower-triangular L: two products of half the work."""
    return rows_times_lower_(rows_times_lower_(S, L).mT, L)


def symmetric_product(A: Tensor, B: Tensor) -> Tensor:
    """A B^T, known to be symmetric: the upper triangle is computed and mirrored."""
    total = A.new_empty(A.shape[0], A.shape[0])
    for panel in _panels(A.shape[0]):
        torch.mm(A[panel], B[panel.start :].mT, out=total[panel, panel.start :])
    return mirror_upper_(total)


def mirror_upper(A: Tensor) -> Tensor:
    """The symmetric matrix whose upper triangle is that of A."""
    return mirror_upper_(A.clone())


def mirror_upper_(A: Tensor) -> Tensor:
    """Overwrite the lower triangle with the upper one."""
    for panel in _panels(A.shape[0]):
        A[panel.stop :, panel] = A[panel, panel.stop :].mT
        A[panel, panel] = A[panel, panel].triu() + A[panel, panel].triu(1).mT
    return A


def symmetric(A: Tensor) -> Tensor:
    return 0.5 * (A + A.mT)


def packed_lower(A: Tensor) -> Tensor:
    """The M(M+1)/2 numbers of the lower triangle, which is all that a symmetric or a lower-triangular matrix is."""
    rows, columns = torch.tril_indices(*A.shape).unbind()
    return A[rows, columns].cpu()


def unpacked_lower(packed: Tensor) -> Tensor:
    """The lower-triangular matrix of `packed_lower`."""
    size = (math.isqrt(8 * len(packed) + 1) - 1) // 2
    A = torch.zeros(size, size, dtype=packed.dtype)
    rows, columns = torch.tril_indices(size, size).unbind()
    A[rows, columns] = packed
    return A


def unpacked_symmetric(packed: Tensor) -> Tensor:
    """The symmetric matrix of `packed_lower`."""
    return mirror_upper_(unpacked_lower(packed).mT.contiguous())


def row_dots(A: Tensor, B: Tensor) -> Tensor:
    """sum_j A_ij B_ij for each row i."""
    dots: Tensor = torch.linalg.vecdot(A, B)
    return dots


def row_squares(A: Tensor) -> Tensor:
    """sum_j A_ij^2 for each row i, without a temporary of the size of A."""
    norms: Tensor = torch.linalg.vector_norm(A, dim=1)
    return norms.square_()


def cholesky_each(A: Tensor) -> tuple[Tensor, Tensor]:
    """Lower factors of many small matrices, A is [n, J, J], and which of them need no jitter."""
    factors, failed = torch.linalg.cholesky_ex(A)
    scale = A.diagonal(dim1=1, dim2=2).mean(1)
    pivots = factors.diagonal(dim1=1, dim2=2).amin(1).square()
    return factors, (failed == 0) & (pivots > SMALLEST_PIVOT * scale)


def solve_each(A: Tensor, b: Tensor) -> Tensor:
    """A_i^-1 b_i of each of many small systems: A is [n, J, J], b is [n, J]."""
    if A.shape[-1] == 1:
        return b / A[:, :, 0]
    solution: Tensor = torch.linalg.solve(A, b)
    return solution


def signed_root(A: Tensor) -> tuple[Tensor, Tensor]:
    """R and eigenvalues v with R diag(sign v) R^T = A, for any symmetric A."""
    values, vectors = torch.linalg.eigh(A)
    return vectors * values.abs().sqrt(), values
