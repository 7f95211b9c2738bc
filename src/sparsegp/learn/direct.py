"""Statistics of rows without residual from K itself, whitened once at the end: no triangular solve per chunk.

Only for learning, and only where it is safe. The sum of K^T K loses eps * cond(Kuu) * tr(K)/noise against the prior
precision I; inference always whitens every chunk.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sparsegp import linalg, parallel
from sparsegp.core.block import Block, MemoryRows, Rows
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics

LARGEST_LOSS = 1e-3
LARGEST_CONDITION = 1e7


def is_safe(prior: SparsePrior, inverse_L: Tensor, rows: Rows) -> bool:
    """Whether whitening the sum keeps the posterior precision to LARGEST_LOSS, by an estimate of cond(Kuu)."""
    if prior.approx.keeps_residual:
        return False
    M = prior.n_inducing
    condition = linalg.condition_estimate(prior.Luu.factor, inverse_L[:M, :M])
    known = rows.least_noise_var
    least_noise = float(prior.noise_var) if known is None else known
    signal = rows.total_weight * float(prior.Luu.factor.square().sum(1).mean() / least_noise)
    return condition <= LARGEST_CONDITION and torch.finfo(rows.dtype).eps * condition * signal <= LARGEST_LOSS


@dataclass(frozen=True)
class Products:
    """Of some rows: sum K^T K/noise (upper triangle), sum K^T y/noise, and the scalars
    sum log noise, sum y^2/noise, sum k_ii/noise and the number of rows, each row with its weight."""

    gram: Tensor
    shift: Tensor
    scalars: Tensor

    def __add__(self, other: "Products") -> "Products":
        return Products(self.gram + other.gram, self.shift + other.shift, self.scalars + other.scalars)


@dataclass(frozen=True)
class DirectStatistics:
    """Task of a pass: the same statistics as those of batch inference, up to rounding."""

    prior: SparsePrior

    def __call__(self, rows: MemoryRows) -> BlockStatistics:
        total = parallel.summed(partial(_products, self.prior), list(rows.chunks()))
        with parallel.single(self.prior.n_inducing):
            return _whitened(self.prior, total)


def _products(prior: SparsePrior, blocks: Iterable[Block]) -> Products:
    M = prior.n_features
    gram, shift = prior.inducing.new_zeros(M, M), prior.inducing.new_zeros(M)
    scalars = torch.zeros(4, dtype=torch.float64)
    with torch.no_grad():
        for block in blocks:
            weight = block.weights
            noise = prior.row_noise(block)
            scale = (weight / noise).sqrt()
            A, target = prior.columns(block.X).mul_(scale[:, None]), block.y * scale
            linalg.add_gram(gram, A)
            shift.add_((A.mT @ target).to(torch.float64))
            sums = (weight * noise.log(), target.square(), prior.kernel.diagonal(block.X) * scale.square(), weight)
            scalars += torch.stack([part.sum(dtype=torch.float64) for part in sums])
    return Products(gram, shift, scalars)


def _whitened(prior: SparsePrior, products: Products) -> BlockStatistics:
    L, M = prior.root, prior.n_inducing
    half = linalg.solve_lower(L, linalg.mirror_upper(products.gram))
    precision = linalg.symmetric(linalg.solve_lower(L, half.mT))
    shift = linalg.solve_lower(L, products.shift[:, None])[:, 0]
    noise_logdet, target_sq, own, n_rows = products.scalars.tolist()
    # tr(D/noise) = tr(K/noise) - tr(Q/noise)
    penalty = 0.5 * prior.approx.penalty * max(own - float(precision.diagonal()[:M].sum()), 0.0)
    return BlockStatistics(precision, shift, noise_logdet, target_sq, penalty, n_rows, prior.fingerprint)
