"""Models that keep all rows: the exact GP, O(N^3), and the Nystrom approximation (004 eq. 6 and sec. 10.1)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sparsegp import linalg, parallel
from sparsegp.core.block import CHUNK_ROWS, Block
from sparsegp.core.posterior import SMALLEST_VARIANCE, InducingPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.trend import Trend
from sparsegp.errors import InputError
from sparsegp.kernels import Kernel

MOST_ROWS = 20_000
MOST_INVERTED = 4_096
"""Rows of a model whose inverse factor is kept for predictions: 5 N^2 bytes."""


def require_dense_size(n_rows: int) -> None:
    if n_rows > MOST_ROWS:
        gigabytes = 8 * n_rows**2 / 2**30
        raise InputError(
            f"approximation='exact' needs an N x N matrix; with {n_rows:,} rows that is {gigabytes:,.0f} GiB and "
            "O(N^3) time. "
            f"Up to {MOST_ROWS:,} rows are accepted. Use approximation='vfe' or 'pic', or 'sod' for a subset."
        )


def row_noise(block: Block, noise_var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Noise of each row seen once (noise / weight), the weights, and the noise of a single repetition."""
    single = (
        noise_var.to(torch.float64).expand(len(block)) if block.noise_var is None else block.noise_var.to(torch.float64)
    )
    weight = torch.ones_like(single) if block.weight is None else block.weight.to(torch.float64)
    return single / weight, weight, single


@dataclass(frozen=True)
class TrendPosterior:
    """Beside a GP with covariance S of its targets (noise included): H = b T(X), G = S^-1 H, the coefficients' mean,
    and A = I + H^T S^-1 H, their precision.

    The trend adds (b T(x) - k G) A^-1 (b T(x) - k G)^T to variances, k = k(x, X): nothing broad is subtracted.
    """

    trend: Trend
    G: Tensor
    A: linalg.Cholesky
    mean: Tensor

    @classmethod
    def of(cls, trend: Trend, X: Tensor, C: linalg.Cholesky, mean: Tensor) -> "TrendPosterior":
        """Beside S = C C^T; a known mean."""
        half = linalg.solve_lower(C.factor, trend.features(X))
        A = half.mT @ half
        A.diagonal().add_(1.0)
        A_root = linalg.cholesky(A, name="precision of the trend", smallest_pivot=0.0)
        return cls(trend, linalg.solve_lower_transposed(C.factor, half), A_root, mean)

    @classmethod
    def fitted(cls, trend: Trend, X: Tensor, C: linalg.Cholesky, y: Tensor) -> "TrendPosterior":
        """Beside S = C C^T; mean = A^-1 H^T S^-1 y."""
        found = cls.of(trend, X, C, torch.zeros(trend.n_features, dtype=torch.float64))
        return replace(found, mean=torch.cholesky_solve((found.G.mT @ y)[:, None], found.A.factor)[:, 0])

    def level(self, X: Tensor) -> Tensor:
        """What the trend adds to the mean."""
        return self.trend.features(X) @ self.mean

    def moments(self, X: Tensor, K: Tensor) -> tuple[Tensor, Tensor]:
        """What the trend adds to the mean of rows with covariances K, and a root of what it adds to the covariance."""
        H = self.trend.features(X)
        return H @ self.mean, linalg.whiten_rows(H - K @ self.G, self.A.factor)


