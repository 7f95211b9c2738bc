"""Natural gradients with Adam as one of the optimisers: an iteration is an epoch of sampled blocks."""

import time
from dataclasses import replace

import numpy as np
import torch

from sparsegp.core.approximations import Approximation, Family
from sparsegp.core.reasons import OUT_OF_TIME
from sparsegp.errors import FactorizationError, InputError
from sparsegp.learn import stochastic
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.objective import CollapsedObjective, Objective, require_rows
from sparsegp.learn.trace import Deadline, LearningResult, StepCallback

JUDGED_ROWS = 8192
BLOCKS_PER_EPOCH, FEWEST_BLOCK_ROWS = 20, 128
JUDGING_MARGIN = 1.5
SEED = 0
NO_BETTER = "no better than the start"


def maximize(
    objective: Objective,
    hyper: Hyperparameters,
    limits: Limits,
    *,
    max_iterations: int = 40,
    tolerance: float = 1e-6,
    on_step: StepCallback | None = None,
    deadline: Deadline | None = None,
) -> LearningResult:
    """Climb in place from sampled blocks until the epochs or the time are used; `tolerance` ends nothing here.

    Estimates from blocks do not tell where the best point was. An end that is worse than the start (on some of the
    rows) is undone.
    """
    collapsed = require_rows(objective, "ngd")
    judge = _judge(collapsed)
    clock = time.perf_counter if deadline is None else deadline.clock
    start, started = hyper.vector(), clock()
    before = judge.value(hyper)
    judging = clock() - started
    seconds = None if deadline is None else deadline.left - JUDGING_MARGIN * judging
    if seconds is not None and seconds <= 0.0:
        return LearningResult(before, judge.n_rows, 0, 0, judging, OUT_OF_TIME)
    rng = np.random.default_rng(SEED)
    rows, row = collapsed.rows.sample, collapsed.approx
    block_rows = max(FEWEST_BLOCK_ROWS, min(stochastic.BLOCK_ROWS, len(rows) // BLOCKS_PER_EPOCH))
    source = rows.draws(block_rows, rng, by_block=row.by_block)
    try:
        result = stochastic.learn(
            source,
            row,
            hyper,
            limits,
            rng=rng,
            seconds=seconds,
            steps=max_iterations * source.n_blocks,
            on_step=on_step,
            clock=clock,
        )
        if judge.value(hyper) >= before:
            return result
        result = replace(result, objective=before, n_rows=judge.n_rows, reason=NO_BETTER)
    except FactorizationError as error:
        result = LearningResult(before, judge.n_rows, 0, 0, clock() - started, str(error))
    hyper.load_vector(start)
    hyper.clear_gradient()
    return result


def require_inducing(approx: Approximation) -> None:
    """An error for approximations without q(u), before anything is computed."""
    if approx.family in (Family.EXACT, Family.SUBSET):
        raise InputError(
            "optimizer='ngd' takes natural-gradient steps on the inducing values, which "
            f"{approx.name!r} does not have; use optimizer='lbfgs'."
        )


def _judge(collapsed: CollapsedObjective) -> CollapsedObjective:
    """The objective of rows, or blocks, spread over all of them."""
    rows = collapsed.rows.sample
    fraction = min(1.0, JUDGED_ROWS / max(1, len(rows)))
    n_parts = rows.n_blocks if collapsed.approx.by_block else len(rows)
    chosen = torch.linspace(0, n_parts - 1, max(1, round(fraction * n_parts)), dtype=torch.float64).long()
    subset = rows.subset_of_blocks(chosen) if collapsed.approx.by_block else rows.subset(chosen)
    return CollapsedObjective(subset, collapsed.approx)
