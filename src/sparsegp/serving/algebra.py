"""Factors and their inverses in numpy, and batches of rows side by side on threads."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

Array = NDArray[np.float64]
Item = TypeVar("Item")

# As in sparsegp.linalg, so that the same block gets the same factor.
JITTERS = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
SMALLEST_PIVOT = 1e-11
PANELS = 4
LEAF_ROWS = 64


def cholesky(A: Array, least_jitter: float = 0.0) -> Array:
    """Lower factor of A, with the smallest jitter relative to the mean of its diagonal that leaves every pivot safe."""
    scale = A.diagonal().mean()
    for jitter in (jitter for jitter in JITTERS if jitter >= least_jitter):
        try:
            factor: Array = np.linalg.cholesky(A + jitter * scale * np.eye(len(A)) if jitter else A)
        except np.linalg.LinAlgError:
            continue
        if factor.diagonal().min() ** 2 > SMALLEST_PIVOT * scale:
            return factor
    raise ValueError(f"a covariance of {len(A)} rows is not positive definite")


def lower(triangle: Array, size: int) -> Array:
    """The lower-triangular matrix whose rows are stored one after another."""
    if size * (size + 1) != 2 * len(triangle):
        raise ValueError(f"a triangle of {size} rows cannot have {len(triangle)} entries")
    A: Array = np.zeros((size, size))
    A[np.tril_indices(size)] = triangle
    if not (A.diagonal() > 0).all():
        raise ValueError("a triangle that should be a Cholesky factor has a diagonal that is not positive")
    return A


def inverse_lower(L: Array) -> Array:
    """L^-1 by halves: [[A, 0], [B, C]]^-1 has -C^-1 B A^-1 in its corner, so that nearly all of it are products."""
    n = len(L)
    if n <= LEAF_ROWS:
        # numpy has no triangular solve. Substitution row by row is as exact and takes twice as long for so few rows.
        return np.tril(np.linalg.inv(L))
    half = n // 2
    out: Array = np.zeros_like(L)
    out[:half, :half], out[half:, half:] = inverse_lower(L[:half, :half]), inverse_lower(L[half:, half:])
    out[half:, :half] = -out[half:, half:] @ (L[half:, :half] @ out[:half, :half])
    return out


@dataclass(frozen=True)
class InverseLower:
    """L^-1 for products with rows: panel j has some of its rows up to their last entry that counts."""

    panels: tuple[Any, ...]

    @classmethod
    def of(cls, L: Array) -> "InverseLower":
        inverse = inverse_lower(L)
        return cls(tuple(np.ascontiguousarray(inverse[panel, : panel.stop]) for panel in _panels(len(L))))

    @property
    def size(self) -> int:
        return int(self.panels[-1].shape[1]) if self.panels else 0

    @property
    def n_bytes(self) -> int:
        return sum(panel.nbytes for panel in self.panels)

    def to(self, dtype: Any) -> "InverseLower":
        return InverseLower(tuple(panel.astype(dtype) for panel in self.panels))

    def whiten(self, K: Any) -> Any:
        """K L^-T, row by row L^-1 k_i."""
        out = np.empty((len(K), self.size), dtype=K.dtype)
        for panel, place in zip(self.panels, _panels(self.size), strict=True):
            np.matmul(K[:, : place.stop], panel.T, out=out[:, place])
        return out

    def solve_transposed(self, v: Array) -> Array:
        """L^-T v of a vector."""
        out: Array = np.zeros(self.size)
        for panel, place in zip(self.panels, _panels(self.size), strict=True):
            out[: place.stop] += v[place] @ panel
        return out


def _panels(size: int) -> Iterator[slice]:
    step = max(LEAF_ROWS, -(-size // PANELS))
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def row_squares(A: Any) -> Array:
    """sum_j A_ij^2 for each row i, without a temporary of the size of A."""
    squares: Array = np.einsum("ij,ij->i", A, A)
    return squares


def side_by_side(work: Callable[[Item], None], items: Sequence[Item]) -> None:
    """The work on all items, by as many threads as there are cores, each with one thread of the BLAS."""
    n_threads = min(cores(), len(items))
    if n_threads < 2:
        for item in items:
            work(item)
        return
    with _blas().limit(limits=1), ThreadPoolExecutor(n_threads) as pool:
        for _ in pool.map(work, items):
            pass


def cores() -> int:
    """Those that this process may use, where the system says it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()
