"""Models that keep all rows: the exact GP, O(N^3), and the Nystrom approximation (004 eq. 6 and sec. 10.1)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.core.block import CHUNK_ROWS, Block
from sparsegp.core.posterior import SMALLEST_VARIANCE, InducingPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.errors import InputError
from sparsegp.kernels import Kernel

MOST_ROWS = 20_000


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
class ExactPosterior:
    """p(f | y) with C = chol(K + noise), alpha = (K + noise)^-1 y, and the diagonal of K + noise without jitter."""

    kernel: Kernel
    X: Tensor
    C: linalg.Cholesky
    alpha: Tensor
    log_evidence: float
    diagonal: Tensor

    @classmethod
    def build(cls, kernel: Kernel, block: Block, noise_var: Tensor) -> "ExactPosterior":
        X, y = block.X.to(torch.float64), block.y.to(torch.float64)
        noise, weight, single = row_noise(block, noise_var)
        with torch.no_grad():
            K = kernel(X)
            K.diagonal().add_(noise)
            diagonal = K.diagonal().clone()
            C = linalg.cholesky(K, name="covariance of the targets")
            alpha = torch.cholesky_solve(y[:, None], C.factor)[:, 0]
        repeats = float(((weight - 1.0) * single.log() + weight.log()).sum())
        evidence = -0.5 * (block.n_rows * math.log(2.0 * math.pi) + float(C.logdet) + repeats + float(y @ alpha))
        return cls(kernel, X, C, alpha, evidence, diagonal)

    def marginals(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        means, variances = [], []
        with torch.no_grad():
            for part in X.to(torch.float64).split(CHUNK_ROWS):
                K = self.kernel(part, self.X)
                spread = linalg.whiten_rows(K, self.C.factor)
                prior_var = self.kernel.diagonal(part)
                means.append(K @ self.alpha)
                variances.append(torch.maximum(prior_var - linalg.row_squares(spread), SMALLEST_VARIANCE * prior_var))
        return torch.cat(means), torch.cat(variances)

    def joint(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        X = X.to(torch.float64)
        with torch.no_grad():
            K = self.kernel(X, self.X)
            spread = linalg.whiten_rows(K, self.C.factor)
            return K @ self.alpha, linalg.symmetric(self.kernel(X) - spread @ spread.mT)


@dataclass(frozen=True)
class NystromPosterior:
    """Mean k_*f beta and 'variance' k_** - k_*f (Q + noise)^-1 k_f*, with (Q + noise)^-1 = N^-1 - A B^-1 A^T.

    Q replaces K in the training covariance only (004 sec. 10.1), so this is not a generative model: the joint prior
    can be indefinite and variances can come out negative. They are returned as they are unless `clip` is asked for.
    """

    prior: SparsePrior
    X: Tensor
    inverse_noise: Tensor
    q: InducingPosterior
    T: Tensor
    beta: Tensor
    clip: bool = False

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
        scale = inverse_noise.sqrt()
        A = prior.features(X) * scale[:, None]
        T = linalg.whiten_rows(A, q.LB.factor.to(A.dtype)) * scale[:, None]
        return cls(prior, X, inverse_noise, q, T, beta, clip)

    def marginals(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        means, variances = [], []
        with torch.no_grad():
            for part in X.split(CHUNK_ROWS):
                K = self.prior.kernel(part, self.X)
                prior_var = self.prior.kernel.diagonal(part)
                explained = linalg.row_dots(K * self.inverse_noise, K) - (K @ self.T).square().sum(1)
                means.append(K @ self.beta)
                variances.append(self.clipped(prior_var - explained, prior_var))
        return torch.cat(means), torch.cat(variances)

    def clipped(self, var: Tensor, prior_var: Tensor) -> Tensor:
        """Variances as they are, or none below zero if `clip` was asked for."""
        return torch.maximum(var, SMALLEST_VARIANCE * prior_var) if self.clip else var

    def joint(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            K = self.prior.kernel(X, self.X)
            KT = K @ self.T
            cov = self.prior.kernel(X) - (K * self.inverse_noise) @ K.mT + KT @ KT.mT
            return K @ self.beta, linalg.symmetric(cov)
