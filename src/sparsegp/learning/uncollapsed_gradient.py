"""Gradient of blocks' terms of the uncollapsed objective J(q) with q(v) held (derivations/anytime.md)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.data import Block
from sparsegp.learning.adjoint import BlockAdjoint, SharedAdjoint
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.objective import inducing_through_kernel, through_kernel
from sparsegp.posterior import InducingPosterior
from sparsegp.prior import SparsePrior
from sparsegp.statistics import BlockStatistics


@torch.no_grad()
def accumulate_gradient(
    hyper: Hyperparameters,
    prior: SparsePrior,
    q: InducingPosterior,
    blocks: Sequence[Block],
    parts: Sequence[BlockStatistics],
) -> None:
    """Leave the gradient of the blocks' terms of J(q), q(v) held, in the `.grad` of the hyper-parameters.

    `parts` are the statistics of the blocks under `prior`, the model of the present hyper-parameters.
    """
    hyper.clear_gradient()
    shared = SharedAdjoint.build(prior, q, linalg.inverse_lower(prior.Luu.factor), direct=False)
    together = sum(parts[1:], start=parts[0])
    adjoints = [through_kernel(hyper, prior, shared, block) for block in blocks]
    inducing_through_kernel(hyper, prior, _inducing_adjoint(prior, shared, q, together, adjoints))
    if hyper.log_noise_var.requires_grad and all(block.noise_var is None for block in blocks):
        noise_bar = _noise_adjoint(prior, q, together, adjoints)
        hyper.log_noise_var.grad = (noise_bar * prior.noise_var).to(hyper.log_noise_var)


def _inducing_adjoint(
    prior: SparsePrior,
    shared: SharedAdjoint,
    q: InducingPosterior,
    together: BlockStatistics,
    adjoints: Sequence[BlockAdjoint],
) -> Tensor:
    """bar Kuu of W = K L^-T at fixed q: -L^-T (P + P^T) L^-1/2, P the lower triangle of bar W^T W, diagonal halved.

    W^T bar W = (sum W^T V^-1 y - F m) m^T - F S - 2 sum W^T bar D W with F = sum W^T V^-1 W; symmetric at q*.
    """
    F = together.precision
    grams = [adjoint.residual_gram for adjoint in adjoints if adjoint.residual_gram is not None]
    # without residual bar D = -rho/(2 noise)
    residual_gram = torch.stack(grams).sum(0) if grams else -0.5 * prior.row.penalty * F
    product = torch.outer(together.shift - F @ q.mean, q.mean) - F @ q.covariance - 2.0 * residual_gram
    inner = product.triu(1) + 0.5 * torch.diag(product.diagonal())
    return -0.5 * shared.inverse_L.mT @ (inner + inner.mT) @ shared.inverse_L


def _noise_adjoint(
    prior: SparsePrior, q: InducingPosterior, together: BlockStatistics, adjoints: Sequence[BlockAdjoint]
) -> Tensor:
    """Sum of bar noise; of rows without residual ((squared errors + tr(W S W^T))/noise - n)/2 + penalty, over noise."""
    given = [adjoint.noise.sum(dtype=torch.float64) for adjoint in adjoints if adjoint.noise is not None]
    if given:
        return torch.stack(given).sum()
    F, m = together.precision, q.mean
    squared_error = together.target_sq - 2.0 * together.shift @ m + m @ F @ m + (F * q.covariance).sum()
    return (0.5 * (squared_error - together.n_rows) + together.penalty) / prior.noise_var
