"""The noise process: log noise variance g = mu0 + GP, with its own sparse posterior q(g_u) (001 eqs. 2, 6, 11).

It does not know which approximation models f: it takes in how much the objective of f gains when the noise of a row
grows, and gives out the noise of each row. Whitened: g_u = mu0 + L v, q(v) = N(m, P^-1).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsegp import approximations, linalg
from sparsegp.data import CHUNK_ROWS
from sparsegp.heteroscedastic.noise_limits import limited, reaction
from sparsegp.kernels import Kernel
from sparsegp.posterior import InducingPosterior
from sparsegp.prior import SparsePrior

SMALLEST_VARIANCE = 1e-14
PRECISION = "posterior precision of the inducing values"


@dataclass(frozen=True)
class NoiseMoments:
    """Mean and variance of g at rows, and the noise R = exp(mean - var/2) of the bound, kept inside the limits.

    `reaction` is d log R / d mean: 1, and less the closer R is to a limit.
    """

    mean: Tensor
    var: Tensor
    R: Tensor
    reaction: Tensor


@dataclass(frozen=True)
class NoiseSlopes:
    """What f says about the noise: slope_i = R_i dJ/dR_i, and lambda_i = slope_i + weight_i/2 >= 0 (001 eq. 10).

    `share` in (0, 1] is how much of a change of the noise f does not absorb: with S = Cov(y), R_i [S^-1]_ii for rows of
    the table by points, and R_i sum_j [S^-1]_ij^2 R_j, which is smaller, within a block (derivations: H4).
    """

    slope: Tensor
    lam: Tensor
    share: Tensor


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
        mean = torch.empty(X.shape[0], dtype=torch.float64)
        var = torch.empty_like(mean)
        for part, W in self.features(X):
            spread = linalg.whiten_rows(W, self.q.LB.factor)
            mean[part] = self.mean + W @ self.q.mean
            var[part] = self.prior.residual_diag(X[part], W) + linalg.row_squares(spread)
        var.clamp_min_(SMALLEST_VARIANCE)
        log_noise = mean - 0.5 * var
        return NoiseMoments(mean, var, limited(log_noise, self.limits).exp(), reaction(log_noise, self.limits))

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
        return _plus_identity(precision, scale), scale * shift

    def direction(self, X: Tensor, slopes: NoiseSlopes) -> Direction:
        """The natural step for P; for the mean a step with curvature share * lam instead of lam (derivations: H4)."""
        precision, curvature = torch.zeros_like(self.q.LB.factor), torch.zeros_like(self.q.LB.factor)
        gradient = -self.q.mean
        for part, W in self.features(X):
            lam, softened = slopes.lam[part], slopes.share[part] * slopes.lam[part]
            linalg.add_gram(precision, W * lam.sqrt()[:, None])
            linalg.add_gram(curvature, W * softened.sqrt()[:, None])
            gradient = gradient + W.mT @ slopes.slope[part]
        L = linalg.cholesky(_plus_identity(curvature), name=PRECISION, smallest_pivot=0.0).factor
        half = linalg.solve_lower(L, gradient[:, None])
        return Direction(_plus_identity(precision), linalg.solve_lower_transposed(L, half)[:, 0])

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


def _plus_identity(upper: Tensor, scale: float = 1.0) -> Tensor:
    """I + scale times the symmetric matrix with this upper triangle."""
    full = scale * linalg.mirror_upper(upper)
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
