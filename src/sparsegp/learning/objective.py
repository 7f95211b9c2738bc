"""Value and exact gradient of a row's objective in two chunked passes: O(N M^2) time, O(chunk x M) memory."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.approximations import Approximation
from sparsegp.data import Block, Rows
from sparsegp.learning.adjoint import BlockAdjoint, SharedAdjoint, block_adjoint, inducing_adjoint
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.posterior import InducingPosterior, log_evidence
from sparsegp.prior import SparsePrior
from sparsegp.statistics import BlockStatistics


class Objective(Protocol):
    """A function of the hyper-parameters that learning climbs."""

    @property
    def n_rows(self) -> int:
        """Rows behind one evaluation."""

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        """The value; its gradient is left in the `.grad` of the hyper-parameters."""


@dataclass
class CollapsedObjective:
    """The log evidence or bound J of `row` on `rows` (M3), the posterior of u eliminated.

    `jitter` is the largest relative jitter met so far; later evaluations use at least as much, so that the
    objective does not jump between evaluations of one optimisation.
    """

    rows: Rows
    row: Approximation
    jitter: float = 0.0

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    def prior(self, hyper: Hyperparameters) -> SparsePrior:
        prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, self.row, self.jitter)
        self.jitter = prior.Luu.jitter
        return prior

    def value(self, hyper: Hyperparameters) -> float:
        statistics = BlockStatistics.from_blocks(self.prior(hyper), self.rows.units(self.row.by_block))
        return log_evidence(statistics, InducingPosterior.from_statistics(statistics))

    @torch.no_grad()
    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        hyper.clear_gradient()
        prior = self.prior(hyper)
        statistics = BlockStatistics.from_blocks(prior, self.rows.units(self.row.by_block))
        q = InducingPosterior.from_statistics(statistics)
        self._second_pass(hyper, prior, statistics, q)
        return log_evidence(statistics, q)

    def _second_pass(
        self, hyper: Hyperparameters, prior: SparsePrior, statistics: BlockStatistics, q: InducingPosterior
    ) -> None:
        shared = SharedAdjoint.build(prior, q)
        noise_bar = torch.zeros((), dtype=torch.float64)
        residual_gram = torch.zeros_like(statistics.precision) if self.row.keeps_residual else None
        for block in self.rows.units(self.row.by_block):
            adjoint = _through_kernel(hyper, prior, shared, block)
            if residual_gram is not None and adjoint.residual_gram is not None:
                residual_gram += adjoint.residual_gram
            if adjoint.noise is not None:
                noise_bar += adjoint.noise.sum(dtype=torch.float64)
        if not self.row.keeps_residual:
            noise_bar = noise_adjoint(prior, statistics, q)
        Kuu_bar = inducing_adjoint(prior, shared, statistics.precision, residual_gram)
        _inducing_through_kernel(hyper, prior, Kuu_bar)
        if hyper.log_noise_var.requires_grad and self.rows.all.noise_var is None:
            hyper.log_noise_var.grad = (noise_bar * prior.noise_var).to(hyper.log_noise_var)


def _through_kernel(hyper: Hyperparameters, prior: SparsePrior, shared: SharedAdjoint, block: Block) -> BlockAdjoint:
    """Recompute the covariances of a block with a graph and push the adjoints through it into the parameters."""
    with torch.enable_grad():
        K = hyper.kernel(block.X, hyper.inducing.to(block.X.dtype))
        own = hyper.kernel(block.X) if prior.row.by_block else hyper.kernel.diagonal(block.X)
    adjoint = block_adjoint(prior, shared, block, K.detach(), own.detach())
    _backward(K, adjoint.K_ku)
    if adjoint.K_kk is not None:
        _backward(own, adjoint.K_kk.to(own.dtype))
    return adjoint


def _inducing_through_kernel(hyper: Hyperparameters, prior: SparsePrior, Kuu_bar: Tensor) -> None:
    with torch.enable_grad():
        Kuu = linalg.add_jitter(hyper.kernel(hyper.inducing), prior.Luu.jitter)
    _backward(Kuu, Kuu_bar)


def _backward(value: Tensor, adjoint: Tensor) -> None:
    if value.requires_grad:
        value.backward(adjoint)


def noise_adjoint(prior: SparsePrior, statistics: BlockStatistics, q: InducingPosterior) -> Tensor:
    """dJ/d(noise variance) of a row without residual, from its statistics alone.

    -n/2 + (sum of squared errors/noise + tr(I - B^-1))/2 + penalty, all divided by the noise variance.
    """
    squared_error = statistics.target_sq - 2.0 * statistics.shift @ q.mean + q.mean @ statistics.precision @ q.mean
    effective = len(q.mean) - q.covariance.diagonal().sum()
    return (0.5 * (squared_error + effective - statistics.n_rows) + statistics.penalty) / prior.noise_var
