"""V_k = alpha * shape(D_k) + noise of a row (or a combination of rows), its regulariser a_k, and the adjoints of both.

"Point" functions take vectors (rows are independent given u), "block" functions take b x b matrices.
All expressions are regular at alpha = 0.
"""

from dataclasses import replace

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.core.approximations import Approximation, Component, Residual


def point_variance(approx: Approximation, d: Tensor, noise: Tensor) -> Tensor:
    """v_i with 1/v_i = sum_j a_j / (alpha_j d_i + noise_i)."""
    if len(approx.components) == 1:
        return torch.add(noise, d, alpha=approx.components[0].alpha)
    return torch.stack([c.weight / (c.alpha * d + noise) for c in approx.components]).sum(0).reciprocal()


def point_penalty(approx: Approximation, d: Tensor, noise: Tensor) -> Tensor:
    """a_i = rho/(2 alpha) log1p(alpha d_i/noise_i); rho d_i/(2 noise_i) at alpha = 0."""
    alpha = approx.components[0].alpha
    ratio = d / noise
    return 0.5 * approx.penalty * (ratio if alpha == 0.0 else torch.log1p(alpha * ratio) / alpha)


def point_pullback(approx: Approximation, d: Tensor, noise: Tensor, v: Tensor, v_bar: Tensor) -> tuple[Tensor, Tensor]:
    """(bar d, bar noise) of `-penalty + (what depends on v)` from bar v."""
    d_bar, noise_bar = torch.zeros_like(v), torch.zeros_like(v)
    for c in approx.components:
        slope = c.weight * (v / (c.alpha * d + noise)).square()
        d_bar += c.alpha * slope * v_bar
        noise_bar += slope * v_bar
    if approx.penalty:
        d_bar -= 0.5 * approx.penalty / v
        noise_bar += 0.5 * approx.penalty * d / (v * noise)
    return d_bar, noise_bar


def pullback_bound(approx: Approximation) -> float:
    """c with bar d >= -c/v for every row of `point_pullback`: (max_j alpha_j/a_j + rho)/2.

    bar v >= -1/(2v), and a_j v/v_j, which add up to 1, bound v/v_j by 1/a_j. With c the sum of bar d w w^T is a Gram
    matrix, half the work of a product, less c times the precision. Rows of a block have no such bound: 0.
    """
    if approx.by_block:
        return 0.0
    return 0.5 * (max(c.alpha / c.weight for c in approx.components) + approx.penalty)


def repeats_logdet(approx: Approximation, D: Tensor, noise: Tensor, weight: Tensor) -> Tensor:
    """What w_i repetitions of row i add to log det V of the block in which each row stands once with noise/w."""
    v = point_variance(_between_repeats(approx), D.diagonal(), noise * weight)
    return ((weight - 1.0) * v.log() + weight.log()).sum()


def repeats_pullback(approx: Approximation, D: Tensor, noise: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(bar diag D, bar of a repetition's noise) of -1/2 `repeats_logdet`."""
    approx, d, single = _between_repeats(approx), D.diagonal(), noise * weight
    v = point_variance(approx, d, single)
    return point_pullback(approx, d, single, v, -0.5 * (weight - 1.0) / v)


def _between_repeats(approx: Approximation) -> Approximation:
    """The row seen by differences between repetitions: these share their block residual, the rest is independent."""
    parts = tuple(
        Component(c.weight, Residual.NONE, 0.0) if c.residual is Residual.BLOCK else c for c in approx.components
    )
    return replace(approx, components=parts, penalty=0.0)


def _component_covariance(residual: Residual, alpha: float, D: Tensor, noise: Tensor, weight: Tensor | float) -> Tensor:
    """Independent residuals of w repetitions count like noise: their mean has 1/w of the variance."""
    if residual is Residual.BLOCK:
        V = alpha * D
        V.diagonal().add_(noise)
        return V
    return torch.diag(alpha * D.diagonal() / weight + noise)


def component_precisions(approx: Approximation, D: Tensor, noise: Tensor, weight: Tensor | float) -> list[Tensor]:
    """(alpha_j shape_j(D) + noise)^-1 of each component."""
    factors = [
        linalg.cholesky(
            _component_covariance(c.residual, c.alpha, D, noise, weight), name="noise covariance of a block"
        )
        for c in approx.components
    ]
    return [linalg.inverse_from_cholesky(f.factor) for f in factors]


def block_covariance(approx: Approximation, D: Tensor, noise: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    """V with V^-1 = sum_j a_j (alpha_j shape_j(D) + noise)^-1, each row standing for `weight` equal ones."""
    if len(approx.components) == 1:
        c = approx.components[0]
        return _component_covariance(c.residual, c.alpha, D, noise, weight)
    precisions = component_precisions(approx, D, noise, weight)
    total = torch.stack([c.weight * P for c, P in zip(approx.components, precisions, strict=True)]).sum(0)
    return linalg.inverse_from_cholesky(linalg.cholesky(total, name="combined block precision").factor)


def block_penalty(approx: Approximation, V_logdet: Tensor, D: Tensor, noise: Tensor) -> Tensor:
    """a_k = rho/(2 alpha) (log det V - log det noise); rho tr(D/noise)/2 at alpha = 0."""
    if not approx.penalty:
        return torch.zeros((), dtype=D.dtype)
    alpha = approx.components[0].alpha
    if alpha == 0.0:
        return 0.5 * approx.penalty * (D.diagonal() / noise).sum()
    return 0.5 * approx.penalty / alpha * (V_logdet - noise.log().sum())


def block_pullback(
    approx: Approximation, D: Tensor, noise: Tensor, weight: Tensor | float, V_inv: Tensor, V_bar: Tensor
) -> tuple[Tensor, Tensor]:
    """(bar D, bar noise) of `-penalty + (what depends on V)` from bar V."""
    if len(approx.components) > 1:
        return _combined_pullback(approx, D, noise, weight, V_bar)
    c = approx.components[0]
    D_bar = V_bar if c.alpha == 1.0 else c.alpha * V_bar
    if c.residual is not Residual.BLOCK:
        D_bar = torch.diag(D_bar.diagonal())
    noise_bar = V_bar.diagonal().clone()
    if approx.penalty:
        D_bar = D_bar - 0.5 * approx.penalty * V_inv
        # (V^-1 - noise^-1)/alpha = -noise^-1 D V^-1 stays finite as alpha -> 0
        noise_bar += 0.5 * approx.penalty * linalg.row_dots(D, V_inv) / noise
    return D_bar, noise_bar


def _combined_pullback(
    approx: Approximation, D: Tensor, noise: Tensor, weight: Tensor | float, V_bar: Tensor
) -> tuple[Tensor, Tensor]:
    """bar V_j = a_j V_j^-1 V bar V V V_j^-1."""
    V = block_covariance(approx, D, noise, weight)
    D_bar, noise_bar = torch.zeros_like(D), torch.zeros_like(noise)
    for c, precision in zip(approx.components, component_precisions(approx, D, noise, weight), strict=True):
        part = c.weight * precision @ V @ V_bar @ V @ precision
        noise_bar += part.diagonal()
        D_bar += c.alpha * (part if c.residual is Residual.BLOCK else torch.diag(part.diagonal() / weight))
    return D_bar, noise_bar
