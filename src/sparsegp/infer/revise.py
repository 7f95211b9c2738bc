"""Changing what a recursive state holds: exchange, forget, decay and merge, all by the algebra of statistics."""

import math
import time

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.core.block import Block
from sparsegp.core.statistics import BlockStatistics
from sparsegp.errors import FactorizationError, InputError
from sparsegp.infer.recursive import OUTLIER_SQ, FilterState, Step, StepInfo

HARMLESS = 1e-6
"""An eigenvalue of the precision above minus this is rounding: B = I + precision stays well away from singular."""
ROUNDING = 1e-10


def exchange(state: FilterState, old: Block, new: Block) -> Step:
    """Put the block `new`, rows that belong together, in the place of `old` (a block held, or empty).

    With `new` = `old` and more rows, psi = log p(y_new | all rows before): the joint density over that without them.
    """
    started = time.perf_counter()
    prior, grown = state.prior, len(new) - len(old)
    removed, added = (BlockStatistics.from_blocks(prior, [block] if len(block) else []) for block in (old, new))
    after = state.holding(state.statistics - removed + added)
    _require_possible(state.statistics, after.statistics)
    return _stepped(state, after, grown, added.penalty - removed.penalty, started)


def absorb(state: FilterState, added: BlockStatistics, n_rows: int) -> Step:
    """Add rows that were summed up elsewhere, through the same prior."""
    return _stepped(state, state.holding(state.statistics + added), n_rows, added.penalty, time.perf_counter())


def _stepped(before: FilterState, after: FilterState, grown: int, penalty: float, started: float) -> Step:
    """The state after a change by `grown` rows, whose psi is the difference in log evidence."""
    psi, nis = after.log_evidence - before.log_evidence, _mahalanobis(after) - _mahalanobis(before)
    if not math.isfinite(psi):
        raise InputError("A block of rows gives a log density that is not finite: check its inputs and targets.")
    clipped, jitter = min(nis, OUTLIER_SQ * grown), before.prior.Luu.jitter
    seconds = time.perf_counter() - started
    return after, StepInfo(grown, psi, nis, clipped, grown + 2.0 * penalty, "information", jitter, seconds)


def _mahalanobis(state: FilterState) -> float:
    """y^T C^-1 y of all rows held, C = Q + V."""
    return state.statistics.target_sq - float(state.statistics.shift @ state.q.mean)


def decay(state: FilterState, factor: float) -> FilterState:
    """Let every row held count `factor` times what it did: p(y | u)^factor."""
    if not 0.0 < factor <= 1.0:
        raise InputError(f"A decay factor lies in (0, 1]; got {factor!r}.")
    return state.holding(state.statistics * factor)


def forget(state: FilterState, block: Block, *, surely_held: bool = False) -> FilterState:
    """Take away a block that was added before, exactly; `surely_held` saves the check that it was."""
    if len(block) == 0:
        return state
    remaining = state.statistics - BlockStatistics.from_block(state.prior, block)
    if not surely_held:
        _require_possible(state.statistics, remaining)
    return state.holding(remaining)


def merge(state: FilterState, other: FilterState) -> FilterState:
    """The state of both sets of rows, which must be disjoint and seen through the same prior."""
    return state.holding(state.statistics + other.statistics)


def _require_possible(before: BlockStatistics, after: BlockStatistics) -> None:
    """What remains must be statistics of some rows: [A t]^T [A t] is positive semi-definite, up to rounding."""
    M = len(after.shift)
    gram = after.shift.new_empty(M + 1, M + 1)
    gram[:M, :M], gram[:M, M], gram[M, :M] = after.precision, after.shift, after.shift
    gram[M, M] = after.target_sq
    size = torch.cat([before.precision.diagonal(), before.shift.new_tensor([before.target_sq])])
    gram.diagonal().add_(HARMLESS + ROUNDING * size.abs())
    if after.n_rows >= -1e-6 * (1.0 + before.n_rows) and _is_positive_definite(gram):
        return
    raise InputError(
        "Rows to forget must have been added before, with the same values, noise variances and weights (and, for "
        "approximations with blocks, in the same blocks). Without these the statistics would not be those of any "
        f"data: {before.n_rows:g} rows are held, {before.n_rows - after.n_rows:g} were to be forgotten. The model is "
        "unchanged."
    )


def _is_positive_definite(A: Tensor) -> bool:
    try:
        return linalg.cholesky(A, name="remaining statistics", smallest_pivot=0.0).jitter == 0.0
    except FactorizationError:
        return False
