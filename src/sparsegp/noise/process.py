"""The noise process: log noise variance g = mu0 + GP, with its own sparse posterior q(g_u) (001 eqs. 2, 6, 11).

It does not know which approximation models f: it takes in how much the objective of f gains when the noise of a row
grows, and gives out the noise of each row. Whitened: g_u = mu0 + L v, q(v) = N(m, P^-1).

The noise stays smoothly between a least and a largest variance. With x = log noise between x_0 and x_1, s = SHARPNESS
and sigma the logistic function

    limited     = x_0 + [softplus(s (x - x_0)) - softplus(s (x - x_1))]/s
    limit_slope = sigma(s (x - x_0)) - sigma(s (x - x_1))

The kink of a hard limit stops full steps of q(g_u) and line searches: with half of the rows at the floor an ascent took
thirty evaluations instead of five. A factor of two away from a limit this one changes the noise by 0.3%.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sparsegp import linalg
from sparsegp.core import approximations
from sparsegp.core.block import CHUNK_ROWS
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.prior import Features, SparsePrior
from sparsegp.kernels import Kernel

SHARPNESS = 6.0
LINEAR_FROM = 40.0  # softplus(x) = x to rounding
SMALLEST_VARIANCE = 1e-14
PRECISION = "posterior precision of the inducing values"


def limited(log_noise: Tensor, limits: tuple[float, float]) -> Tensor:
    """The log noise variance inside the limits; far from both of them the value itself."""
    lowest, highest = (math.log(limit) for limit in limits)
    return lowest + _above(log_noise - lowest) - _above(log_noise - highest)


def limit_slope(log_noise: Tensor, limits: tuple[float, float]) -> Tensor:
    """d limited / d log_noise: 1 far inside the limits, 0 far outside."""
    lowest, highest = (math.log(limit) for limit in limits)
    return torch.sigmoid(SHARPNESS * (log_noise - lowest)) - torch.sigmoid(SHARPNESS * (log_noise - highest))


def _above(x: Tensor) -> Tensor:
    """x, smoothly kept above 0."""
    return softplus(x, beta=SHARPNESS, threshold=LINEAR_FROM)


@dataclass(frozen=True)
class NoiseMoments:
    """Mean and variance of g at rows, and the noise R = exp(mean - var/2) of the bound, kept inside the limits.

    `limit_slope` is d log R / d mean: 1, and less the closer R is to a limit.
    """

    mean: Tensor
    var: Tensor
    R: Tensor
    limit_slope: Tensor


@dataclass(frozen=True)
class NoiseSlopes:
    """What f says about the noise: slope_i = R_i dJ/dR_i, and lambda_i = slope_i + weight_i/2 >= 0 (001 eq. 10).

    `unabsorbed` in (0, 1] is how much of a change of the noise f does not absorb: with S = Cov(y), R_i [S^-1]_ii for
    approximations by points, and R_i sum_j [S^-1]_ij^2 R_j, which is smaller, within a block (derivations: H4).
    """

    slope: Tensor
    lam: Tensor
    unabsorbed: Tensor


@dataclass(frozen=True)
class StepSums:
    """What a step of q(g_u) needs of all rows: sum lam w w^T, sum unabsorbed lam w w^T and sum slope w."""

    precision: Tensor
    curvature: Tensor
    gradient: Tensor

    @classmethod
    def of(cls, n_inducing: int, features: Iterable[tuple[slice, Tensor]], slopes: NoiseSlopes) -> "StepSums":
        """Of rows whose features come chunk by chunk, each with its place."""
        precision, curvature = torch.zeros(2, n_inducing, n_inducing, dtype=torch.float64)
        gradient = torch.zeros(n_inducing, dtype=torch.float64)
        for part, W in features:
            lam, softened = slopes.lam[part], slopes.unabsorbed[part] * slopes.lam[part]
            linalg.add_gram(precision, W * lam.sqrt()[:, None])
            linalg.add_gram(curvature, W * softened.sqrt()[:, None])
            gradient += W.mT @ slopes.slope[part]
        return cls(linalg.mirror_upper(precision), linalg.mirror_upper(curvature), gradient)

    def __add__(self, other: "StepSums") -> "StepSums":
        return StepSums(
            self.precision + other.precision, self.curvature + other.curvature, self.gradient + other.gradient
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Half of the symmetric matrices travels between processes."""
        return _unpacked_sums, (linalg.packed_lower(self.precision), linalg.packed_lower(self.curvature), self.gradient)


def _unpacked_sums(precision: Tensor, curvature: Tensor, gradient: Tensor) -> StepSums:
    return StepSums(linalg.unpacked_symmetric(precision), linalg.unpacked_symmetric(curvature), gradient)


@dataclass(frozen=True)
class Direction:
    """Where a full step leads: the precision P of q, and the change of its mean."""

    precision: Tensor
    mean_change: Tensor


