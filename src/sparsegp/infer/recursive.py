"""Recursive inference (003 sec. 3.2): one block at a time, exact after every one, each row seen once.

The state carries the exact accumulators (block statistics). The information form only adds to them; the Kalman form
also carries mean and a square root of the covariance, cheaper when a block has far fewer rows than M. These moments
are derived anew from the accumulators about every M rows, so that rounding cannot build up.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.core.block import Block
from sparsegp.core.posterior import InducingPosterior, log_evidence
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics, WhitenedBlock, whiten_block
from sparsegp.errors import InputError
from sparsegp.infer.row_map import RowMap, WhitenedRow, plus_outer


@dataclass(frozen=True)
class StateMoments:
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
    moments: StateMoments | None = None
    pending: tuple[WhitenedRow, ...] = ()

    @cached_property
    def statistics(self) -> BlockStatistics:
        """The exact accumulators of all rows held."""
        if not self.pending:
            return self.summed
        old, A = self.summed, torch.from_numpy(np.stack([row.a for row in self.pending]))
        shift = old.shift + A.mT @ torch.tensor([row.target for row in self.pending], dtype=torch.float64)
        return replace(old, precision=old.precision + linalg.row_gram(A.mT), shift=shift)

    def holding(self, statistics: BlockStatistics, moments: StateMoments | None = None) -> "FilterState":
        """The state of other rows seen through the same prior."""
        return FilterState(self.prior, statistics, self.row_map, moments)

    @cached_property
    def q(self) -> InducingPosterior:
        """The posterior of v from the exact statistics, factored when first asked for."""
        return InducingPosterior.from_statistics(self.statistics)

    @cached_property
    def current(self) -> StateMoments:
        """The moments carried forward, or else derived from the statistics: root = LB^-T."""
        if self.moments is not None:
            return self.moments
        LB = self.q.LB
        return StateMoments(self.q.mean, linalg.inverse_lower(LB.factor).mT, float(LB.logdet), 0)

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
    """What one block contributed: psi = log N(r; 0, S) - a_k, and its innovation r against what the model expected.

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


FORMS = ("auto", "kalman", "information")
LOG_2PI = math.log(2.0 * math.pi)
KALMAN_PAYS = 4
"""The Kalman form is chosen when this many times the rows of a block do not exceed M."""
FEWEST_ROWS_BETWEEN_REFRESHES = 64
OUTLIER_SQ = 16.0
"""In `clipped_nis` a row counts at most this many times what the model expects of it."""


def step(state: FilterState, block: Block, form: str = "auto") -> Step:
    """Add a block. Memory O(b M): where rows are independent given u, cut long blocks into chunks first.

    `form`: "kalman" costs O(b M^2 + b^2 M), "information" O(b M^2 + M^3), "auto" takes the cheaper one.
    """
    if form not in FORMS:
        raise InputError(f"form must be one of {', '.join(map(repr, FORMS))}; got {form!r}.")
    started = time.perf_counter()
    if len(block) == 0:
        return state, StepInfo(0, 0.0, 0.0, 0.0, 0.0, form, state.prior.Luu.jitter, 0.0)
    if form == "auto":
        form = "kalman" if KALMAN_PAYS * len(block) <= state.prior.n_features else "information"
    if form == "kalman" and _is_single_point(state, block):
        new, info = _add_row(state, block, started)
    else:
        with torch.no_grad():
            new, info = _UPDATES[form](state, whiten_block(state.prior, block), started)
    if not math.isfinite(info.psi):
        raise InputError(
            f"A block of {len(block)} rows gives a log density of {info.psi}: its inputs, targets or noise variances "
            "are not finite, or so large that they overflow. The state is unchanged: check those rows."
        )
    return new, info


def _is_single_point(state: FilterState, block: Block) -> bool:
    X = block.X
    return X.shape[0] == 1 and state.row_map.applies and block.weight is None and X.dtype == torch.float64


def _information(state: FilterState, part: WhitenedBlock, started: float) -> Step:
    """B <- B + A^T A (003 eq. 17). With e = t - A m before and e' after the step, S^-1 e = e'."""
    precision = state.statistics.precision.clone()
    linalg.add_gram(precision, part.A)
    new = state.holding(_added(state.statistics, part, linalg.mirror_upper_(precision)))
    before, after = (part.target - part.A @ mean.to(part.A.dtype) for mean in (state.mean, new.q.mean))
    S_logdet = float(new.q.LB.logdet) - state.precision_logdet
    return new, _info(state, part, before * after, S_logdet, "information", new.q.LB.jitter, started)


