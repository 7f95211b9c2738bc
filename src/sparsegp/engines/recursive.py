"""Recursive inference (003 sec. 3.2): one block at a time, exact after every one, each row seen once.

The state carries the exact accumulators (block statistics). The information form only adds to them; the Kalman form
also carries mean and a square root of the covariance, cheaper when a block has far fewer rows than M. These moments
are derived anew from the accumulators about every M rows, so that rounding cannot build up.
"""

import math
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.data import Block
from sparsegp.engines.filter_state import FilterState, Moments, Step, StepInfo, init, resume
from sparsegp.engines.row_map import WhitenedRow
from sparsegp.engines.small_products import plus_outer
from sparsegp.errors import InputError
from sparsegp.statistics import BlockStatistics, WhitenedBlock, whiten_block

__all__ = ["FORMS", "FilterState", "StepInfo", "init", "resume", "step"]

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
        form = "kalman" if KALMAN_PAYS * len(block) <= state.prior.n_inducing else "information"
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
    moments = Moments(old.mean + spread @ solved, root, old.precision_logdet + S_logdet, old.age + len(target))
    precision = state.statistics.precision + A.mT @ A
    new = state.holding(_added(state.statistics, part, precision), _while_fresh(moments))
    return new, _info(state, part, innovation * solved, S_logdet, "kalman", C.jitter, started)


_UPDATES: Mapping[str, Callable[[FilterState, WhitenedBlock, float], Step]] = {
    "information": _information,
    "kalman": _kalman,
}


def _plus_identity(A: Tensor) -> Tensor:
    return A + torch.eye(A.shape[0], dtype=A.dtype, device=A.device)


def _while_fresh(moments: Moments) -> Moments | None:
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
    moments = Moments(
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
