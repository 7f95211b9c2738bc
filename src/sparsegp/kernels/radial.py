"""Covariances of r^2 = sum_d (x_d - z_d)^2 / l_d^2: one gemm forward, thin gemms backward.

No array larger than n x m is formed in either direction; elementwise work goes in tiles of rows that stay in
the processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

FARTHEST = {torch.float64: 1e100, torch.float32: 1e15}
NEGLIGIBLE = {torch.float64: 1e-24, torch.float32: 1e-12}
TILE_ENTRIES = 2**18


@dataclass(frozen=True)
class Profile:
    """A covariance K as a function of s^2 = steepness * r^2.

    `fill(s2, base, log_variance)` overwrites s2 by K and base (unless None) such that dK/ds^2 = slope * base.
    With `refine`, the s^2 of close rows come from direct differences.
    """

    fill: Callable[[Tensor, Tensor | None, Tensor], None]
    steepness: float
    slope: float
    refine: bool = False


def covariance(profile: Profile, X: Tensor, Z: Tensor, lengthscales: Tensor, log_variance: Tensor) -> Tensor:
    """K = variance * profile(r^2), with lengthscales of one entry per column of X."""
    scales = lengthscales / profile.steepness**0.5
    if not torch.is_grad_enabled():
        return _profile_matrix(profile, X is Z, *_distance_factors(X, Z, scales, 1.0), log_variance, None)
    return cast(Tensor, _Covariance.apply(profile, X is Z, X, Z, scales, log_variance))  # type: ignore[no-untyped-call]


def squared_exponential(X: Tensor, Z: Tensor, lengthscales: Tensor, log_variance: Tensor) -> Tensor:
    """K = variance * exp(-r^2 / 2)."""
    if not torch.is_grad_enabled():
        return _exponential_matrix(X is Z, *_distance_factors(X, Z, lengthscales, -0.5), log_variance)
    K = _SquaredExponential.apply(X is Z, X, Z, lengthscales, log_variance)  # type: ignore[no-untyped-call]
    return cast(Tensor, K)


@dataclass(frozen=True)
class KernelColumns:
    """X -> k(X, Z) for one Z, whose side of the distances is computed once; values only. No profile: SE."""

    profile: Profile | None
    dims: list[int] | None
    center: Tensor
    scales: Tensor
    right: Tensor
    log_variance: Tensor
    negligible: float

    @classmethod
    def build(
        cls,
        profile: Profile | None,
        dims: list[int] | None,
        Z: Tensor,
        lengthscales: Tensor,
        log_variance: Tensor,
    ) -> KernelColumns:
        """From the active columns of Z."""
        with torch.no_grad():
            scales = lengthscales if profile is None else lengthscales / profile.steepness**0.5
            center = Z.mean(0)
            right = _right_factor(Z, center, scales, -0.5 if profile is None else 1.0)
            if profile is None:
                right[:, -1] += log_variance
            return cls(profile, dims, center, scales, right, log_variance.detach(), _negligible(Z.dtype, log_variance))

    def __call__(self, X: Tensor) -> Tensor:
        rows = X if self.dims is None else X[:, self.dims]
        if self.profile is None:
            exponent = _left_factor(rows, self.center, self.scales) @ self.right.T
            return torch.threshold_(exponent.exp_(), self.negligible, 0.0)
        left = _left_factor(rows, self.center, self.scales)
        return _profile_matrix(self.profile, False, left, self.right, self.log_variance, None)


def squared_distance(X: Tensor, Z: Tensor, lengthscales: Tensor) -> Tensor:
    """r^2 >= 0 for every pair of rows."""
    return cast(Tensor, _SquaredDistance.apply(X is Z, X, Z, lengthscales))  # type: ignore[no-untyped-call]


class _SquaredExponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, same: bool, X: Tensor, Z: Tensor, lengthscales: Tensor, log_variance: Tensor) -> Tensor:
        left, right = _distance_factors(X, Z, lengthscales, -0.5)
        K = _exponential_matrix(same, left, right, log_variance)
        ctx.save_for_backward(left, right, lengthscales, K)
        return K

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dK: Tensor) -> tuple[Tensor | None, ...]:
        left, right, lengthscales, K = ctx.saved_tensors
        A, B = _scaled_rows(left, right, -0.5)
        *gradients, total = _distance_gradients(dK, K, A, B, lengthscales, -0.5, ctx.needs_input_grad[1:4])
        return None, *gradients, _dot(dK, K) if total is None else total


class _Covariance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, profile: Profile, same: bool, X: Tensor, Z: Tensor, scales: Tensor, log_variance: Tensor
    ) -> Tensor:
        left, right = _distance_factors(X, Z, scales, 1.0)
        base = left.new_empty(len(left), len(right))
        K = _profile_matrix(profile, same, left, right, log_variance, base)
        ctx.profile = profile
        ctx.save_for_backward(left, right, scales, K, base)
        return K

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dK: Tensor) -> tuple[Tensor | None, ...]:
        left, right, scales, K, base = ctx.saved_tensors
        A, B = _scaled_rows(left, right, 1.0)
        slope, needs, needs_variance = ctx.profile.slope, ctx.needs_input_grad[2:5], ctx.needs_input_grad[5]
        *gradients, _ = _distance_gradients(dK, base, A, B, scales, slope, needs)
        return None, None, *gradients, _dot(dK, K) if needs_variance else None


class _SquaredDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, same: bool, X: Tensor, Z: Tensor, lengthscales: Tensor) -> Tensor:
        left, right = _distance_factors(X, Z, lengthscales, 1.0)
        ctx.save_for_backward(left, right, lengthscales)
        r2 = left.new_empty(len(left), len(right))
        return _squared_distances(left, right, slice(0, len(left)), same, out=r2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dR: Tensor) -> tuple[Tensor | None, ...]:
        left, right, lengthscales = ctx.saved_tensors
        A, B = _scaled_rows(left, right, 1.0)
        *gradients, _ = _distance_gradients(dR, None, A, B, lengthscales, 1.0, ctx.needs_input_grad[1:4])
        return None, *gradients


def _distance_factors(X: Tensor, Z: Tensor, scales: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """[a, |a|^2, 1] and [-2f b, f, f|b|^2]: left right^T = f |a_i - b_j|^2, with a = x / scales, b = z / scales."""
    # Distances do not see a common shift; centred rows lose fewest digits in |a|^2 + |b|^2 - 2ab.
    center = Z.mean(0)
    return _left_factor(X, center, scales), _right_factor(Z, center, scales, factor)


def _left_factor(X: Tensor, center: Tensor, scales: Tensor) -> Tensor:
    A = _within_reach((X - center).div_(scales))
    norms = A.square().sum(1, keepdim=True)
    return torch.cat([A, norms, torch.ones_like(norms)], dim=1)


def _right_factor(Z: Tensor, center: Tensor, scales: Tensor, factor: float) -> Tensor:
    B = _within_reach((Z - center).div_(scales))
    norms = B.square().sum(1, keepdim=True).mul_(factor)
    return torch.cat([B.mul_(-2.0 * factor), torch.full_like(norms, factor), norms], dim=1)


def _within_reach(rows: Tensor) -> Tensor:
    """Rows so far away that their squares would overflow are as far as can be: no covariance is NaN."""
    farthest = FARTHEST[rows.dtype]
    return rows.clamp_(-farthest, farthest)


def _scaled_rows(left: Tensor, right: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """a and b, back from the distance factors."""
    return left[:, :-2], right[:, :-2] / (-2.0 * factor)


def _exponential_matrix(same: bool, left: Tensor, right: Tensor, log_variance: Tensor) -> Tensor:
    """v exp(-|a_i - b_j|^2 / 2) by one gemm and one pass."""
    right[:, -1].add_(log_variance)
    K = left @ right.T
    if same:
        K.diagonal().copy_(log_variance)
    return exponential_(K, log_variance)


def exponential_(exponent: Tensor, log_variance: Tensor) -> Tensor:
    """exp in place; what is below NEGLIGIBLE times the variance becomes zero.

    Far points would fill later products with denormal numbers, which processors multiply ten times slower.
    """
    return torch.threshold_(exponent.exp_(), _negligible(exponent.dtype, log_variance), 0.0)


def _negligible(dtype: torch.dtype, log_variance: Tensor) -> float:
    return NEGLIGIBLE[dtype] * math.exp(float(log_variance.detach()))


def _profile_matrix(
    profile: Profile, same: bool, left: Tensor, right: Tensor, log_variance: Tensor, base: Tensor | None
) -> Tensor:
    """K, and base where a buffer for it is given."""
    K = left.new_empty(len(left), len(right))
    for rows in _row_tiles(K):
        s2 = _squared_distances(left, right, rows, same, out=K[rows])
        if profile.refine:
            _refine(s2, *_scaled_rows(left[rows], right, 1.0))
        profile.fill(s2, None if base is None else base[rows], log_variance)
    return K


def _squared_distances(left: Tensor, right: Tensor, rows: slice, same: bool, out: Tensor) -> Tensor:
    """|a_i - b_j|^2 of some rows i: never negative, and zero for a row with itself."""
    torch.mm(left[rows], right.T, out=out)
    if same:
        out.diagonal(rows.start).zero_()
    return out.clamp_(min=0.0)


def _refine(s2: Tensor, A: Tensor, B: Tensor) -> None:
    """Small s^2 from direct differences: of coincident rows the gemm leaves s^2 = eps |a|^2, s = 1e-8 |a|."""
    size = A.square().sum(1).amax() + B.square().sum(1).amax()
    i, j = (s2 < size * torch.finfo(s2.dtype).eps ** 0.5).nonzero(as_tuple=True)
    if len(i):
        exact = s2.new_zeros(len(i))
        for a, b in zip(A.T, B.T, strict=True):
            exact += (a[i] - b[j]).square_()
        s2[i, j] = exact


def _row_tiles(K: Tensor) -> Iterator[slice]:
    """Slices of rows with about TILE_ENTRIES entries each; all rows at once off the CPU."""
    n, m = K.shape
    size = max(16, TILE_ENTRIES // max(m, 1)) if K.device.type == "cpu" else max(n, 1)
    return (slice(start, min(start + size, n)) for start in range(0, n if m else 0, size))


def _dot(dK: Tensor, K: Tensor) -> Tensor:
    return torch.dot(dK.reshape(-1), K.reshape(-1))


def _distance_gradients(
    dK: Tensor,
    base: Tensor | None,
    A: Tensor,
    B: Tensor,
    lengthscales: Tensor,
    slope: float,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients for X, Z and lengthscales, and the sum of W (None where it does not fall out).

    Here a = x / l, b = z / l and dL / d|a - b|^2 = slope * W with W = dK * base.
    """
    needs_X, needs_Z, needs_l = needs
    by_row = needs_X or (needs_l and not needs_Z)
    right = _moment_columns(B, needs_l and not needs_Z) if by_row else None
    left = _moment_columns(A, needs_l) if needs_Z else None
    row_moments, column_moments = _weighted_moments(dK, base, left, right)
    dA, row_spread, row_total = _differences(row_moments, A)
    dB, column_spread, column_total = _differences(column_moments, B)
    spread = column_spread if needs_Z else row_spread
    scale = 2.0 * slope / lengthscales
    return (
        dA * scale if needs_X and dA is not None else None,
        dB * scale if dB is not None else None,
        -spread * scale if needs_l and spread is not None else None,
        column_total if needs_Z else row_total,
    )


