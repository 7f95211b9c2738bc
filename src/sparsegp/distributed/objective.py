"""The collapsed objective with its rows on workers: two rounds an evaluation, M x M messages only."""

from dataclasses import dataclass

import torch

from sparsegp import linalg
from sparsegp.approximations import Approximation
from sparsegp.data import Block
from sparsegp.distributed.messages import Model
from sparsegp.distributed.rows import DistributedRows
from sparsegp.learning import direct
from sparsegp.learning.adjoint import SharedAdjoint
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.objective import close_gradient
from sparsegp.posterior import InducingPosterior, log_evidence
from sparsegp.prior import SparsePrior


@dataclass
class DaskObjective:
    """`CollapsedObjective` on distributed rows: value and gradient are the same sums. `jitter` is as there."""

    rows: DistributedRows
    row: Approximation
    jitter: float = 0.0

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    @torch.no_grad()
    def value(self, hyper: Hyperparameters) -> float:
        statistics = self.rows.statistics(Model(hyper, self.row, self.jitter, False))
        return log_evidence(statistics, InducingPosterior.from_statistics(statistics))

    @torch.no_grad()
    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        hyper.clear_gradient()
        prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, self.row, self.jitter)
        self.jitter = prior.Luu.jitter
        inverse_L = linalg.inverse_lower(prior.Luu.factor)
        is_direct = direct.is_safe(prior, inverse_L, self._stand_in())
        model = Model(hyper, self.row, self.jitter, is_direct)
        statistics = self.rows.statistics(model)
        q = InducingPosterior.from_statistics(statistics)
        shared = SharedAdjoint.build(prior, q, inverse_L, direct=is_direct)
        totals = self.rows.adjoint_totals(model, q, hyper)
        learns_noise = hyper.log_noise_var.requires_grad and self.rows.least_noise_var is None
        close_gradient(hyper, prior, shared, statistics, q, totals, learns_noise=learns_noise)
        return log_evidence(statistics, q)

    def _stand_in(self) -> Block:
        """One row with the weight of all of them and the least noise: what decides whether whitening can wait."""
        X = torch.zeros(1, self.rows.n_features, dtype=self.rows.dtype)
        noise = self.rows.least_noise_var
        weight = X.new_tensor([self.rows.total_weight])
        return Block(X, X.new_zeros(1), None if noise is None else X.new_tensor([noise]), weight)
