"""Second pass of the exact gradient: adjoints of the covariances of one block (derivations/objective-gradient.md).

The objective depends on a block through W (whitened features), K_kk (or its diagonal) and the noise. Everything is
expressed in W, whose condition is the square root of Kuu's, and turned into the adjoint of K_ku by a product with L^-1.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.core import noise_model
from sparsegp.core.block import Block
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import repeated_noise

COARSE_FROM = 128
"""Inducing inputs from which some products are worth single precision, see `SharedAdjoint.coarse`."""
LARGEST_COARSE_CONDITION = 1e8
"""Condition of Kuu up to which they are, see decisions/0026: beyond it L^-1 magnifies their errors past 1e-6."""


class _Pairing(torch.autograd.Function):
    """A scalar whose gradient for `value` is `adjoint`; its own value, <value, adjoint>, is not computed."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, adjoint: Tensor) -> Tensor:
        ctx.adjoint = adjoint
        return value.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.adjoint, None


def push_back(value: Tensor, adjoint: Tensor) -> None:
    """Add the gradient of <value, adjoint> to the `.grad` of the parameters; nothing if `value` depends on none.

    As `value.backward(adjoint)`, which on its first call imports sympy: one to three seconds of a first fit.
    """
    if value.requires_grad:
        with torch.enable_grad():
            _Pairing.apply(value, adjoint).backward()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class SharedAdjoint:
    """M x M quantities that every block needs: m, L^-1, B^-1, a = L^-T m, and the slope of (A2).

    With a trend m, L and B have its coefficients too; a and the columns of the slope are those of the inducing values.
    `direct` says that the slope applies to K itself instead of to W: one product less, where Kuu is well conditioned.
    `coarse_B` is B^-1 in the precision of products that may be coarse. W and B^-1 are at most 1, and errors of single
    rows average out. What leads from W to K magnifies them, by the root of the condition of Kuu: it is never coarse
    itself, and nothing is where that condition is large.
    """

    mean: Tensor
    inverse_L: Tensor
    inverse_B: Tensor
    coarse_B: Tensor
    weights: Tensor
    slope: Tensor
    direct: bool

    @classmethod
    def build(cls, prior: SparsePrior, q: InducingPosterior, inverse_L: Tensor, *, direct: bool) -> "SharedAdjoint":
        # for rows without residual, bar W = diag(1/noise) (y m^T + W (rho I - B^-1 - m m^T))
        inner = _explained(q.mean, q.covariance, prior.approx.penalty)
        slope = linalg.congruence_(inner, inverse_L) if direct else linalg.rows_times_lower_(inner, inverse_L)
        M = prior.n_inducing
        coarse_B = q.covariance.to(_coarse_precision(prior, inverse_L[:M, :M]))
        weights = (inverse_L.mT @ q.mean)[:M]
        return cls(q.mean, inverse_L, q.covariance, coarse_B, weights, slope[:, :M], direct)

    def coarse(self, A: Tensor) -> Tensor:
        """A in the precision of products that may be coarse."""
        return A.to(self.coarse_B.dtype) if A.dtype == torch.float64 else A

    def to_covariance(self, prior: SparsePrior, W_bar: Tensor) -> Tensor:
        """bar K_ku of bar W, which may be lost: the trend has no parameters, so its columns lead nowhere."""
        M = prior.n_inducing
        return linalg.rows_times_lower_(prior.of_kernel(W_bar), self.inverse_L[:M, :M].to(W_bar.dtype))


def _coarse_precision(prior: SparsePrior, inverse_L: Tensor) -> torch.dtype:
    if not prior.approx.keeps_residual or prior.n_features < COARSE_FROM:
        return torch.float64
    condition = linalg.condition_estimate(prior.Luu.factor, inverse_L)
    return torch.float32 if condition <= LARGEST_COARSE_CONDITION else torch.float64


@dataclass(frozen=True)
class BlockAdjoint:
    """Adjoints of K_ku, of K_kk (matrix) or its diagonal (vector), of each row's noise, and the sum of
    W^T (bar D + c V^-1) W with c of `noise_model.pullback_bound`."""

    K_ku: Tensor
    K_kk: Tensor | None
    noise: Tensor | None
    residual_gram: Tensor | None


def block_adjoint(prior: SparsePrior, shared: SharedAdjoint, block: Block, K: Tensor, own: Tensor) -> BlockAdjoint:
    """Adjoints of a block from its covariances K = K_ku and own = K_kk (its diagonal for rows without blocks)."""
    if prior.approx.by_block:
        return _together(prior, shared, block, K, own)
    if prior.approx.keeps_residual:
        return _points(prior, shared, block, K)
    return _points_without_residual(prior, shared, block, K)


