"""Products of a matrix of some hundred rows with a vector, by one thread.

OpenBLAS shares them out to threads from about 8,000 entries on, and the meeting of the threads takes longer than the
work. So they are done in panels of rows below that size.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

Array = NDArray[np.float64]
PANEL_ENTRIES = 8000


def _panels(A: Array) -> Iterator[slice]:
    n_rows = max(1, PANEL_ENTRIES // A.shape[1])
    return (slice(start, start + n_rows) for start in range(0, len(A), n_rows))


def matvec(A: Array, x: Array) -> Array:
    """A x, whatever the layout of A."""
    if A.size <= PANEL_ENTRIES:
        product: Array = A.dot(x)
        return product
    out = np.empty(len(A))
    for panel in _panels(A):
        np.dot(A[panel], x, out=out[panel])
    return out


def plus_outer(A: Array, x: Array, y: Array, factor: float) -> Array:
    """A + factor x y^T as a new matrix."""
    total = np.array(A, order="C")
    for panel in _panels(total):
        # BLAS sees the transpose of the panel, whose columns lie one after the other, and writes into it
        blas.dger(factor, y, x[panel], a=total[panel].T, overwrite_a=1)
    return total
