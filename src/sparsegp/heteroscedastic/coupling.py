"""What any row of the table says about the noise of each training row: R_i dJ/dR_i, with f eliminated.

For every row of the table lambda_i = R_i dJ/dR_i + weight_i/2 is half the expected squared error over the noise,
E(y_i - f_i)^2 / (2 R_i), or a sum of squares like it: never negative (docs/derivations/heteroscedastic.md, H3).
"""

from functools import partial

import torch
from torch import Tensor

from sparsegp import linalg, noise_model, parallel
from sparsegp.data import Block, Rows
from sparsegp.engines import batch
from sparsegp.heteroscedastic.noise_process import NoiseSlopes
from sparsegp.posterior import InducingPosterior
from sparsegp.prior import SparsePrior
from sparsegp.statistics import repeated_noise

SMALLEST_SHARE = 1e-3


def with_noise(rows: Rows, R: Tensor) -> Rows:
    """The same rows with noise variance R_i each."""
    return Rows(Block(rows.all.X, rows.all.y, R, rows.all.weight), rows.offsets)


def row_weights(block: Block) -> Tensor:
    return torch.ones_like(block.y) if block.weight is None else block.weight


def noise_slopes(prior: SparsePrior, q: InducingPosterior, rows: Rows) -> NoiseSlopes:
    """Of rows that carry their noise, at the posterior q of f's inducing values; in the order of the rows."""
    units = list(rows.units(prior.row.by_block))
    parts = batch.shared_out(units)
    found = parallel.run([partial(_slopes_of, prior, q, part) for part in parts])
    pairs: list[tuple[Tensor, Tensor]] = [(torch.empty(0), torch.empty(0))] * len(units)
    for k, part in enumerate(found):
        pairs[k :: len(parts)] = part
    slope, share = (torch.cat(column) for column in zip(*pairs, strict=True))
    lam = (slope + 0.5 * row_weights(rows.all)).clamp_min(0.0)
    return NoiseSlopes(slope, lam, share.clamp(SMALLEST_SHARE, 1.0))


def _slopes_of(prior: SparsePrior, q: InducingPosterior, blocks: list[Block]) -> list[tuple[Tensor, Tensor]]:
    """(R dJ/dR, the part of a change of R that f leaves) of each block."""
    of_block = _slopes_together if prior.row.by_block else _slopes_of_points
    with torch.no_grad():
        return [of_block(prior, q, block) for block in blocks]


def _slopes_of_points(prior: SparsePrior, q: InducingPosterior, block: Block) -> tuple[Tensor, Tensor]:
    """bar v = ( ((y - W m)^2 + w B^-1 w)/v - 1 )/(2 v), pulled back to the noise of each row."""
    W = prior.features(block.X)
    noise, d = prior.row_noise(block), prior.residual_diag(block.X, W)
    v = noise_model.point_variance(prior.row, d, noise)
    spread = linalg.row_squares(linalg.whiten_rows(W, q.LB.factor))
    second = (block.y - W @ q.mean).square() + spread
    _, noise_bar = noise_model.point_pullback(prior.row, d, noise, v, 0.5 * (second / v - 1.0) / v)
    return row_weights(block) * noise * noise_bar, noise * (1.0 - spread / v) / v


def _slopes_together(prior: SparsePrior, q: InducingPosterior, block: Block) -> tuple[Tensor, Tensor]:
    """bar V = V^-1 ( (e e^T + W B^-1 W^T) V^-1 - I )/2 of the block, pulled back to the noise of each row."""
    W = prior.features(block.X)
    noise, weight = repeated_noise(prior, block)
    D = prior.residual_block(block.X, W)
    V = noise_model.block_covariance(prior.row, D, noise, weight)
    V_inv = linalg.inverse_from_cholesky(linalg.cholesky(V, name="noise covariance of a block").factor)
    spread = linalg.whiten_rows(V_inv @ W, q.LB.factor)
    alpha = V_inv @ (block.y - W @ q.mean)
    minus_precision = linalg.symmetric_product(spread, spread).sub_(V_inv)
    share = noise * (minus_precision.square() @ noise)
    V_bar = minus_precision.addr_(alpha, alpha).mul_(0.5)
    _, noise_bar = noise_model.block_pullback(prior.row, D, noise, weight, V_inv, V_bar)
    if block.weight is not None:
        noise_bar = noise_bar / weight + noise_model.repeats_pullback(prior.row, D, noise, weight)[1]
    return prior.row_noise(block) * noise_bar, share
