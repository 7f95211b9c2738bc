"""`kernel="auto"`: the kernel that a judge finds best on a few neighbourhoods."""

import time
from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch

from sparsegp.committee import neighbourhoods
from sparsegp.data import Block
from sparsegp.estimators.choices.kernel_judges import HeldOutRows, Judge, learned
from sparsegp.estimators.families import Start, limits_of
from sparsegp.learning.hyperparameters import Hyperparameters

AUTO = "auto"
# A choice cut short has seen the first ones: the kernel that is seldom far off, then a rough and a smooth one.
CANDIDATES = ("matern32", "matern12", "se", "matern52")
# The first kernel finds out which columns matter; the others start from its lengthscales, or chance would decide.
FIRST_ROUNDS = neighbourhoods.Rounds(counts=(8, 8, 8), n_rows=300, iterations=40, n_judged=160, n_neighbours=64)
ROUNDS = replace(FIRST_ROUNDS, counts=(8,), iterations=20)
# Of the noise to start from: rows that are there twice would drive it to nothing, and all kernels to lengthscale zero.
LEAST_NOISE_SHARE = 1e-3
# Thinned rows have other neighbours: as many rows as the search for neighbours can bear.
MOST_ROWS = 1_000_000
BUDGET_SHARE, FEWEST_SECONDS = 0.2, 4.0


def best_start(
    starts: dict[str, Start],
    block: Block,
    rng: np.random.Generator,
    time_budget: float | None = None,
    judge: Judge | None = None,
) -> str:
    """The name of the start with the best score. All of them see the same neighbourhoods and the same held-out rows.

    A share of the budget of the whole fit goes into it: the first starts are tried, as many as fit; without time to
    compare two, the first is taken.
    """
    judge = judge or HeldOutRows(ROUNDS.n_neighbours)
    seconds = np.inf if time_budget is None else BUDGET_SHARE * time_budget
    if seconds < FEWEST_SECONDS:
        return next(iter(starts))
    if len(block) > MOST_ROWS:
        block = block.take(torch.from_numpy(np.sort(rng.choice(len(block), MOST_ROWS, replace=False))))
    seed, begun = int(rng.integers(2**31)), time.perf_counter()
    first = next(iter(starts.values()))
    limits = limits_of(block, first.noise_var, LEAST_NOISE_SHARE * first.noise_var)
    common = learned(first, block, limits, np.random.default_rng(seed), FIRST_ROUNDS)
    if time.perf_counter() - begun + judge.fewest_seconds > seconds:
        return next(iter(starts))
    judge = judge.prepared(block, common, np.random.default_rng(seed))
    scores, started = dict[str, float](), time.perf_counter()
    for name, start in starts.items():
        now = time.perf_counter()
        if scores and now - begun + (now - started) / len(scores) > seconds:
            break
        again = np.random.default_rng(seed)
        scores[name] = judge.score(learned(_at_values_of(common, start), block, limits, again, ROUNDS), block, again)
    return max(scores, key=lambda name: scores[name])


def _at_values_of(common: Hyperparameters, start: Start) -> Start:
    """The same kind of kernel with the variance, lengthscales and noise of another."""
    kernel = deepcopy(start.kernel)
    kernel.load_state_dict(common.kernel.state_dict())
    return Start(kernel, float(common.noise_var))
