"""q(u) and what it predicts: mean, variance and joint covariance of f at new inputs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from sparsegp import linalg, parallel
from sparsegp.core.approximations import TestConditional
from sparsegp.core.block import CHUNK_ROWS
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.core.trend import Trend

SMALLEST_VARIANCE = 1e-14
WIDER_THAN_PRIOR = 1e-12
ROOT_PAYS = 8


class LatentPosterior(Protocol):
    """The posterior of f. `labels` are the blocks of the inputs, for models that are local."""

    @property
    def trend(self) -> Trend | None:
        """What f has besides the kernel."""

    def mean(self, X: Tensor, labels: Tensor | None = None) -> Tensor:
        """Mean of f at each row of X, without the work that its variance takes."""

    def marginals(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at each row of X."""

    def joint(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and covariance matrix of f at the rows of X together."""


@dataclass(frozen=True)
class InducingPosterior:
    """q(v) = N(mean, B^-1) over the whitened inducing values v, with B = LB LB^T >= I."""

    mean: Tensor
    LB: linalg.Cholesky

    @classmethod
    def from_statistics(cls, statistics: BlockStatistics) -> "InducingPosterior":
        """B = I + sum W V^-1 W^T, mean = B^-1 sum W V^-1 y (M2)."""
        with parallel.single(len(statistics.shift)):  # a loaded model has the same digits
            shift = statistics.shift
            B = statistics.precision + torch.eye(len(shift), dtype=torch.float64, device=shift.device)
            # Relative to the mean diagonal an eigenvalue of 1 may be small: B >= I is safe by construction.
            LB = linalg.cholesky(B, name="posterior precision of the inducing values", smallest_pivot=0.0)
            c = linalg.solve_lower(LB.factor, shift[:, None])
            return cls(linalg.solve_lower_transposed(LB.factor, c)[:, 0], LB)

    @classmethod
    def from_moments(cls, prior: SparsePrior, mean: Tensor, covariance: Tensor) -> "InducingPosterior":
        """q(u) = N(mean, covariance), any Gaussian, in whitened coordinates. A trend has its part in u."""
        L = prior.root
        whitened = linalg.solve_lower(L, linalg.solve_lower(L, covariance).mT)
        S = linalg.cholesky(linalg.symmetric(whitened), name="covariance of q(u)")
        precision = linalg.inverse_from_cholesky(S.factor)
        return cls(linalg.solve_lower(L, mean[:, None])[:, 0], linalg.cholesky(precision, name="precision of q(u)"))

    def __reduce__(self) -> tuple[Any, ...]:
        """Half of the factor travels between processes."""
        return _unpacked, (self.mean, linalg.packed_lower(self.LB.factor), self.LB.jitter)

    @cached_property
    def inverse_root(self) -> linalg.InverseLower:
        """LB^-1: the variance of v^T h is the square of LB^-1 h."""
        with parallel.single(len(self.mean)):
            return linalg.InverseLower.of(self.LB.factor)

    @cached_property
    def covariance(self) -> Tensor:
        with parallel.single(len(self.mean)):
            return linalg.inverse_from_cholesky(self.LB.factor)


def _unpacked(mean: Tensor, factor: Tensor, jitter: float) -> InducingPosterior:
    return InducingPosterior(mean, linalg.Cholesky(linalg.unpacked_lower(factor), jitter))


def log_evidence(statistics: BlockStatistics, q: InducingPosterior) -> float:
    """The collapsed objective J of the row (M3)."""
    explained = float(statistics.shift @ q.mean)
    fit = statistics.n_rows * math.log(2.0 * math.pi) + statistics.noise_logdet + statistics.target_sq - explained
    return -0.5 * (fit + float(q.LB.logdet)) - statistics.penalty


@dataclass(frozen=True)
class SparsePosterior:
    """Posterior of f for the rows whose test conditional needs only u (all but PIC).

    A `transient` one, soon replaced by the next update, answers for few rows without preparing a root in O(M^3).
    """

    prior: SparsePrior
    q: InducingPosterior
    transient: bool = False

    @cached_property
    def _weights(self) -> Tensor:
        """a = L^-T mean: the predictive mean is k_*u a."""
        with parallel.single(len(self.q.mean)):
            return linalg.solve_lower_transposed(self.prior.root, self.q.mean[:, None])[:, 0]

    @cached_property
    def _root(self) -> tuple[Tensor, Tensor | None]:
        """F, s with (k_*u F) s (k_*u F)^T = k_*u (Kuu^-1 - Sigma~) k_u*; k_*u Sigma~ k_u* if f_* is a function of u.

        One product per row instead of two triangular solves. The signs s are None (all 1) unless q is wider than the
        prior in some direction, which a posterior from statistics never is: there I - B^-1 has eigenvalues in [0, 1).
        B and I are those of the inducing values alone, the leading part of B. The last columns of F are for what a
        trend adds, |L_22^-1 (b T(x) - L_21 L_11^-1 w)|^2 with L = LB: its broad prior takes part in no difference.
        """
        with parallel.single(len(self.q.mean)):
            return self._prepared_root()

    def _prepared_root(self) -> tuple[Tensor, Tensor | None]:
        inverse_L = linalg.inverse_lower(self.prior.root)
        if self._deterministic:
            return inverse_L.mT @ linalg.inverse_lower(self.q.LB.factor).mT, None
        M, LB = self.prior.n_inducing, self.q.LB.factor
        eye = torch.eye(M, dtype=torch.float64, device=LB.device)
        inverse_B = self.q.covariance if self.trend is None else linalg.inverse_from_cholesky(LB[:M, :M])
        root, values = linalg.signed_root(eye - inverse_B)
        if self.trend is not None:
            whole = linalg.inverse_lower(LB).mT
            whole[:M, :M] = root
            root = whole
        return inverse_L.mT @ root, values.sign() if values.min() < -WIDER_THAN_PRIOR else None

    @property
    def trend(self) -> Trend | None:
        return self.prior.trend

    @property
    def _deterministic(self) -> bool:
        return self.prior.approx.test is TestConditional.DETERMINISTIC

    @cached_property
    def _per_dtype(self) -> dict[torch.dtype, Tensor]:
        return {}

    def _root_and_weights(self, dtype: torch.dtype) -> Tensor:
        """Root and weights side by side: one product gives spread and mean."""
        if dtype not in self._per_dtype:
            self._per_dtype[dtype] = torch.cat([self._root[0], self._weights[:, None]], dim=1).to(dtype)
        return self._per_dtype[dtype]

    def mean(self, X: Tensor, labels: Tensor | None = None) -> Tensor:
        weights = self._weights.to(X.dtype)
        with torch.no_grad():
            if X.shape[0] <= CHUNK_ROWS:
                return self.prior.columns(X) @ weights
            mean = X.new_empty(len(X))

            def fill(rows: slice) -> None:
                mean[rows] = self.prior.columns(X[rows]) @ weights

            _each_chunk(len(X), fill)
        return mean

    def marginals(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            if X.shape[0] <= CHUNK_ROWS:
                return self._chunk(X)
            mean, var = X.new_empty(len(X)), X.new_empty(len(X))

            def fill(rows: slice) -> None:
                mean[rows], var[rows] = self._chunk(X[rows])

            _ = self._root_and_weights(X.dtype)  # before the threads ask for it
            _each_chunk(len(X), fill)
        return mean, var

    def _chunk(self, X: Tensor) -> tuple[Tensor, Tensor]:
        few = self.transient and ROOT_PAYS * X.shape[0] <= len(self.q.mean)
        return self._by_solves(X) if few else self._by_root(X)

    def _by_solves(self, X: Tensor) -> tuple[Tensor, Tensor]:
        X64 = X.to(torch.float64)
        W = self.prior.features(X64)
        var = linalg.row_squares(linalg.whiten_rows(W, self.q.LB.factor))
        if not self._deterministic:
            var = var + self.prior.residual_diag(X64, W)
        floor = SMALLEST_VARIANCE * self.prior.diagonal(X64)
        return (W @ self.q.mean).to(X.dtype), torch.maximum(var, floor).to(X.dtype)

    def _by_root(self, X: Tensor) -> tuple[Tensor, Tensor]:
        both = self.prior.columns(X) @ self._root_and_weights(X.dtype)
        spread, mean = both[:, :-1], both[:, -1]
        prior_var = self.prior.diagonal(X)
        if self._deterministic:
            return mean, torch.maximum(linalg.row_squares(spread), SMALLEST_VARIANCE * prior_var)
        own, signs = self.prior.of_kernel(spread), self._root[1]
        explained = linalg.row_squares(own) if signs is None else own.square() @ signs.to(X.dtype)
        var = prior_var - explained
        if self.trend is not None:
            var = var.clamp_min_(0.0) + linalg.row_squares(spread[:, own.shape[1] :])
        return mean, torch.maximum(var, SMALLEST_VARIANCE * prior_var)

    def joint(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """mean = w_*^T m, cov = V_* + w_*^T B^-1 w_* (M4)."""
        with torch.no_grad():
            X = X.to(torch.float64)
            W = self.prior.features(X)
            spread = linalg.whiten_rows(W, self.q.LB.factor)
            cov = spread @ spread.mT + self._test_residual(X, W)
        return W @ self.q.mean, linalg.symmetric(cov)

    def _test_residual(self, X: Tensor, W: Tensor) -> Tensor:
        test = self.prior.approx.test
        if test is TestConditional.DETERMINISTIC:
            return torch.zeros(X.shape[0], X.shape[0], dtype=X.dtype, device=X.device)
        if test is TestConditional.INDEPENDENT:
            return torch.diag(self.prior.residual_diag(X, W))
        return self.prior.residual_block(X, W)


def _each_chunk(n_rows: int, fill: Callable[[slice], None]) -> None:
    """Call `fill` for all rows, a chunk at a time, in threads side by side."""

    def fill_all(starts: Sequence[int]) -> None:
        with torch.no_grad():  # threads do not inherit that of the caller
            for start in starts:
                fill(slice(start, start + CHUNK_ROWS))

    parallel.run([partial(fill_all, starts) for starts in parallel.shared_out(range(0, n_rows, CHUNK_ROWS))])