def _points_without_residual(prior: SparsePrior, shared: SharedAdjoint, block: Block, K: Tensor) -> BlockAdjoint:
    """SoR, DTC, VFE: one product. The noise adjoint follows from the statistics, see `noise_adjoint`."""
    features = prior.columns(block.X, K) if shared.direct else prior.features(block.X, K)
    scale = block.weights / prior.row_noise(block)
    K_bar = linalg.product(features, shared.slope.to(K.dtype))
    K_bar.addr_(block.y, shared.weights.to(K.dtype)).mul_(scale[:, None])
    return BlockAdjoint(K_bar, -0.5 * prior.approx.penalty * scale if prior.approx.penalty else None, None, None)


def _points(prior: SparsePrior, shared: SharedAdjoint, block: Block, K: Tensor) -> BlockAdjoint:
    """FITC, PEP and combinations of point rows."""
    W = prior.features(block.X, K)
    noise, weight = prior.row_noise(block), block.weights
    d = prior.residual_diag(block.X, W)
    v = noise_model.point_variance(prior.approx, d, noise)
    error = block.y - W @ shared.mean.to(W.dtype)
    coarse_W = shared.coarse(W)
    WB = linalg.product(coarse_W, shared.coarse_B.to(coarse_W.dtype))
    second = error.square() + linalg.row_dots(coarse_W, WB)
    v_bar = 0.5 * (second / v - 1.0) / v
    d_bar, noise_bar = noise_model.point_pullback(prior.approx, d, noise, v, v_bar)
    d_bar = (weight * d_bar).masked_fill_(d <= 0.0, 0.0)
    scale = weight / v
    root = (d_bar + noise_model.pullback_bound(prior.approx) * scale).clamp_min_(0.0).sqrt_()
    gram = linalg.row_gram((prior.of_kernel(W) * root[:, None]).mT).to(torch.float64)
    W_bar = W.mul_(-2.0 * d_bar[:, None]).addr_(scale * error, shared.mean.to(W.dtype))
    W_bar.sub_(WB.mul_(scale.to(WB.dtype)[:, None]).to(W.dtype))  # in one precision: mixed ones take ten times as long
    return BlockAdjoint(shared.to_covariance(prior, W_bar), d_bar, weight * noise_bar, gram)


def _together(prior: SparsePrior, shared: SharedAdjoint, block: Block, K: Tensor, own: Tensor) -> BlockAdjoint:
    """PITC, PIC, block PEP and combinations with block rows."""
    W = prior.features(block.X, K).to(torch.float64)
    noise, weight = repeated_noise(prior, block)
    D = prior.residual_block(block.X, W, own)
    C = linalg.cholesky(
        noise_model.block_covariance(prior.approx, D, noise, weight), name="noise covariance of a block"
    ).factor
    V_inv = linalg.inverse_from_cholesky(C)
    Y = linalg.product(V_inv, W)
    coarse_Y = shared.coarse(Y)
    YB = linalg.product(coarse_Y, shared.coarse_B)
    g = V_inv @ (block.y.to(torch.float64) - W @ shared.mean)
    E = linalg.symmetric_product(YB, coarse_Y)
    V_bar = E.to(torch.float64).sub_(V_inv).addr_(g, g, beta=0.5, alpha=0.5)
    D_bar, noise_bar = noise_model.block_pullback(prior.approx, D, noise, weight, V_inv, V_bar)
    if block.weight is not None:
        d_bar, single_bar = noise_model.repeats_pullback(prior.approx, D, noise, weight)
        D_bar, noise_bar = D_bar + torch.diag(d_bar), noise_bar / weight + single_bar
    DW = linalg.product(D_bar, W)
    W_bar = YB.to(torch.float64).addr_(g, shared.mean, beta=-1.0).sub_(DW, alpha=2.0)
    gram = linalg.symmetric_product(prior.of_kernel(W).mT, prior.of_kernel(DW).mT)
    return BlockAdjoint(shared.to_covariance(prior, W_bar), D_bar, noise_bar, gram)


def residual_part(prior: SparsePrior, precision: Tensor, residual_gram: Tensor | None) -> Tensor:
    """sum W^T bar D W from the sum of `BlockAdjoint` (None: there is no residual, and bar D = -c/noise)."""
    M = prior.n_inducing
    part = -noise_model.pullback_bound(prior.approx) * precision[:M, :M]
    return part if residual_gram is None else part + residual_gram


def inducing_adjoint(
    prior: SparsePrior, shared: SharedAdjoint, precision: Tensor, residual_gram: Tensor | None
) -> Tensor:
    """bar Kuu = L^-T [ (I - B^-1 - m m^T)/2 + sum_k W^T bar D_k W ] L^-1, the sum from that of `BlockAdjoint`."""
    M = prior.n_inducing
    inner = _explained(shared.mean, shared.inverse_B, 1.0)[:M, :M].mul_(0.5)
    inner = inner + residual_part(prior, precision, residual_gram)
    return linalg.symmetric(linalg.congruence_(inner, shared.inverse_L[:M, :M]))


def _explained(mean: Tensor, inverse_B: Tensor, of_prior: float) -> Tensor:
    """of_prior I - B^-1 - m m^T, a new matrix."""
    inner = torch.addr(inverse_B, mean, mean, beta=-1.0, alpha=-1.0)
    inner.diagonal().add_(of_prior)
    return inner
