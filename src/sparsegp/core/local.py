"""PIC: f at a point of block P given u and the rows of P (000 appendix D.4)."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.core import noise_model
from sparsegp.core.block import CHUNK_ROWS, BlockStore
from sparsegp.core.posterior import SMALLEST_VARIANCE, InducingPosterior, SparsePosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import repeated_noise
from sparsegp.core.trend import Trend
from sparsegp.errors import InputError

CACHE_BYTES = 256 * 2**20


@dataclass(frozen=True)
class LocalBlock:
    """Of one block P: its inputs, targets, W_P (whitened features) and chol(Gamma_P), none of which depends on q.

    Gamma_P = K_PP - Q_PP + noise.
    """

    X: Tensor
    y: Tensor
    W: Tensor
    C: Tensor

    @property
    def n_bytes(self) -> int:
        return 8 * (self.W.numel() + self.C.numel() + self.X.numel())


@dataclass(frozen=True)
class LocalPosterior:
    """PIC posterior for any q(u). Blocks are prepared when first visited and kept within a memory budget."""

    prior: SparsePrior
    q: InducingPosterior
    rows: BlockStore
    cache_bytes: int = CACHE_BYTES
    _cache: OrderedDict[int, LocalBlock] = field(default_factory=OrderedDict, repr=False, compare=False)

    @property
    def trend(self) -> Trend | None:
        return self.prior.trend

    def with_posterior(self, q: InducingPosterior) -> "LocalPosterior":
        """The same blocks under another q(u): both share the prepared blocks, which depend on the prior alone."""
        return replace(self, q=q)

    def conditionals(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Of p(f_* | y_P, u) = N(B u + l, R), whatever q: the whitened slope B and the variance R at each row."""
        slopes = torch.empty(X.shape[0], self.prior.n_features, dtype=torch.float64)
        var = torch.empty(X.shape[0], dtype=torch.float64)
        with torch.no_grad():
            for k, index in _by_label(_checked(labels, X)):
                _, slopes[index], D, C_root = self._conditional(X[index].to(torch.float64), k)
                var[index] = (D - linalg.row_squares(C_root)).clamp_min(0.0)
        return slopes, var

    def marginals(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mean = torch.empty(X.shape[0], dtype=torch.float64)
        var = torch.empty_like(mean)
        with torch.no_grad():
            for k, index in _by_label(_checked(labels, X)):
                for part in index.split(CHUNK_ROWS):
                    mean[part], slope, D, C_root = self._conditional(X[part].to(torch.float64), k)
                    spread = linalg.whiten_rows(slope, self.q.LB.factor)
                    var[part] = D - linalg.row_squares(C_root) + linalg.row_squares(spread)
            floor = SMALLEST_VARIANCE * self.prior.kernel.diagonal(X.to(torch.float64))
        return mean, torch.maximum(var, floor)

    def joint(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """cov = blockdiag(R_P) + B Sigma B^T: points of different blocks are independent given u."""
        X = X.to(torch.float64)
        mean = torch.empty(X.shape[0], dtype=torch.float64)
        slopes = torch.empty(X.shape[0], self.prior.n_features, dtype=torch.float64)
        cov = torch.zeros(X.shape[0], X.shape[0], dtype=torch.float64)
        with torch.no_grad():
            for k, index in _by_label(_checked(labels, X)):
                mean[index], slopes[index], _, C_root = self._conditional(X[index], k)
                D = self.prior.residual_block(X[index], self.prior.features(X[index]))
                cov[index[:, None], index] = D - C_root @ C_root.mT
            spread = linalg.whiten_rows(slopes, self.q.LB.factor)
            cov += spread @ spread.mT
        return mean, linalg.symmetric(cov)

    def _conditional(self, X: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of p(f_* | y_P, u) = N(B u + l, R): mean under q, whitened slope B, diag D_**, and C_*P chol(Gamma)^-T."""
        W = self.prior.features(X)
        D = self.prior.residual_diag(X, W)
        local = self._block(k) if 0 <= k < self.rows.n_blocks else None
        if local is None or len(local.y) == 0:
            return W @ self.q.mean, W, D, torch.zeros(X.shape[0], 0, dtype=torch.float64)
        cross = self.prior.kernel(X, local.X) - self.prior.of_kernel(W) @ self.prior.of_kernel(local.W).mT
        root = linalg.whiten_rows(cross, local.C)
        gain = linalg.solve_lower_transposed(local.C, root.mT).mT
        innovation = local.y - local.W @ self.q.mean
        return W @ self.q.mean + gain @ innovation, W - gain @ local.W, D, root

    def _block(self, k: int) -> LocalBlock:
        if k in self._cache:
            self._cache.move_to_end(k)
            return self._cache[k]
        local = self._prepare(k)
        self._cache[k] = local
        used = sum(block.n_bytes for block in self._cache.values())
        while used > self.cache_bytes and len(self._cache) > 1:
            used -= self._cache.popitem(last=False)[1].n_bytes
        return local

    def _prepare(self, k: int) -> LocalBlock:
        block = self.rows.block(k)
        X = block.X.to(torch.float64)
        if len(block) == 0:
            return LocalBlock(X, X.new_zeros(0), X.new_zeros(0, self.prior.n_features), X.new_zeros(0, 0))
        W = self.prior.features(X)
        noise, weight = repeated_noise(self.prior, block)
        V = noise_model.block_covariance(self.prior.approx, self.prior.residual_block(X, W), noise, weight)
        C = linalg.cholesky(V, name="noise covariance of a block").factor
        return LocalBlock(X, block.y.to(torch.float64), W, C)


def make_posterior(prior: SparsePrior, q: InducingPosterior, rows: BlockStore) -> SparsePosterior | LocalPosterior:
    """The posterior of f that the row's test conditional asks for."""
    return LocalPosterior(prior, q, rows) if prior.approx.is_local else SparsePosterior(prior, q)


def _checked(labels: Tensor | None, X: Tensor) -> Tensor:
    if labels is None or len(labels) != X.shape[0]:
        raise InputError(f"Local predictions need the block of each of the {X.shape[0]} rows; got {labels!r}.")
    return labels


def _by_label(labels: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(label, indices of the rows that have it), label by label."""
    order = labels.argsort(stable=True)
    values, counts = labels[order].unique_consecutive(return_counts=True)
    yield from zip(values.tolist(), order.split(counts.tolist()), strict=True)
