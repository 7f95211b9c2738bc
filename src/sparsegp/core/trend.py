"""A trend: a constant, or a plane, with a broad prior, integrated out exactly as a few more whitened features.

    f = g + T(x) beta,     g ~ GP(0, k),    beta ~ N(0, b^2 I),    T(x) = (1, x_1, ..., x_D)

With W = [K_xu L^-T, b T(x)] every fold, place, filter and merge has the trend. K - Q is that of the kernel alone, so no
approximation treats the trend as anything but exact.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.core.block import Block

MOST_ROWS = 20_000


@dataclass(frozen=True)
class Trend:
    """b T(x), T(x) = (1, x_j for j in `columns`). `width` b is the prior standard deviation of a coefficient.

    Inputs and targets are standardised, so b = 10 says next to nothing: least squares is recovered to about
    noise/(100 N).
    """

    columns: tuple[int, ...] = ()
    width: float = 10.0

    @property
    def name(self) -> str:
        return "linear" if self.columns else "constant"

    @property
    def n_features(self) -> int:
        return 1 + len(self.columns)

    def features(self, X: Tensor) -> Tensor:
        """b T(x) of each row."""
        H = X.new_empty(X.shape[0], self.n_features)
        H[:, 0] = 1.0
        H[:, 1:] = X[:, list(self.columns)]
        return H.mul_(self.width)

    def values(self, X: Tensor, coefficients: Tensor) -> Tensor:
        """`features` times the coefficients, without a copy of all rows."""
        slope = X.new_zeros(X.shape[1])
        slope[list(self.columns)] = self.width * coefficients[1:]
        return (X @ slope).add_(self.width * coefficients[0])


def plane_of(block: Block, trend: Trend) -> Tensor:
    """The coefficients of the trend by least squares, for rows that have some weight."""
    H, y = trend.features(block.X.to(torch.float64)), block.y.to(torch.float64)
    weight = block.weights.to(torch.float64)[:, None]
    gram = H.mT @ (weight * H)
    gram.diagonal().add_(max(block.target_variance, torch.finfo(torch.float64).tiny))
    L = linalg.cholesky(gram, name="precision of the trend", smallest_pivot=0.0).factor
    return linalg.solve_lower_transposed(L, linalg.solve_lower(L, H.mT @ (weight * y[:, None])))[:, 0]


def detrended(block: Block, trend: Trend | None) -> Block:
    """The block without the trend that its rows have by themselves: what is left for a kernel to start from.

    Of many rows `MOST_ROWS` give the trend. They know its coefficients to a hundredth of what the rows leave open.
    """
    if trend is None or len(block) == 0:
        return block
    line = trend.values(block.X.to(torch.float64), plane_of(block.spaced(MOST_ROWS), trend))
    return replace(block, y=(block.y.to(torch.float64) - line).to(block.y.dtype))