def _kalman(state: FilterState, part: WhitenedBlock, started: float) -> Step:
    """Square-root form of 003 eq. 16: the root times I - Phi C^-T (C + I)^-1 Phi^T, C C^T = S = I + Phi^T Phi.

    The covariance root root^T is positive definite by construction, whatever the rounding.
    """
    A, target, old = part.A.to(torch.float64), part.target.to(torch.float64), state.current
    Phi = old.root.mT @ A.mT
    C = linalg.cholesky(_plus_identity(Phi.mT @ Phi), name="innovation covariance", smallest_pivot=0.0)
    innovation = target - A @ old.mean
    whitened = linalg.solve_lower(C.factor, innovation[:, None])
    solved = linalg.solve_lower_transposed(C.factor, whitened)[:, 0]
    spread = old.root @ Phi
    half = linalg.solve_lower(C.factor, spread.mT).mT
    root = old.root - half @ linalg.solve_lower(_plus_identity(C.factor), Phi.mT)
    S_logdet = float(C.logdet)
    moments = StateMoments(old.mean + spread @ solved, root, old.precision_logdet + S_logdet, old.age + len(target))
    precision = state.statistics.precision + linalg.row_gram(A.mT)
    new = state.holding(_added(state.statistics, part, precision), _while_fresh(moments))
    return new, _info(state, part, innovation * solved, S_logdet, "kalman", C.jitter, started)


_UPDATES: Mapping[str, Callable[[FilterState, WhitenedBlock, float], Step]] = {
    "information": _information,
    "kalman": _kalman,
}


def _plus_identity(A: Tensor) -> Tensor:
    return A + torch.eye(A.shape[0], dtype=A.dtype, device=A.device)


def _while_fresh(moments: StateMoments) -> StateMoments | None:
    """None asks for new moments from the accumulators: once in about M rows, a cost of O(M^2) a row."""
    return moments if moments.age < max(len(moments.mean), FEWEST_ROWS_BETWEEN_REFRESHES) else None


def _added(old: BlockStatistics, part: WhitenedBlock, precision: Tensor) -> BlockStatistics:
    shift = (part.A.mT @ part.target).to(torch.float64).add_(old.shift)
    return BlockStatistics(
        precision,
        shift,
        old.noise_logdet + part.noise_logdet,
        old.target_sq + float(part.target.square().sum(dtype=torch.float64)),
        old.penalty + part.penalty,
        old.n_rows + part.n_rows,
        old.fingerprint,
    )


def _info(
    state: FilterState, part: WhitenedBlock, squares: Tensor, S_logdet: float, form: str, jitter: float, started: float
) -> StepInfo:
    """psi = -(n log 2 pi + log|V| + log|S| + nis)/2 - a_k, with r and S in units of V^1/2."""
    squares = squares.to(torch.float64)
    n, nis = len(squares), float(squares.sum())
    expected = n + 2.0 * part.penalty
    psi = -0.5 * (part.n_rows * LOG_2PI + part.noise_logdet + S_logdet + nis) - part.penalty
    clipped = float(squares.clamp_max(OUTLIER_SQ * expected / n).sum())
    seconds = time.perf_counter() - started
    return StepInfo(n, psi, nis, clipped, expected, form, max(jitter, state.prior.Luu.jitter), seconds)


def _add_row(state: FilterState, block: Block, started: float) -> Step:
    """`_kalman` of a single row that is independent of the others given u, in as few operations as possible."""
    noise = None if block.noise_var is None else float(block.noise_var)
    row = state.row_map.whiten(block.X.numpy()[0], float(block.y), noise)
    old, a, v, penalty = state.moments or state.current, row.a, row.v, row.penalty
    mean, root = old.mean.numpy(), old.root.numpy()
    phi = a.dot(root)
    gain = root.dot(phi)
    S, innovation = 1.0 + float(phi.dot(phi)), row.target - float(a.dot(mean))
    logdet, S_logdet, nis = math.log(v), math.log(S), innovation * innovation / S
    moments = StateMoments(
        torch.from_numpy(mean + (innovation / S) * gain),
        torch.from_numpy(plus_outer(root, gain, phi, -1.0 / (S + math.sqrt(S)))),
        old.precision_logdet + S_logdet,
        old.age + 1,
    )
    new = FilterState(state.prior, _counted(state.summed, row, logdet), state.row_map, moments, (*state.pending, row))
    expected = 1.0 + 2.0 * penalty
    psi = -0.5 * (LOG_2PI + logdet + S_logdet + nis) - penalty
    clipped, jitter = min(nis, OUTLIER_SQ * expected), state.prior.Luu.jitter
    info = StepInfo(1, psi, nis, clipped, expected, "kalman", jitter, time.perf_counter() - started)
    return new if _while_fresh(moments) else state.holding(new.statistics), info


def _counted(old: BlockStatistics, row: WhitenedRow, noise_logdet: float) -> BlockStatistics:
    """With the scalars of one more row, whose matrix part is pending."""
    return BlockStatistics(
        old.precision,
        old.shift,
        old.noise_logdet + noise_logdet,
        old.target_sq + row.target * row.target,
        old.penalty + row.penalty,
        old.n_rows + 1.0,
        old.fingerprint,
    )