@dataclass(frozen=True)
class ExactPosterior:
    """p(f | y) with C = chol(K + noise), alpha = (K + noise)^-1 (y - trend), and the diagonal of K + noise without
    jitter."""

    kernel: Kernel
    X: Tensor
    C: linalg.Cholesky
    alpha: Tensor
    log_evidence: float
    diagonal: Tensor
    beside: TrendPosterior | None = None

    @classmethod
    def build(
        cls,
        kernel: Kernel,
        block: Block,
        noise_var: Tensor,
        trend: Trend | None = None,
        K: Tensor | None = None,
    ) -> "ExactPosterior":
        """The covariance K of the rows is computed unless given."""
        X, y = block.X.to(torch.float64), block.y.to(torch.float64)
        noise, weight, single = row_noise(block, noise_var)
        with torch.no_grad(), parallel.single(len(X)):
            S = kernel(X) if K is None else K.clone()
            S.diagonal().add_(noise)
            diagonal = S.diagonal().clone()
            C = linalg.cholesky(S, name="covariance of the targets")
            beside = None if trend is None else TrendPosterior.fitted(trend, X, C, y)
            left = y if beside is None else y - beside.trend.features(X) @ beside.mean
            alpha = torch.cholesky_solve(left[:, None], C.factor)[:, 0]
        repeats = float(((weight - 1.0) * single.log() + weight.log()).sum())
        logdet = float(C.logdet) + (0.0 if beside is None else float(beside.A.logdet))
        evidence = -0.5 * (block.n_rows * math.log(2.0 * math.pi) + logdet + repeats + float(y @ alpha))
        return cls(kernel, X, C, alpha, evidence, diagonal, beside)

    def __getstate__(self) -> dict[str, Any]:
        """Copies prepare for predictions themselves."""
        return {name: value for name, value in vars(self).items() if name not in ("covariance", "_inverse_C")}

    @property
    def trend(self) -> Trend | None:
        return None if self.beside is None else self.beside.trend

    @cached_property
    def covariance(self) -> Callable[[Tensor], Tensor]:
        """k(., X)."""
        return self.kernel.onto(self.X)

    @cached_property
    def _inverse_C(self) -> linalg.InverseLower:
        with parallel.single(len(self.X)):
            return linalg.InverseLower.of(self.C.factor)

    def whitened(self, K: Tensor) -> Tensor:
        """C^-1 k_i, row by row: by products where the inverse is small enough to be kept."""
        if len(self.X) > MOST_INVERTED:
            return linalg.whiten_rows(K, self.C.factor)
        return self._inverse_C.whiten(K)

    def precision(self) -> Tensor:
        """(K + noise + trend)^-1."""
        inverse = linalg.inverse_from_cholesky(self.C.factor)
        if self.beside is None:
            return inverse
        root = linalg.whiten_rows(self.beside.G, self.beside.A.factor)
        return inverse - root @ root.mT

    def mean(self, X: Tensor, labels: Tensor | None = None) -> Tensor:
        return _mean(self.covariance, X.to(torch.float64), self.alpha, self.beside)

    def marginals(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            parts = [self._chunk(part) for part in X.to(torch.float64).split(CHUNK_ROWS)]
        if len(parts) == 1:
            return parts[0]
        means, variances = zip(*parts, strict=True)
        return torch.cat(means), torch.cat(variances)

    def _chunk(self, X: Tensor) -> tuple[Tensor, Tensor]:
        K, prior_var = self.covariance(X), self.kernel.diagonal(X)
        mean = K @ self.alpha
        var = torch.maximum(prior_var - linalg.row_squares(self.whitened(K)), SMALLEST_VARIANCE * prior_var)
        if self.beside is None:
            return mean, var
        level, root = self.beside.moments(X, K)
        return mean + level, var + linalg.row_squares(root)

    def joint(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        X = X.to(torch.float64)
        with torch.no_grad():
            K = self.covariance(X)
            spread = self.whitened(K)
            mean, cov = K @ self.alpha, self.kernel(X) - spread @ spread.mT
            if self.beside is not None:
                level, root = self.beside.moments(X, K)
                mean, cov = mean + level, cov + root @ root.mT
            return mean, linalg.symmetric(cov)


@dataclass(frozen=True)
class NystromPosterior:
    """Mean k_*f beta and 'variance' k_** - k_*f (Q + noise)^-1 k_f*, with (Q + noise)^-1 = N^-1 - A B^-1 A^T.

    Q replaces K in the training covariance only (004 sec. 10.1), so this is not a generative model: the joint prior
    can be indefinite and variances can come out negative. They are returned as they are unless `clip` is asked for.
    A trend is beside it: A and B are then those of the inducing values alone.
    """

    prior: SparsePrior
    X: Tensor
    inverse_noise: Tensor
    q: InducingPosterior
    T: Tensor
    beta: Tensor
    clip: bool = False
    beside: TrendPosterior | None = None

    @classmethod
    @torch.no_grad()
    def build(cls, prior: SparsePrior, block: Block, q: InducingPosterior, *, clip: bool = False) -> "NystromPosterior":
        weight = 1.0 if block.weight is None else block.weight
        inverse_noise = weight / prior.row_noise(block)
        scale = inverse_noise.sqrt()
        A = prior.features(block.X) * scale[:, None]
        beta = scale * (scale * block.y - A @ q.mean.to(A.dtype))
        return cls.resumed(prior, block.X, inverse_noise, q, beta, clip=clip)

    @classmethod
    @torch.no_grad()
    def resumed(
        cls,
        prior: SparsePrior,
        X: Tensor,
        inverse_noise: Tensor,
        q: InducingPosterior,
        beta: Tensor,
        *,
        clip: bool = False,
    ) -> "NystromPosterior":
        """From beta as it was computed before."""
        M, scale = prior.n_inducing, inverse_noise.sqrt()
        A = prior.of_kernel(prior.features(X)) * scale[:, None]
        # the leading part of the factor is that of the leading part of B
        T = linalg.whiten_rows(A, q.LB.factor[:M, :M].to(A.dtype)) * scale[:, None]
        beside = None
        if prior.trend is not None:
            H = prior.trend.features(X)
            G = inverse_noise[:, None] * H - T @ (T.mT @ H)
            # and the trailing part that of what the leading one leaves: I + H^T (Q + noise)^-1 H
            left = linalg.Cholesky(q.LB.factor[M:, M:].to(A.dtype), q.LB.jitter)
            beside = TrendPosterior(prior.trend, G, left, q.mean[M:].to(A.dtype))
        return cls(prior, X, inverse_noise, q, T, beta, clip, beside)

    @property
    def trend(self) -> Trend | None:
        return self.prior.trend

    def mean(self, X: Tensor, labels: Tensor | None = None) -> Tensor:
        return _mean(self.prior.kernel.onto(self.X), X, self.beta, self.beside)

    def marginals(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        means, variances = [], []
        with torch.no_grad():
            for part in X.split(CHUNK_ROWS):
                K = self.prior.kernel(part, self.X)
                prior_var = self.prior.kernel.diagonal(part)
                explained = linalg.row_dots(K * self.inverse_noise, K) - (K @ self.T).square().sum(1)
                mean, var = K @ self.beta, prior_var - explained
                if self.beside is not None:
                    level, root = self.beside.moments(part, K)
                    mean, var = mean + level, var + linalg.row_squares(root)
                means.append(mean)
                variances.append(self.clipped(var, prior_var))
        return torch.cat(means), torch.cat(variances)

    def clipped(self, var: Tensor, prior_var: Tensor) -> Tensor:
        """Variances as they are, or none below zero if `clip` was asked for."""
        return torch.maximum(var, SMALLEST_VARIANCE * prior_var) if self.clip else var

    def joint(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            K = self.prior.kernel(X, self.X)
            KT = K @ self.T
            mean, cov = K @ self.beta, self.prior.kernel(X) - (K * self.inverse_noise) @ K.mT + KT @ KT.mT
            if self.beside is not None:
                level, root = self.beside.moments(X, K)
                mean, cov = mean + level, cov + root @ root.mT
            return mean, linalg.symmetric(cov)


def _mean(covariance: Callable[[Tensor], Tensor], X: Tensor, weights: Tensor, beside: TrendPosterior | None) -> Tensor:
    """k(x, rows) weights, and the trend."""
    with torch.no_grad():
        mean = torch.cat([covariance(part) @ weights for part in X.split(CHUNK_ROWS)])
        return mean if beside is None else mean + beside.level(X)