def _moment_columns(T: Tensor, with_squares: bool) -> Tensor:
    return torch.cat([T, T.new_ones(len(T), 1)] + ([T.square()] if with_squares else []), dim=1)


def _weighted_moments(
    dK: Tensor, base: Tensor | None, left: Tensor | None, right: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """W right and W^T left for W = dK * base (dK alone if base is None), tile by tile."""
    row_moments = None if right is None else right.new_empty(dK.shape[0], right.shape[1])
    # Transposed, because left^T W runs on all threads and W^T left does not.
    column_moments = None if left is None else left.new_zeros(left.shape[1], dK.shape[1])
    if left is None and right is None:
        return None, None
    for rows in _row_tiles(dK):
        W = dK[rows] if base is None else dK[rows] * base[rows]
        if row_moments is not None and right is not None:
            torch.mm(W, right, out=row_moments[rows])
        if column_moments is not None and left is not None:
            column_moments.addmm_(left[rows].T, W)
    return row_moments, None if column_moments is None else column_moments.T


def _differences(moments: Tensor | None, own: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """sum_j W_ij (a_i - b_j) for each own row i, sum_ij W_ij (a_i - b_j)^2 for each feature, sum_ij W_ij."""
    if moments is None:
        return None, None, None
    n_features = own.shape[1]
    first, total = moments[:, :n_features], moments[:, n_features : n_features + 1]
    squares = moments[:, n_features + 1 :]
    difference = total * own - first
    spread = (squares + own * (difference - first)).sum(0) if squares.shape[1] else None
    return difference, spread, total.sum()


def _fill_matern12(s2: Tensor, base: Tensor | None, log_variance: Tensor) -> None:
    s = torch.sqrt(s2, out=base)
    K = exponential_(torch.sub(log_variance, s, out=s2), log_variance)  # v exp(-s)
    if base is not None:
        # dK/ds^2 = -K / (2 s) has no limit at s = 0; zero is the mean of the one-sided derivatives in x.
        coincident = s == 0
        torch.div(K, s, out=base).masked_fill_(coincident, 0.0)


def _fill_matern32(s2: Tensor, base: Tensor | None, log_variance: Tensor) -> None:
    s = s2.sqrt_()
    decay = exponential_(torch.sub(log_variance, s, out=base), log_variance)  # v exp(-s)
    torch.addcmul(decay, s, decay, out=s)  # v (1 + s) exp(-s)


def _fill_matern52(s2: Tensor, base: Tensor | None, log_variance: Tensor) -> None:
    s = torch.sqrt(s2, out=base)
    decay = exponential_(torch.sub(log_variance, s), log_variance)  # v exp(-s)
    slope_base = torch.addcmul(decay, s, decay, out=s)  # v (1 + s) exp(-s)
    torch.addcmul(slope_base, s2, decay, value=1.0 / 3.0, out=s2)  # v (1 + s + s^2 / 3) exp(-s)


MATERN12 = Profile(_fill_matern12, steepness=1.0, slope=-0.5, refine=True)
MATERN32 = Profile(_fill_matern32, steepness=3.0, slope=-0.5)
MATERN52 = Profile(_fill_matern52, steepness=5.0, slope=-1.0 / 6.0)
