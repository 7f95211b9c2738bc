"""Stochastic gradient ascent in moment space (000 eqs. 14, 17, 18), for completeness: natural gradients are better.

    mu    += rho (eta_hat - Lambda_hat mu)
    Sigma += rho/2 (Sigma^-1 - Lambda_hat)

with Lambda_hat = prior precision + sum_s w_s F_s and eta_hat = sum_s w_s G_s. Stability needs a rho below
4/lambda_max(Lambda_hat)^2, tiny where data are many. The steps depend on the coordinates: those of the paper are u,
the whitened ones v (u = L v) allow longer steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.core.block import Block
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.infer.anytime import Draw, StepSchedule, blend

SAFETY = 0.9


@dataclass(frozen=True)
class MomentState:
    """Mean and covariance of q in the coordinates of the ascent."""

    mean: Tensor
    covariance: Tensor
    steps: int = 0
    blocks_drawn: int = 0


@dataclass(frozen=True)
class MomentInfo:
    """The step taken and the longest that is stable."""

    rate: float
    stable_rate: float


@dataclass(frozen=True)
class GradientAscent:
    """SGA from the prior, each step clipped to its stability bound; `whitened` chooses the coordinates."""

    prior: SparsePrior
    schedule: StepSchedule
    whitened: bool = True

    def init(self) -> MomentState:
        L = self._basis
        return MomentState(torch.zeros_like(L[0]), L @ L.mT)

    def step(self, state: MomentState, draw: Draw, blocks: Sequence[Block]) -> tuple[MomentState, MomentInfo]:
        parts = [BlockStatistics.from_block(self.prior, block) for block in blocks]
        drawn = state.blocks_drawn + len(parts)
        precision, shift = self._estimate(blend(BlockStatistics.zero(self.prior), parts, draw.weights, 1.0))
        longest = stable_rate(precision)
        rate = min(self.schedule.rate(state.steps, len(parts), drawn), longest)
        inverse = linalg.inverse_from_cholesky(linalg.cholesky(state.covariance, name="covariance of q(u)").factor)
        mean = state.mean + rate * (shift - precision @ state.mean)
        covariance = linalg.symmetric(state.covariance + 0.5 * rate * (inverse - precision))
        return MomentState(mean, covariance, state.steps + 1, drawn), MomentInfo(rate, longest)

    def posterior(self, state: MomentState) -> InducingPosterior:
        to_u = self.prior.Luu.factor if self.whitened else torch.eye(len(state.mean), dtype=torch.float64)
        return InducingPosterior.from_moments(self.prior, to_u @ state.mean, to_u @ state.covariance @ to_u.mT)

    @property
    def _basis(self) -> Tensor:
        """T in (coordinates of the ascent) = T v."""
        L = self.prior.Luu.factor
        return torch.eye(L.shape[0], dtype=torch.float64, device=L.device) if self.whitened else L

    def _estimate(self, statistics: BlockStatistics) -> tuple[Tensor, Tensor]:
        """Lambda_hat = T^-T (I + sum w F) T^-1 and eta_hat = T^-T sum w G."""
        T = self._basis
        whitened = statistics.precision + torch.eye(T.shape[0], dtype=torch.float64, device=T.device)
        half = linalg.solve_lower_transposed(T, whitened)
        precision = linalg.symmetric(linalg.solve_lower_transposed(T, half.mT))
        return precision, linalg.solve_lower_transposed(T, statistics.shift[:, None])[:, 0]


def stable_rate(precision: Tensor) -> float:
    """Just below min(4/lambda_max^2, 2/lambda_max): both fixed points attract, and Sigma stays positive definite.

    For the latter 8/lambda_max^2 is enough, because s + (rho/2)/s >= sqrt(2 rho) for every eigenvalue s of Sigma;
    beyond 4/lambda_max^2 the covariance oscillates around its fixed point.
    """
    largest = float(linalg.signed_root(precision)[1].max())
    return SAFETY * min(4.0 / largest**2, 2.0 / largest)
