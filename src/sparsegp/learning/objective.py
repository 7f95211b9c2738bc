"""Value and exact gradient of a row's objective in two chunked passes: O(N M^2) time, O(chunk x M) memory."""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from sparsegp import linalg, parallel
from sparsegp.approximations import Approximation
from sparsegp.data import Block, Rows
from sparsegp.engines import batch
from sparsegp.errors import InputError
from sparsegp.learning import direct
from sparsegp.learning.adjoint import BlockAdjoint, SharedAdjoint, block_adjoint, inducing_adjoint
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.posterior import InducingPosterior, log_evidence
from sparsegp.prior import SparsePrior
from sparsegp.pullback import push_back
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
        statistics = batch.statistics_of(self.prior(hyper), self.rows)
        return log_evidence(statistics, InducingPosterior.from_statistics(statistics))

    @torch.no_grad()
    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        hyper.clear_gradient()
        prior = self.prior(hyper)
        inverse_L = linalg.inverse_lower(prior.Luu.factor)
        is_direct = direct.is_safe(prior, inverse_L, self.rows.all)
        statistics = (direct.statistics_of if is_direct else batch.statistics_of)(prior, self.rows)
        q = InducingPosterior.from_statistics(statistics)
        self._second_pass(hyper, prior, statistics, q, SharedAdjoint.build(prior, q, inverse_L, direct=is_direct))
        return log_evidence(statistics, q)

    def _second_pass(
        self,
        hyper: Hyperparameters,
        prior: SparsePrior,
        statistics: BlockStatistics,
        q: InducingPosterior,
        shared: SharedAdjoint,
    ) -> None:
        totals = push_rows(hyper, prior, shared, self.rows)
        learns_noise = hyper.log_noise_var.requires_grad and self.rows.all.noise_var is None
        close_gradient(hyper, prior, shared, statistics, q, totals, learns_noise=learns_noise)


def require_rows(objective: Objective, optimizer: str) -> CollapsedObjective:
    """The objective of rows in memory, from which an optimiser can sample; an error for any other."""
    if isinstance(objective, CollapsedObjective):
        return objective
    raise InputError(
        f"optimizer={optimizer!r} learns from samples of the rows, which an exact model or a source of batches does "
        "not give; use optimizer='lbfgs'."
    )


@dataclass(frozen=True)
class AdjointTotals:
    """What the second pass adds up besides gradients: the noise adjoint and sum W^T bar D W (None: no residual)."""

    noise: Tensor
    residual_gram: Tensor | None

    def __add__(self, other: "AdjointTotals") -> "AdjointTotals":
        if self.residual_gram is None or other.residual_gram is None:
            return AdjointTotals(self.noise + other.noise, None)
        return AdjointTotals(self.noise + other.noise, self.residual_gram + other.residual_gram)


def push_rows(hyper: Hyperparameters, prior: SparsePrior, shared: SharedAdjoint, rows: Rows) -> AdjointTotals:
    """The second pass over some rows, shared out among threads; gradients are left in `hyper`."""
    parts = batch.shared_out(list(rows.units(prior.row.by_block)))
    # Every thread has its own copy of the parameters, because gradients are accumulated in them.
    copies = [hyper, *(copy.deepcopy(hyper) for _ in parts[1:])]
    sums = parallel.run(
        [partial(push_adjoints, own, prior, shared, part) for own, part in zip(copies, parts, strict=True)]
    )
    hyper.add_gradients(copies[1:])
    return sum(sums[1:], start=sums[0])


def close_gradient(
    hyper: Hyperparameters,
    prior: SparsePrior,
    shared: SharedAdjoint,
    statistics: BlockStatistics,
    q: InducingPosterior,
    totals: AdjointTotals,
    *,
    learns_noise: bool,
) -> None:
    """After the second pass over all rows: what flows through Kuu and the noise variance, added to the gradient."""
    Kuu_bar = inducing_adjoint(prior, shared, statistics.precision, totals.residual_gram)
    inducing_through_kernel(hyper, prior, Kuu_bar)
    if learns_noise:
        noise_bar = totals.noise if prior.row.keeps_residual else noise_adjoint(prior, statistics, q)
        hyper.log_noise_var.grad = (noise_bar * prior.noise_var).to(hyper.log_noise_var)


def push_adjoints(
    hyper: Hyperparameters, prior: SparsePrior, shared: SharedAdjoint, blocks: list[Block]
) -> AdjointTotals:
    """The second pass over some blocks; gradients are left in `hyper`."""
    noise_bar = torch.zeros((), dtype=torch.float64)
    residual_gram = torch.zeros_like(shared.inverse_B) if prior.row.keeps_residual else None
    with torch.no_grad():
        for block in blocks:
            adjoint = through_kernel(hyper, prior, shared, block)
            if residual_gram is not None and adjoint.residual_gram is not None:
                residual_gram += adjoint.residual_gram
            if adjoint.noise is not None:
                noise_bar += adjoint.noise.sum(dtype=torch.float64)
    return AdjointTotals(noise_bar, residual_gram)


def through_kernel(hyper: Hyperparameters, prior: SparsePrior, shared: SharedAdjoint, block: Block) -> BlockAdjoint:
    """Recompute the covariances of a block with a graph and push the adjoints through it into the parameters."""
    with torch.enable_grad():
        K = hyper.kernel(block.X, hyper.inducing.to(block.X.dtype))
        own = hyper.kernel(block.X) if prior.row.by_block else hyper.kernel.diagonal(block.X)
    adjoint = block_adjoint(prior, shared, block, K.detach(), own.detach())
    push_back(K, adjoint.K_ku)
    if adjoint.K_kk is not None:
        push_back(own, adjoint.K_kk.to(own.dtype))
    return adjoint


def inducing_through_kernel(hyper: Hyperparameters, prior: SparsePrior, Kuu_bar: Tensor) -> None:
    with torch.enable_grad():
        Kuu = linalg.add_jitter(hyper.kernel(hyper.inducing), prior.Luu.jitter)
    push_back(Kuu, Kuu_bar)


def noise_adjoint(prior: SparsePrior, statistics: BlockStatistics, q: InducingPosterior) -> Tensor:
    """dJ/d(noise variance) of a row without residual, from its statistics alone.

    -n/2 + (sum of squared errors/noise + tr(I - B^-1))/2 + penalty, all divided by the noise variance.
    """
    squared_error = statistics.target_sq - 2.0 * statistics.shift @ q.mean + q.mean @ statistics.precision @ q.mean
    effective = len(q.mean) - q.covariance.diagonal().sum()
    return (0.5 * (squared_error + effective - statistics.n_rows) + statistics.penalty) / prior.noise_var
