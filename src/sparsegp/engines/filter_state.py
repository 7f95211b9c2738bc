"""The state of recursive inference: exact statistics, and moments that may be carried along with them."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.engines.row_map import RowMap, WhitenedRow
from sparsegp.posterior import InducingPosterior, log_evidence
from sparsegp.prior import SparsePrior
from sparsegp.statistics import BlockStatistics


@dataclass(frozen=True)
class Moments:
    """q(v) = N(mean, root root^T), log det of its precision, and how many rows ago it was derived from statistics."""

    mean: Tensor
    root: Tensor
    precision_logdet: float
    age: int


@dataclass(frozen=True)
class FilterState:
    """The prior, the exact statistics of the rows held, and moments carried forward for these statistics (or None).

    `summed` lacks precision a a^T and shift a t of the `pending` rows: these are summed up at once, when someone asks.
    """

    prior: SparsePrior
    summed: BlockStatistics
    row_map: RowMap
    moments: Moments | None = None
    pending: tuple[WhitenedRow, ...] = ()

    @cached_property
    def statistics(self) -> BlockStatistics:
        """The exact accumulators of all rows held."""
        if not self.pending:
            return self.summed
        old, A = self.summed, torch.from_numpy(np.stack([row.a for row in self.pending]))
        shift = old.shift + A.mT @ torch.tensor([row.target for row in self.pending], dtype=torch.float64)
        return replace(old, precision=old.precision + A.mT @ A, shift=shift)

    def holding(self, statistics: BlockStatistics, moments: Moments | None = None) -> "FilterState":
        """The state of other rows seen through the same prior."""
        return FilterState(self.prior, statistics, self.row_map, moments)

    @cached_property
    def q(self) -> InducingPosterior:
        """The posterior of v from the exact statistics, factored when first asked for."""
        return InducingPosterior.from_statistics(self.statistics)

    @cached_property
    def current(self) -> Moments:
        """The moments carried forward, or else derived from the statistics: root = LB^-T."""
        if self.moments is not None:
            return self.moments
        LB = self.q.LB
        return Moments(self.q.mean, linalg.inverse_lower(LB.factor).mT, float(LB.logdet), 0)

    @property
    def mean(self) -> Tensor:
        return self.q.mean if self.moments is None else self.moments.mean

    @property
    def covariance(self) -> Tensor:
        return self.current.root @ self.current.root.mT

    @property
    def precision_logdet(self) -> float:
        return float(self.q.LB.logdet) if self.moments is None else self.moments.precision_logdet

    @cached_property
    def log_evidence(self) -> float:
        """J of the rows held (M3), the sum of all psi_k."""
        return log_evidence(self.statistics, self.q)


@dataclass(frozen=True)
class StepInfo:
    """What one block told: psi = log N(r; 0, S) - a_k, and its innovation r against what the model expected.

    nis = r^T S^-1 r. `clipped_nis` bounds the part of each row, so that single outliers do not count as drift.
    `expected_nis` is n_rows, plus (at most) what the residual left out of V adds for the variational rows.
    """

    n_rows: int
    psi: float
    nis: float
    clipped_nis: float
    expected_nis: float
    form: str
    jitter: float
    seconds: float

    @property
    def z(self) -> float:
        """(nis - b)/sqrt(2 b): standard normal for large b when the model of y_k given the past is right."""
        return (self.nis - self.n_rows) / math.sqrt(2.0 * self.n_rows) if self.n_rows else 0.0


Step = tuple[FilterState, StepInfo]


def init(prior: SparsePrior) -> FilterState:
    """The state before any row: the prior."""
    return resume(prior, BlockStatistics.zero(prior))


def resume(prior: SparsePrior, statistics: BlockStatistics) -> FilterState:
    """The state of rows that were summed up elsewhere."""
    return FilterState(prior, statistics, RowMap.of(prior))
