"""`kernel="auto"`: the kernel by which exact GPs on neighbourhoods predict rows they have not seen best."""

import time
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch

from sparsegp.committee import neighbourhoods
from sparsegp.data import Block
from sparsegp.errors import FactorizationError
from sparsegp.estimators.families import Start, limits_of
from sparsegp.learning.hyperparameters import Hyperparameters, Limits

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
# Kernels differ by hundredths of the log density, rows by several: it takes many of them to tell kernels apart.
N_JUDGED = 1000


def best_start(
    starts: dict[str, Start], block: Block, rng: np.random.Generator, time_budget: float | None = None
) -> str:
    """The name of the start with the best score. All of them see the same neighbourhoods and the same held-out rows.

    A share of the budget of the whole fit goes into it: the first starts are tried, as many as fit; without time to
    compare any, the first is taken.
    """
    seconds = np.inf if time_budget is None else BUDGET_SHARE * time_budget
    if seconds < FEWEST_SECONDS:
        return next(iter(starts))
    if len(block) > MOST_ROWS:
        block = block.take(torch.from_numpy(np.sort(rng.choice(len(block), MOST_ROWS, replace=False))))
    seed, begun = int(rng.integers(2**31)), time.perf_counter()
    first = next(iter(starts.values()))
    limits = limits_of(block, first.noise_var, LEAST_NOISE_SHARE * first.noise_var)
    common = _learned(first, block, limits, np.random.default_rng(seed), FIRST_ROUNDS)
    scores, learned = dict[str, float](), time.perf_counter()
    for name, start in starts.items():
        now = time.perf_counter()
        if scores and now - begun + (now - learned) / len(scores) > seconds:
            break
        scores[name] = _score(_at_values_of(common, start), block, limits, np.random.default_rng(seed))
    return max(scores, key=lambda name: scores[name])


def _learned(
    start: Start, block: Block, limits: Limits, rng: np.random.Generator, rounds: neighbourhoods.Rounds
) -> Hyperparameters:
    """Kernel and noise from neighbourhoods, in place; from where they are if that fails."""
    hyper = Hyperparameters(
        start.kernel, start.noise_var, block.X[:1], learn_noise=block.noise_var is None, learn_inducing=False
    )
    with suppress(FactorizationError):
        neighbourhoods.learn(block, hyper, limits, optimizer="lbfgs", rng=rng, rounds=rounds)
    hyper.clear_gradient()
    return hyper


def _at_values_of(common: Hyperparameters, start: Start) -> Start:
    """The same kind of kernel with the variance, lengthscales and noise of another."""
    kernel = deepcopy(start.kernel)
    kernel.load_state_dict(common.kernel.state_dict())
    return Start(kernel, float(common.noise_var))


def _score(start: Start, block: Block, limits: Limits, rng: np.random.Generator) -> float:
    """Mean log density of held-out rows given their neighbours, after a short round of learning."""
    hyper = _learned(start, block, limits, rng, ROUNDS)
    judged = torch.from_numpy(rng.choice(len(block), min(N_JUDGED, len(block)), replace=False))
    try:
        with torch.no_grad():
            return neighbourhoods.held_out_log_density(block, hyper, judged, ROUNDS.n_neighbours)
    except FactorizationError:
        return -np.inf
