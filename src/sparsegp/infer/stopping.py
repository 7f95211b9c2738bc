"""When to stop: the sampling error that unseen blocks leave in the predictive mean (derivations/anytime.md)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.core.approximations import TestConditional
from sparsegp.core.local import LocalPosterior
from sparsegp.core.posterior import InducingPosterior, SparsePosterior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.infer.anytime import AnytimeState, Visit

FEWEST_BLOCKS = 6


@dataclass(frozen=True)
class ProbePoints:
    """Inputs at which the error is judged, their blocks for local models, and the noise variance there."""

    X: Tensor
    labels: Tensor | None
    noise_var: Tensor | float


@dataclass(frozen=True)
class Probes:
    """f_* | v ~ N(slope v + constant, var) at the probe points, whatever q, and the noise variance of y_*."""

    slopes: Tensor
    var: Tensor
    noise_var: Tensor | float

    @classmethod
    def prepare(cls, posterior: SparsePosterior | LocalPosterior, points: ProbePoints) -> "Probes":
        X = points.X.to(torch.float64)
        with torch.no_grad():
            if isinstance(posterior, LocalPosterior):
                slopes, var = posterior.conditionals(X, points.labels)
            else:
                slopes = posterior.prior.features(X)
                var = posterior.prior.residual_diag(X, slopes)
                if posterior.prior.approx.test is TestConditional.DETERMINISTIC:
                    var = torch.zeros_like(var)
        return cls(slopes, var, points.noise_var)

    def std(self, q: InducingPosterior) -> Tensor:
        """Predictive standard deviation of y at the probes."""
        return (self.var + linalg.row_squares(linalg.whiten_rows(self.slopes, q.LB.factor)) + self.noise_var).sqrt()


def influence(slopes: Tensor, B: Tensor, mean: Tensor, statistics: BlockStatistics, weight: float) -> Tensor:
    """phi_s = h (B - w F_s)^-1 (G_s - F_s m): the mean moves by -w phi_s if block s is left out.

    Equal to h B^-1 A_s^T (I - w A_s B^-1 A_s^T)^-1 (z_s - A_s m) with A_s^T A_s = F_s, A_s^T z_s = G_s.
    """
    without = linalg.cholesky(B - weight * statistics.precision, name="precision without a block", smallest_pivot=0.0)
    residual = statistics.shift - statistics.precision @ mean
    half = linalg.solve_lower(without.factor, residual[:, None])
    moved: Tensor = slopes @ linalg.solve_lower_transposed(without.factor, half)[:, 0]
    return moved


def unseen_fraction(state: AnytimeState, n_blocks: int, equal_weights: bool) -> float:
    """Finite-population factor 1 - t/K of t blocks drawn without replacement and averaged; 1 for any other scheme."""
    return max(0.0, 1.0 - state.blocks_drawn / n_blocks) if equal_weights else 1.0


def standard_error(
    state: AnytimeState,
    statistics: BlockStatistics,
    q: InducingPosterior,
    slopes: Tensor,
    *,
    fraction: float,
) -> Tensor:
    """se of the predictive mean at each probe: se^2 = fraction * spread * Var_s(phi_s/p_s).

    When averaging t of K blocks drawn with equal chance this is (1 - t/K) K^2/t Var_s(phi_s). Infinite before there are
    FEWEST_BLOCKS blocks to judge from. `statistics` are the iterate scaled to all rows, those q was read from.
    """
    if fraction == 0.0:
        return torch.zeros(slopes.shape[0], dtype=torch.float64)
    if len(state.recent) < FEWEST_BLOCKS:
        return torch.full((slopes.shape[0],), math.inf, dtype=torch.float64)
    scale = statistics.n_rows / state.iterate.n_rows
    phi = influences(state.recent, statistics, q, slopes, scale)
    return sampling_error(state, scale * _beyond_size(phi, state.recent), fraction)


def influences(
    recent: tuple[Visit, ...], statistics: BlockStatistics, q: InducingPosterior, slopes: Tensor, scale: float = 1.0
) -> Tensor:
    """phi_s at each probe, one row a block; `scale`: of the blocks' weights in the statistics."""
    B = statistics.precision + torch.eye(len(q.mean), dtype=torch.float64, device=q.mean.device)
    return torch.stack([influence(slopes, B, q.mean, v.statistics, scale * v.weight) for v in recent])


def sampling_error(state: AnytimeState, phi: Tensor, fraction: float) -> Tensor:
    """(fraction * spread * Var_s(phi_s/p_s))^(1/2)."""
    inverse_chance = torch.tensor([v.inverse_chance for v in state.recent], dtype=torch.float64)
    return (fraction * state.spread * (inverse_chance[:, None] * phi).var(dim=0)).sqrt()


def _beyond_size(phi: Tensor, recent: tuple[Visit, ...]) -> Tensor:
    """phi_s - R b_s with R = sum phi/sum b: the ratio estimator does not feel that a block is larger than others."""
    sizes = torch.tensor([visit.statistics.n_rows for visit in recent], dtype=torch.float64)
    return phi - sizes[:, None] * (phi.sum(0) / sizes.sum())


def relative_error(se: Tensor, std: Tensor) -> float:
    """max over probes of se/std(y_*): where it is small, the remaining error is not worth the time."""
    return float((se / std).max())
