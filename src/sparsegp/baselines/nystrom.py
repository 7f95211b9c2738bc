"""The Nystrom approximation: Q in place of K for the training covariance only (004 sec. 8.2).

It is not a generative model: the joint prior can be indefinite and variances can come out negative. They are
returned as they are unless clipping is asked for.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.data import CHUNK_ROWS, Block
from sparsegp.posterior import SMALLEST_VARIANCE, InducingPosterior
from sparsegp.prior import SparsePrior


@dataclass(frozen=True)
class NystromPosterior:
    """Mean k_*f beta and 'variance' k_** - k_*f (Q + noise)^-1 k_f*, with (Q + noise)^-1 = N^-1 - A B^-1 A^T."""

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
