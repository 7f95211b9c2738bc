"""`kernel="auto"`: the kernel by which exact GPs on neighbourhoods predict rows they have not seen best."""

import time

import numpy as np
import torch

from sparsegp.committee import neighbourhoods
from sparsegp.data import Block
from sparsegp.errors import FactorizationError
from sparsegp.estimators.families import Start, limits_of
from sparsegp.learning.hyperparameters import Hyperparameters

AUTO = "auto"
# A choice cut short has seen the first ones: the kernel that is seldom far off, then a rough and a smooth one.
CANDIDATES = ("matern32", "matern12", "se", "matern52")
ROUNDS = neighbourhoods.Rounds(counts=(8, 8), n_rows=300, iterations=20, n_judged=160, n_neighbours=64)
# Thinned rows have other neighbours: of 246,467 flights a sample of 100,000 cannot tell the kernels apart, all of them
# can by 0.2 nats and more.
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
    scores: dict[str, float] = {}
    for name, start in starts.items():
        used = time.perf_counter() - begun
        if scores and used * (1.0 + 1.0 / len(scores)) > seconds:
            break
        scores[name] = _score(start, block, np.random.default_rng(seed))
    return max(scores, key=lambda name: scores[name])


def _score(start: Start, block: Block, rng: np.random.Generator) -> float:
    """Mean log density of held-out rows given their neighbours, after a short round of learning."""
    hyper = Hyperparameters(
        start.kernel, start.noise_var, block.X[:1], learn_noise=block.noise_var is None, learn_inducing=False
    )
    try:
        neighbourhoods.learn(block, hyper, limits_of(block, start.noise_var), optimizer="lbfgs", rng=rng, rounds=ROUNDS)
        hyper.clear_gradient()
        judged = torch.from_numpy(rng.choice(len(block), min(N_JUDGED, len(block)), replace=False))
        with torch.no_grad():
            return neighbourhoods.held_out_log_density(block, hyper, judged, ROUNDS.n_neighbours)
    except FactorizationError:
        return -np.inf
