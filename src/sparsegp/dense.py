"""Models that keep all rows: the exact GP, O(N^3), and the Nystrom approximation (004 eq. 6 and sec. 10.1)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.data import CHUNK_ROWS, Block
from sparsegp.errors import InputError
from sparsegp.kernels import Kernel
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.posterior import SMALLEST_VARIANCE, InducingPosterior
from sparsegp.prior import SparsePrior
from sparsegp.pullback import push_back
from sparsegp.statistics import whiten_block

MOST_ROWS = 20_000


def require_dense_size(n_rows: int) -> None:
    if n_rows > MOST_ROWS:
        gigabytes = 8 * n_rows**2 / 2**30
        raise InputError(
            f"approximation='exact' needs an N x N matrix; with {n_rows:,} rows that is {gigabytes:,.0f} GiB and "
            "O(N^3) time. "
            f"Up to {MOST_ROWS:,} rows are accepted. Use approximation='vfe' or 'pic', or 'sod' for a subset."
        )


def _row_noise(block: Block, noise_var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Noise of each row seen once (noise / weight), the weights, and the noise of a single repetition."""
    single = (
        noise_var.to(torch.float64).expand(len(block)) if block.noise_var is None else block.noise_var.to(torch.float64)
    )
    weight = torch.ones_like(single) if block.weight is None else block.weight.to(torch.float64)
    return single / weight, weight, single


@dataclass(frozen=True)
class ExactPosterior:
    """p(f | y) with C = chol(K + noise) and alpha = (K + noise)^-1 y."""

    kernel: Kernel
    X: Tensor
    C: linalg.Cholesky
    alpha: Tensor
    log_evidence: float

    @classmethod
    def build(cls, kernel: Kernel, block: Block, noise_var: Tensor) -> "ExactPosterior":
        X, y = block.X.to(torch.float64), block.y.to(torch.float64)
        noise, weight, single = _row_noise(block, noise_var)
        with torch.no_grad():
            K = kernel(X)
            K.diagonal().add_(noise)
            C = linalg.cholesky(K, name="covariance of the targets")
            alpha = torch.cholesky_solve(y[:, None], C.factor)[:, 0]
        repeats = float(((weight - 1.0) * single.log() + weight.log()).sum())
        evidence = -0.5 * (block.n_rows * math.log(2.0 * math.pi) + float(C.logdet) + repeats + float(y @ alpha))
        return cls(kernel, X, C, alpha, evidence)

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
class ExactObjective:
    """The exact log evidence; bar K = (alpha alpha^T - (K + noise)^-1)/2."""

    block: Block

    @property
    def n_rows(self) -> int:
        return len(self.block)

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        hyper.clear_gradient()
        posterior = ExactPosterior.build(hyper.kernel, self.block, hyper.noise_var)
        K_bar = 0.5 * (torch.outer(posterior.alpha, posterior.alpha) - linalg.inverse_from_cholesky(posterior.C.factor))
        with torch.enable_grad():
            K = linalg.add_jitter(hyper.kernel(posterior.X), posterior.C.jitter)
        push_back(K, K_bar)
        if hyper.log_noise_var.requires_grad and self.block.noise_var is None:
            _, weight, single = _row_noise(self.block, hyper.noise_var)
            noise_bar = K_bar.diagonal() / weight - 0.5 * (weight - 1.0) / single
            hyper.log_noise_var.grad = noise_bar.sum() * hyper.noise_var
        return posterior.log_evidence


@dataclass(frozen=True)
class NystromPosterior:
    """Mean k_*f beta and 'variance' k_** - k_*f (Q + noise)^-1 k_f*, with (Q + noise)^-1 = N^-1 - A B^-1 A^T.

    Q replaces K in the training covariance only (004 sec. 10.1), so this is not a generative model: the joint prior
    can be indefinite and variances can come out negative. They are returned as they are unless `clip` is asked for.
    """

    prior: SparsePrior
    X: Tensor
    inverse_noise: Tensor
    T: Tensor
    beta: Tensor
    clip: bool = False

    @classmethod
    @torch.no_grad()
    def build(cls, prior: SparsePrior, block: Block, q: InducingPosterior, *, clip: bool = False) -> "NystromPosterior":
        whitened = whiten_block(prior, block)
        weight = 1.0 if block.weight is None else block.weight
        inverse_noise = weight / prior.row_noise(block)
        scale = inverse_noise.sqrt()
        T = linalg.whiten_rows(whitened.A, q.LB.factor.to(whitened.A.dtype)) * scale[:, None]
        beta = scale * (whitened.target - whitened.A @ q.mean.to(whitened.A.dtype))
        return cls(prior, block.X, inverse_noise, T, beta, clip)

    def marginals(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        means, variances = [], []
        with torch.no_grad():
            for part in X.split(CHUNK_ROWS):
                K = self.prior.kernel(part, self.X)
                prior_var = self.prior.kernel.diagonal(part)
                explained = linalg.row_dots(K * self.inverse_noise, K) - (K @ self.T).square().sum(1)
                means.append(K @ self.beta)
                variances.append(self._clipped(prior_var - explained, prior_var))
        return torch.cat(means), torch.cat(variances)

    def _clipped(self, var: Tensor, prior_var: Tensor) -> Tensor:
        return torch.maximum(var, SMALLEST_VARIANCE * prior_var) if self.clip else var

    def joint(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            K = self.prior.kernel(X, self.X)
            KT = K @ self.T
            cov = self.prior.kernel(X) - (K * self.inverse_noise) @ K.mT + KT @ KT.mT
            return K @ self.beta, linalg.symmetric(cov)
