"""Worker: the time of the matrix products and exponentials alone.

"bound" is what a value and gradient cannot do without, each counted once at the rate of large calls: two kernel
evaluations (a product of D columns and exponentials, for each pass), half a product for W^T W (SYRK), one for the
gradient (GEMM) and a thin one for the 2 D + 1 moments of lengthscales and inducing inputs. Of the two BLAS libraries at
hand, that of torch and that of numpy, the faster one counts, with all its threads. It is a limit of vfe: `operations`
says what each piece has, so that rates can be told.
"predict" needs one kernel evaluation and one b x M x M product, in chunks, in memory allocated before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from benchmarks.jobs import read_job, write_result
from benchmarks.measure import median_seconds, seconds_of

CHUNK_ROWS = 2048
LARGE_ROWS = 8192


class BoundLimit:
    """Seconds of each piece of work that N rows need, from one large call."""

    def __init__(self, n_rows: int, n_inducing: int, n_features: int) -> None:
        rng = np.random.default_rng(0)
        X, Z, square = (rng.random((n, m)) for n, m in self._shapes(n_inducing, n_features))
        K, left = -rng.random((LARGE_ROWS, n_inducing)), rng.random((2 * n_features + 1, LARGE_ROWS))
        out, total = np.empty_like(K), np.empty((n_inducing, n_inducing))
        tensors = [torch.from_numpy(A) for A in (X, Z, square, K, left, out, total)]
        tX, tZ, tsquare, tK, tleft, tout, ttotal = tensors
        self.share = n_rows / LARGE_ROWS
        pairs = float(n_rows * n_inducing)
        self.operations = {
            "products": 2.0 * pairs * n_inducing,
            "gram": pairs * n_inducing,
            "distances": 2.0 * 2.0 * pairs * n_features,
            "exponentials": 2.0 * pairs,
            "moments": 2.0 * pairs * (2 * n_features + 1),
        }
        self.pieces: dict[str, tuple[float, list[Callable[[], object]]]] = {
            "products": (1.0, [lambda: torch.mm(tK, tsquare, out=tout), lambda: np.matmul(K, square, out=out)]),
            # numpy sees the transpose of the same array and calls SYRK
            "gram": (1.0, [lambda: torch.mm(tK.T, tK, out=ttotal), lambda: np.matmul(K.T, K, out=total)]),
            "distances": (2.0, [lambda: torch.mm(tX, tZ, out=tout), lambda: np.matmul(X, Z, out=out)]),
            "exponentials": (2.0, [lambda: torch.exp(tK, out=tout)]),
            "moments": (1.0, [lambda: torch.mm(tleft, tK), lambda: np.matmul(left, K)]),
        }

    @staticmethod
    def _shapes(n_inducing: int, n_features: int) -> list[tuple[int, int]]:
        return [(LARGE_ROWS, n_features), (n_features, n_inducing), (n_inducing, n_inducing)]

    def measure(self) -> dict[str, float]:
        """Seconds of each piece, once."""
        return {
            name: self.share * times * min(seconds_of(work) for work in ways)
            for name, (times, ways) in self.pieces.items()
        }


class Products:
    """Scratch arrays of one chunk and the products between them."""

    def __init__(self, X: torch.Tensor, Z: torch.Tensor) -> None:
        self.chunks = torch.split(X, CHUNK_ROWS)
        self.Zt = (0.01 * Z).T.contiguous()
        m = len(Z)
        self.square = torch.eye(m, dtype=X.dtype)
        self.K = torch.empty(CHUNK_ROWS, m, dtype=X.dtype)
        self.W = torch.empty(CHUNK_ROWS, m, dtype=X.dtype)

    def kernel(self, rows: torch.Tensor, with_exp: bool = True) -> torch.Tensor:
        K = torch.mm(rows, self.Zt, out=self.K[: len(rows)])
        return K.exp_() if with_exp else K

    def predict(self, with_exp: bool) -> None:
        for rows in self.chunks:
            K = self.kernel(rows, with_exp)
            torch.mm(K, self.square, out=self.W[: len(K)])


def main(folder: str) -> None:
    problem, options = read_job(folder)
    products = Products(torch.from_numpy(problem["X"]), torch.from_numpy(problem["Z"]))
    work: dict[str, Callable[[], None]] = {
        "predict_products": lambda: products.predict(with_exp=False),
        "predict_products_and_exps": lambda: products.predict(with_exp=True),
    }
    facts = {name: median_seconds(work[name], options["repeats"]).as_facts() for name in options["limits"]}
    write_result(folder, facts)


if __name__ == "__main__":
    main(sys.argv[1])