@dataclass(frozen=True)
class NoiseProcess:
    """Prior (kernel, inducing inputs, mean mu0) and posterior q(v) of g; `limits` are the least and largest noise."""

    prior: SparsePrior
    mean: Tensor
    q: InducingPosterior
    limits: tuple[float, float]

    @classmethod
    def at_prior(
        cls,
        kernel: Kernel,
        inducing: Tensor,
        mean: Tensor | float,
        limits: tuple[float, float],
        least_jitter: float = 0.0,
    ) -> "NoiseProcess":
        """q(v) = N(0, I)."""
        prior = SparsePrior.build(kernel, inducing, 1.0, approximations.get("vfe"), least_jitter)
        eye = torch.eye(prior.n_inducing, dtype=torch.float64)
        q = InducingPosterior(torch.zeros(prior.n_inducing, dtype=torch.float64), linalg.Cholesky(eye, 0.0))
        return cls(prior, torch.as_tensor(mean, dtype=torch.float64).detach().clone(), q, limits)

    def with_q(self, q: InducingPosterior) -> "NoiseProcess":
        return replace(self, q=q)

    def moments(self, X: Tensor) -> NoiseMoments:
        """mu_g = mu0 + W m, v_g = k_ii - |w_i|^2 + |P^-1/2 w_i|^2."""
        starts = range(0, X.shape[0], CHUNK_ROWS)
        return self.moments_of((self.prior.seen(X[start : start + CHUNK_ROWS]) for start in starts), X.shape[0])

    def moments_of(self, features: Iterable[Features], n_rows: int) -> NoiseMoments:
        """The same from the features of the rows, chunk by chunk."""
        mean = torch.empty(n_rows, dtype=torch.float64)
        var = torch.empty_like(mean)
        start = 0
        for chunk in features:
            part = slice(start, start + len(chunk.W))
            spread = linalg.whiten_rows(chunk.W, self.q.LB.factor)
            mean[part] = self.mean + chunk.W @ self.q.mean
            var[part] = chunk.residual + linalg.row_squares(spread)
            start = part.stop
        var.clamp_min_(SMALLEST_VARIANCE)
        log_noise = mean - 0.5 * var
        return NoiseMoments(mean, var, limited(log_noise, self.limits).exp(), limit_slope(log_noise, self.limits))

    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of g at new rows; the mean inside the limits of the noise."""
        moments = self.moments(X.to(torch.float64))
        return limited(moments.mean, self.limits), moments.var

    def kl(self) -> float:
        """KL(q(v) || N(0, I)) = (log|P| - u + tr P^-1 + m^T m)/2."""
        trace = self.q.covariance.diagonal().sum()
        quadratic = self.q.mean @ self.q.mean
        return 0.5 * float(self.q.LB.logdet - len(self.q.mean) + trace + quadratic)

    def natural_target(self, X: Tensor, slope: Tensor, lam: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """(P, P m) of a full natural step: I + W^T lam W and W^T [slope + lam (W m)] (derivations: H4)."""
        precision = torch.zeros_like(self.q.LB.factor)
        shift = torch.zeros_like(self.q.mean)
        for part, W in self.features(X):
            linalg.add_gram(precision, W * lam[part].sqrt()[:, None])
            shift += W.mT @ (slope[part] + lam[part] * (W @ self.q.mean))
        return _plus_identity(linalg.mirror_upper(precision), scale), scale * shift

    def direction(self, sums: StepSums) -> Direction:
        """The natural step for P; for the mean a step with curvature unabsorbed * lam instead of lam (H4)."""
        L = linalg.cholesky(_plus_identity(sums.curvature), name=PRECISION, smallest_pivot=0.0).factor
        half = linalg.solve_lower(L, (sums.gradient - self.q.mean)[:, None])
        return Direction(_plus_identity(sums.precision), linalg.solve_lower_transposed(L, half)[:, 0])

    def stepped(self, direction: Direction, step: float) -> "NoiseProcess":
        """A part of the full step: positive definite for 0 < step <= 1."""
        L = self.q.LB.factor
        precision = linalg.symmetric((1.0 - step) * L @ L.mT + step * direction.precision)
        LB = linalg.cholesky(precision, name=PRECISION, smallest_pivot=0.0)
        return self.with_q(InducingPosterior(self.q.mean + step * direction.mean_change, LB))

    def features(self, X: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Chunk by chunk, its place and its whitened features W."""
        with torch.no_grad():
            for start in range(0, X.shape[0], CHUNK_ROWS):
                part = slice(start, start + CHUNK_ROWS)
                yield part, self.prior.features(X[part])


def _plus_identity(A: Tensor, scale: float = 1.0) -> Tensor:
    full = scale * A
    full.diagonal().add_(1.0)
    return full


def natural_step(q: InducingPosterior, target: tuple[Tensor, Tensor], step: float) -> InducingPosterior:
    """(P, P m) <- (1 - step) (P, P m) + step target."""
    L = q.LB.factor
    precision, shift = L @ L.mT, L @ (L.mT @ q.mean)
    precision = (1.0 - step) * precision + step * target[0]
    shift = (1.0 - step) * shift + step * target[1]
    LB = linalg.cholesky(linalg.symmetric(precision), name=PRECISION, smallest_pivot=0.0)
    half = linalg.solve_lower(LB.factor, shift[:, None])
    return InducingPosterior(linalg.solve_lower_transposed(LB.factor, half)[:, 0], LB)
