"""The collapsed objective over groups of rows that are read as they are needed: two passes an evaluation."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch

from sparsegp import linalg, parallel
from sparsegp.approximations import Approximation
from sparsegp.data import Block, Rows
from sparsegp.engines import batch, streamed
from sparsegp.learning import direct
from sparsegp.learning.adjoint import SharedAdjoint
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.objective import AdjointTotals, close_gradient, push_adjoints
from sparsegp.posterior import InducingPosterior, log_evidence
from sparsegp.prior import SparsePrior
from sparsegp.statistics import BlockStatistics


@dataclass
class StreamedObjective:
    """`CollapsedObjective` over re-iterable groups of rows: value and gradient are the same sums.

    `n_rows` and `total_weight` count the rows without and with their weights. `least_noise_var` is the smallest known
    noise variance in the model's units, None where the noise is the model's own. `jitter` is as there.
    """

    groups: Iterable[Rows]
    row: Approximation
    n_rows: int
    total_weight: float
    least_noise_var: float | None = None
    jitter: float = 0.0

    @torch.no_grad()
    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        hyper.clear_gradient()
        prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, self.row, self.jitter)
        self.jitter = prior.Luu.jitter
        inverse_L = linalg.inverse_lower(prior.Luu.factor)
        is_direct = direct.is_safe(prior, inverse_L, self._stand_in(prior))
        statistics = self._direct_statistics(prior) if is_direct else streamed.statistics_of(prior, self.groups)
        q = InducingPosterior.from_statistics(statistics)
        self._second_pass(hyper, prior, statistics, q, SharedAdjoint.build(prior, q, inverse_L, direct=is_direct))
        return log_evidence(statistics, q)

    def _stand_in(self, prior: SparsePrior) -> Block:
        """One row with the weight of all of them and the least noise: what decides whether whitening can wait."""
        X = prior.inducing[:1]
        noise = None if self.least_noise_var is None else X.new_tensor([self.least_noise_var])
        return Block(X, X.new_zeros(1), noise, X.new_tensor([self.total_weight]))

    def _direct_statistics(self, prior: SparsePrior) -> BlockStatistics:
        return sum((direct.statistics_of(prior, rows) for rows in self.groups), start=BlockStatistics.zero(prior))

    def _second_pass(
        self,
        hyper: Hyperparameters,
        prior: SparsePrior,
        statistics: BlockStatistics,
        q: InducingPosterior,
        shared: SharedAdjoint,
    ) -> None:
        # Every thread has its own copy of the parameters, because gradients are accumulated in them.
        copies = [hyper, *(copy.deepcopy(hyper) for _ in range(parallel.available() - 1))]
        totals = _no_totals(prior)
        for rows in self.groups:
            streamed.require_blocks(prior, rows)
            parts = batch.shared_out(list(rows.units(self.row.by_block)))
            shares = zip(copies[: len(parts)], parts, strict=True)
            totals = sum(
                parallel.run([partial(push_adjoints, own, prior, shared, part) for own, part in shares]), start=totals
            )
        hyper.add_gradients(copies[1:])
        learns_noise = hyper.log_noise_var.requires_grad and self.least_noise_var is None
        close_gradient(hyper, prior, shared, statistics, q, totals, learns_noise=learns_noise)


def _no_totals(prior: SparsePrior) -> AdjointTotals:
    gram = torch.zeros_like(prior.Luu.factor) if prior.row.keeps_residual else None
    return AdjointTotals(torch.zeros((), dtype=torch.float64), gram)
