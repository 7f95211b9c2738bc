"""Triangular and symmetric products and factors by the BLAS and LAPACK of scipy, for work in a single thread.

They are half the work of full products. torch has no such products, and its triangular solves take as long as full
ones on processors of AMD. A second BLAS has threads of its own, so it is used only where each thread computes alone:
`parallel.run` and `parallel.single` say so by `alone`. Other threads are not held up: calls by ctypes release the
interpreter.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from scipy.linalg import cython_blas, cython_lapack
from torch import Tensor

LEAST_ENTRIES = 2**14
SOLVED_AT_ONCE = 128
"""Rows of a triangular solve that are solved by an inverse: products run at half as much again as solves."""
SLOWER_ON_INTEL = frozenset({"gemm", "trsm", "potri"})
"""Routines in which the BLAS of torch, which is Intel's own on x86, is the faster one, except on processors of AMD."""
LETTERS = {torch.float64: "d", torch.float32: "s"}

Argument = str | int | float | Tensor | ctypes.c_int
Real = type[ctypes.c_double] | type[ctypes.c_float]

_this_thread = threading.local()


@cache
def _is_of_amd() -> bool:
    try:
        return any(line.split() == ["vendor_id", ":", "AuthenticAMD"] for line in Path("/proc/cpuinfo").open())
    except OSError:
        return False


@contextmanager
def alone() -> Iterator[None]:
    """Within, this thread computes with one thread in every BLAS."""
    before = is_alone()
    _this_thread.is_alone = True
    try:
        yield
    finally:
        _this_thread.is_alone = before


def is_alone() -> bool:
    return getattr(_this_thread, "is_alone", False)


def set_alone() -> None:
    """For the rest of the life of this thread."""
    _this_thread.is_alone = True


def suits(routine: str, *operands: Tensor) -> bool:
    """Whether these matrices are large and in the memory of the processor, row by row or column by column, this thread
    computes alone, and the routine is fast on this processor: no race decides, so that results can be repeated."""
    return (
        is_alone()
        and (routine not in SLOWER_ON_INTEL or _is_of_amd())
        and operands[0].dtype in LETTERS
        and min(A.numel() for A in operands) >= LEAST_ENTRIES
        and all(A.device.type == "cpu" and A.dtype == operands[0].dtype and _is_plain(A) for A in operands)
        and not any(A.requires_grad for A in operands)
    )


def add_gram(total: Tensor, A: Tensor, factor: float = 1.0) -> None:
    """The upper triangle of total += factor A^T A; total lies row by row."""
    # BLAS sees columns where these are rows: its lower triangle is the upper one here
    by_row = _by_row(A)
    n, k = A.shape[1], A.shape[0]
    _call("syrk", A, "L", "N" if by_row else "T", n, k, factor, A, _step(A), 1.0, total, _step(total))


def solve_lower_(L: Tensor, B: Tensor, *, transposed: bool = False) -> Tensor:
    """B = L^-1 B, or L^-T B, in place. Only blocks on the diagonal are inverted, so it is as stable as a solve."""
    M = len(L)
    if min(M, B.shape[1] // 2) <= SOLVED_AT_ONCE:
        return _triangular("trsm", L, B, transposed=transposed)
    starts = range(0, M, SOLVED_AT_ONCE)
    for start in reversed(starts) if transposed else starts:
        own = slice(start, min(start + SOLVED_AT_ONCE, M))
        known = slice(own.stop, M) if transposed else slice(0, start)
        if known.start < known.stop:
            _add_product(B[own], L[known, own].mT if transposed else L[own, known], B[known], -1.0)
        _triangular("trmm", _inverted(L[own, own]), B[own], transposed=transposed)
    return B


def multiply_lower_(L: Tensor, B: Tensor, *, transposed: bool = False) -> Tensor:
    """B = L B, or L^T B, in place."""
    return _triangular("trmm", L, B, transposed=transposed)


def product(A: Tensor, B: Tensor) -> Tensor:
    """A B, row by row."""
    return _add_product(A.new_empty(A.shape[0], B.shape[1]), A, B, kept=0.0)


def cholesky_(A: Tensor) -> bool:
    """The lower factor in the lower triangle of the symmetric A, in place; whether A is positive definite."""
    info = ctypes.c_int()
    _call("potrf", A, "U" if _by_row(A) else "L", len(A), A, _step(A), info)
    return info.value == 0


def inverse_(L: Tensor) -> Tensor:
    """The lower triangle of (L L^T)^-1 in that of L, in place."""
    _call("potri", L, "U" if _by_row(L) else "L", len(L), L, _step(L), ctypes.c_int())
    return L


def _triangular(routine: str, L: Tensor, B: Tensor, *, transposed: bool) -> Tensor:
    """op(L) from the left; where B lies row by row BLAS sees its transpose, and op(L)^T from the right."""
    L_by_row, B_by_row = _by_row(L), _by_row(B)
    side, uplo = "R" if B_by_row else "L", "U" if L_by_row else "L"
    op = "T" if transposed ^ L_by_row ^ B_by_row else "N"
    m, n = B.shape[::-1] if B_by_row else B.shape
    _call(routine, B, side, uplo, op, "N", m, n, 1.0, L, _step(L), B, _step(B))
    return B


def _add_product(C: Tensor, A: Tensor, B: Tensor, factor: float = 1.0, kept: float = 1.0) -> Tensor:
    """C = kept C + factor A B, in place."""
    if not _by_row(C):
        return _add_product(C.mT, B.mT, A.mT, factor, kept).mT
    # BLAS sees columns: C^T = B^T A^T
    by_row = {True: "N", False: "T"}
    sizes = B.shape[1], A.shape[0], A.shape[1]
    given = factor, B, _step(B), A, _step(A), kept, C, _step(C)
    _call("gemm", A, by_row[_by_row(B)], by_row[_by_row(A)], *sizes, *given)
    return C


def _inverted(L: Tensor) -> Tensor:
    """L^-1, a new matrix that lies as L does."""
    inverse = L.clone()
    _call("trtri", L, "U" if _by_row(L) else "L", "N", len(L), inverse, _step(inverse), ctypes.c_int())
    return inverse


def _is_plain(A: Tensor) -> bool:
    return A.ndim == 2 and 1 in A.stride() and max(A.stride()) >= max(A.shape[A.stride().index(1)], 2)


def _by_row(A: Tensor) -> bool:
    return A.stride(1) == 1


def _step(A: Tensor) -> int:
    """From a row (or column) to the next one."""
    return A.stride(0) if _by_row(A) else A.stride(1)


@cache
def _routine(name: str) -> Callable[..., None]:
    """scipy promises these addresses to compiled code (`scipy.linalg.cython_blas`)."""
    capsule = (cython_blas.__pyx_capi__ | cython_lapack.__pyx_capi__)[name]
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found: Callable[..., None] = ctypes.CFUNCTYPE(None)(pointer_of(capsule, name_of(capsule)))
    return found


def _call(name: str, like: Tensor, *arguments: Argument) -> None:
    """Fortran takes everything by address."""
    real: Real = ctypes.c_double if like.dtype == torch.float64 else ctypes.c_float
    _routine(LETTERS[like.dtype] + name)(*(_address(argument, real) for argument in arguments))


def _address(argument: Argument, real: Real) -> object:
    if isinstance(argument, ctypes.c_int):
        return ctypes.byref(argument)
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, str):
        return ctypes.c_char_p(argument.encode())
    return ctypes.byref(ctypes.c_int(argument) if isinstance(argument, int) else real(argument))
