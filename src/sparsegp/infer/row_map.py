"""One row in whitened coordinates, in plain numpy: with few inducing inputs a torch call costs more than its work."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import blas

from sparsegp import linalg
from sparsegp.core.prior import SparsePrior
from sparsegp.core.trend import Trend
from sparsegp.kernels import SquaredExponential

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


RowCovariance = Callable[[Array], Array]
"""x -> k_u(x)."""


@dataclass(frozen=True)
class WhitenedRow:
    """a = L^-1 k_u/sqrt(v), target = y/sqrt(v), v, and the regulariser of the row."""

    a: Array
    target: float
    v: float
    penalty: float


@dataclass(frozen=True)
class RowMap:
    """What a single row needs, prepared once.

    `variance` is k(x, x) where it does not depend on x, else None; `applies` says whether v and a_k of a row are those
    of one component, v = alpha d + noise, and its numbers are in the memory of the processor.
    """

    prior: SparsePrior
    inverse_L: Array
    trend: Trend | None
    covariance: RowCovariance
    variance: float | None
    noise: float
    alpha: float
    penalty: float
    needs_residual: bool
    applies: bool

    @classmethod
    def of(cls, prior: SparsePrior) -> "RowMap":
        row = prior.approx
        return cls(
            prior,
            linalg.inverse_lower(prior.Luu.factor).cpu().numpy(),
            prior.trend,
            _row_covariance(prior),
            prior.variance,
            float(prior.noise_var),
            row.components[0].alpha,
            row.penalty,
            row.keeps_residual or row.penalty > 0.0,
            not row.by_block and len(row.components) == 1 and prior.inducing.device.type == "cpu",
        )

    def whiten(self, x: Array, y: float, noise: float | None) -> WhitenedRow:
        """`noise_model` in plain numbers."""
        w: Array = self.inverse_L.dot(self.covariance(x))
        noise = self.noise if noise is None else noise
        v, penalty = noise, 0.0
        if self.needs_residual:
            variance = self._own_variance(x) if self.variance is None else self.variance
            d = max(variance - float(w.dot(w)), 0.0)
            v += self.alpha * d
            share = math.log1p(self.alpha * d / noise) / self.alpha if self.alpha else d / noise
            penalty = 0.5 * self.penalty * share
        if self.trend is not None:
            w = np.concatenate([w, [self.trend.width], self.trend.width * x[list(self.trend.columns)]])
        scale = 1.0 / math.sqrt(v)
        w *= scale
        return WhitenedRow(w, y * scale, v, penalty)

    def _own_variance(self, x: Array) -> float:
        return float(self.prior.diagonal(torch.from_numpy(x[None])))


def _row_covariance(prior: SparsePrior) -> RowCovariance:
    """In closed form for the squared exponential, by the kernel itself for all others."""
    if isinstance(prior.kernel, SquaredExponential):
        return _SquaredExponentialRow.of(prior.kernel, prior.inducing.cpu().numpy())
    return _AnyRow(prior)


@dataclass(frozen=True)
class _AnyRow:
    prior: SparsePrior

    def __call__(self, x: Array) -> Array:
        K: Array = self.prior.covariance(torch.from_numpy(x[None])).numpy()[0]
        return K


@dataclass(frozen=True)
class _SquaredExponentialRow:
    """exp(offset - |a|^2/2 + a b), offset = log variance - |b|^2/2, about the centre, where fewest digits are lost."""

    dims: list[int] | slice
    center: Array
    lengthscales: Array
    B: Array
    offset: Array

    @classmethod
    def of(cls, kernel: SquaredExponential, Z: Array) -> "_SquaredExponentialRow":
        dims = slice(None) if kernel.active_dims is None else list(kernel.active_dims)
        lengthscales = kernel.lengthscales.detach().cpu().numpy()
        center = Z[:, dims].mean(0)
        B = (Z[:, dims] - center) / lengthscales
        return cls(dims, center, lengthscales, B, float(kernel.log_variance.detach()) - 0.5 * np.square(B).sum(1))

    def __call__(self, x: Array) -> Array:
        a = (x[self.dims] - self.center) / self.lengthscales
        exponent: Array = self.B.dot(a)
        exponent += self.offset
        exponent -= 0.5 * a.dot(a)
        return np.exp(exponent, out=exponent)
