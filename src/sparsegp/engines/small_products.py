"""A rank-one update of a matrix of some hundred rows, by one thread.

OpenBLAS shares it out to threads from about 8,000 entries on, and the meeting of the threads takes longer than the
work (measured at 100 x 100; products with a vector do not suffer from this). So it is done in panels below that size.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

Array = NDArray[np.float64]
PANEL_ENTRIES = 8000


def plus_outer(A: Array, x: Array, y: Array, factor: float) -> Array:
    """A + factor x y^T as a new matrix."""
    total, n_rows = np.array(A, order="C"), max(1, PANEL_ENTRIES // A.shape[1])
    for start in range(0, len(total), n_rows):
        panel = slice(start, start + n_rows)
        # BLAS sees the transpose of the panel, whose columns lie one after the other, and writes into it
        blas.dger(factor, y, x[panel], a=total[panel].T, overwrite_a=1)
    return total
