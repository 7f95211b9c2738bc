"""How far an expert bounds: where it can only repeat the prior, it need not be asked (R1-R3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.committee.aggregation import Aggregation
from sparsegp.core.block import Block
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.kernels import (
    Constant,
    Kernel,
    Matern12,
    Matern32,
    Matern52,
    Power,
    Product,
    RationalQuadratic,
    SquaredExponential,
    Sum,
)

DECREASING = (SquaredExponential, Matern12, Matern32, Matern52, RationalQuadratic, Constant)
SURELY_NEAR = 0.5
PAIRS_AT_ONCE = 2**16


@dataclass(frozen=True)
class InfluenceBound:
    """Bounds of what an expert says at x, by k = the largest covariance of x with the expert's support:

    s_0 - s_i <= var_gain k^2 and |m_i - m_0| <= mean_gain k. The support lies in the box [lower, upper]. Where the base
    is a communications expert, covariances are those that its rows leave, and `common_covariance` is the largest
    covariance of each of its rows with the support.
    """

    lower: Tensor
    upper: Tensor
    var_gain: float
    mean_gain: float
    common_covariance: Tensor | None = None


@dataclass(frozen=True)
class InfluenceBounds:
    """The bounds of all experts of a committee on one latent function, side by side: one line for each."""

    lower: Tensor
    upper: Tensor
    var_gain: Tensor
    mean_gain: Tensor
    common_covariance: Tensor | None = None

    @classmethod
    def of(cls, bounds: Sequence[InfluenceBound]) -> "InfluenceBounds":
        common = [bound.common_covariance for bound in bounds if bound.common_covariance is not None]
        return cls(
            torch.stack([bound.lower for bound in bounds]),
            torch.stack([bound.upper for bound in bounds]),
            torch.tensor([bound.var_gain for bound in bounds], dtype=torch.float64),
            torch.tensor([bound.mean_gain for bound in bounds], dtype=torch.float64),
            torch.stack(common) if len(common) == len(bounds) else None,
        )

    def may_matter(
        self,
        near: Tensor,
        X: Tensor,
        kernel: Kernel,
        influence: Tensor | None,
        base_var: Tensor,
        rule: Aggregation,
        n_experts: int,
        tolerance: float,
    ) -> Tensor:
        """Whether an expert (column) that is near may matter at each row (R3): false only where leaving it out is
        within the tolerance. `influence` is that of the common rows (R4)."""
        row, expert = near.nonzero(as_tuple=True)
        matters = torch.zeros_like(near)
        passed_on = (
            None if influence is None or self.common_covariance is None else influence @ self.common_covariance.mT
        )
        for part in (slice(start, start + PAIRS_AT_ONCE) for start in range(0, len(row), PAIRS_AT_ONCE)):
            i, e = row[part], expert[part]
            k = box_covariance(kernel, X[i], self.lower[e], self.upper[e])
            k = k if passed_on is None else k + passed_on[i, e]
            matters[i, e] = self._covers(e, k, base_var[i], rule, n_experts, tolerance)
        return matters

    def _covers(
        self, e: Tensor, k: Tensor, base_var: Tensor, rule: Aggregation, n_experts: int, tolerance: float
    ) -> Tensor:
        """Of pairs of an expert and a row, whose largest covariance is k."""
        reduction = self.var_gain[e] * k.square() / base_var
        near = reduction > SURELY_NEAR
        reduction = reduction.masked_fill(near, SURELY_NEAR)
        weight = rule.weight(reduction, n_experts) / (1.0 - reduction)
        pull = self.mean_gain[e] * k / base_var.sqrt()
        # weight taken from all others moves what they say (R5)
        effect = torch.ones_like(pull) if rule.normalizes else torch.maximum(reduction, pull)
        return near | (weight * effect > rule.first_total * tolerance / n_experts)


def box_covariance(kernel: Kernel, X: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """max over z in the box of k(x, z), for kernels that decrease with every |x_d - z_d|: that of the nearest z."""
    gap = X - torch.minimum(torch.maximum(X, lower), upper)
    return kernel(gap, gap.new_zeros(1, gap.shape[1]))[:, 0]


def decreases(kernel: Kernel) -> bool:
    """Whether k(x, z) = k(x - z, 0) and no |x_d - z_d| makes it larger by growing."""
    if isinstance(kernel, Sum | Product):
        return all(decreases(part) for part in kernel.kernels)
    if isinstance(kernel, Power):
        return decreases(kernel.base)
    return type(kernel) in DECREASING


def dense_bound(
    kernel: Kernel, block: Block, noise_var: Tensor, alpha: Tensor, common: Tensor | None = None
) -> InfluenceBound | None:
    """k^T (K + noise)^-1 k <= sum_i k_i^2 / noise_i, and |k^T alpha| <= k |alpha|_1 (R1); `common`: rows that the
    expert has in common with all others."""
    if not decreases(kernel):
        return None
    noise = noise_var.expand(len(block)) if block.noise_var is None else block.noise_var
    precision = 1.0 / noise if block.weight is None else block.weight / noise
    X = block.X.to(torch.float64)
    lower, upper = X.amin(0), X.amax(0)
    common_covariance = None if common is None else box_covariance(kernel, common, lower, upper)
    return InfluenceBound(lower, upper, float(precision.sum()), float(alpha.abs().sum()), common_covariance)


def sparse_bound(prior: SparsePrior, q: InducingPosterior) -> InfluenceBound | None:
    """k^T P k <= k^2 |P|_1 with P = L^-T (I - B^-1) L^-1, and |k^T a| <= k |a|_1 with a = L^-T m (R2)."""
    if not decreases(prior.kernel):
        return None
    inverse_L = linalg.inverse_lower(prior.Luu.factor)
    eye = torch.eye(len(q.mean), dtype=torch.float64)
    P = inverse_L.mT @ (eye - q.covariance) @ inverse_L
    weights = inverse_L.mT @ q.mean
    U = prior.inducing
    return InfluenceBound(U.amin(0), U.amax(0), float(P.abs().sum()), float(weights.abs().sum()))
