"""Worker: the time of the matrix products and exponentials alone, in chunks, in memory allocated before.

"bound" needs, per chunk of b rows: two kernel evaluations (a b x D x M product and b x M exponentials, one
for each pass), one b x M x M product to whiten, one to add up W^T W (a plain product), one for the gradient.
"predict" needs one kernel evaluation and one b x M x M product.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from benchmarks.jobs import read_job, write_result
from benchmarks.measure import median_seconds

CHUNK_ROWS = 2048


class Products:
    """Scratch arrays of one chunk and the products between them."""

    def __init__(self, X: torch.Tensor, Z: torch.Tensor) -> None:
        self.chunks = torch.split(X, CHUNK_ROWS)
        self.Zt = (0.01 * Z).T.contiguous()
        m = len(Z)
        self.square = torch.eye(m, dtype=X.dtype)
        self.total = torch.empty(m, m, dtype=X.dtype)
        self.K = torch.empty(CHUNK_ROWS, m, dtype=X.dtype)
        self.W = torch.empty(CHUNK_ROWS, m, dtype=X.dtype)

    def kernel(self, rows: torch.Tensor, with_exp: bool = True) -> torch.Tensor:
        K = torch.mm(rows, self.Zt, out=self.K[: len(rows)])
        return K.exp_() if with_exp else K

    def whiten(self, K: torch.Tensor) -> torch.Tensor:
        return torch.mm(K, self.square, out=self.W[: len(K)])

    def bound(self) -> None:
        for rows in self.chunks:
            W = self.whiten(self.kernel(rows))
            torch.mm(W.T, W, out=self.total)
        for rows in self.chunks:
            self.whiten(self.kernel(rows))

    def predict(self, with_exp: bool) -> None:
        for rows in self.chunks:
            self.whiten(self.kernel(rows, with_exp))


def main(folder: str) -> None:
    problem, options = read_job(folder)
    products = Products(torch.from_numpy(problem["X"]), torch.from_numpy(problem["Z"]))
    work: dict[str, Callable[[], None]] = {
        "bound": products.bound,
        "predict_products": lambda: products.predict(with_exp=False),
        "predict_products_and_exps": lambda: products.predict(with_exp=True),
    }
    facts = {name: median_seconds(work[name], options["repeats"]).as_facts() for name in options["limits"]}
    write_result(folder, facts)


if __name__ == "__main__":
    main(sys.argv[1])
