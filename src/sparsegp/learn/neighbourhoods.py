"""Kernel and noise from a few neighbourhoods: exact GPs on rows that lie close together.

A random subset of a large data set is sparse and shows only what varies slowly. Neighbourhoods are as dense as the data
and show what varies quickly, which is what local models live on. "Close" is a matter of the kernel's lengthscales, so
learning goes in rounds: each takes new neighbourhoods in the metric that the round before has learned.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparsegp.core.block import Block
from sparsegp.core.dense import ExactPosterior
from sparsegp.core.partition import kernel_metric
from sparsegp.kernels import Stationary
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.schedules import OPTIMIZERS
from sparsegp.learn.sum_objective import ExactPart, threaded_sum
from sparsegp.learn.trace import Deadline, LearningResult, StepCallback, is_over
from sparsegp.parallel import Threads

START_FACTORS = (1.0, 0.3, 0.1)


@dataclass(frozen=True)
class Rounds:
    """Neighbourhoods of each round, rows in each of them, how long a round may climb, and rows held out to judge it.

    With a deadline, judging a round takes about `judging` of the time, unless that is for less than the fewest rows.
    """

    counts: tuple[int, ...] = (12, 12, 12, 12, 12)
    n_rows: int = 500
    iterations: int = 40
    tolerance: float = 1e-5
    n_judged: int = 256
    n_neighbours: int = 200
    fewest_judged: int = 32
    judging: float = 0.1


def learn(
    block: Block,
    hyper: Hyperparameters,
    limits: Limits,
    *,
    optimizer: str,
    rng: np.random.Generator,
    rounds: Rounds | None = None,
    on_step: StepCallback | None = None,
    deadline: Deadline | None = None,
) -> list[LearningResult]:
    """Learn kernel and noise in place; one result a round, as many as there is time for.

    A round that made the predictions of held-out rows from their neighbours worse is undone, and the last one.
    """
    rounds = rounds or Rounds()
    judged = torch.from_numpy(rng.choice(len(block), min(rounds.n_judged, len(block)), replace=False))
    judged, climbing = _within(deadline, block, hyper, judged, rounds)
    _shorten_lengthscales(block, hyper, judged, rounds.n_neighbours, climbing)
    best_score, best_vector = -np.inf, hyper.vector()
    results: list[LearningResult] = []
    for count in rounds.counts:
        if is_over(climbing):
            break
        metric = kernel_metric(hyper.kernel, block.X.shape[1]).to(block.X)
        parts = [ExactPart(part) for part in neighbourhoods(block, metric, count, rounds.n_rows, rng)]
        result = OPTIMIZERS[optimizer](
            threaded_sum(parts, hyper),
            hyper,
            limits,
            max_iterations=rounds.iterations,
            tolerance=rounds.tolerance,
            on_step=on_step,
            deadline=climbing,
        )
        results.append(result)
        score = held_out_log_density(block, hyper, judged, rounds.n_neighbours)
        if score > best_score:
            best_score, best_vector = score, hyper.vector()
        if result.stopped or score < best_score:
            break
    hyper.load_vector(best_vector)
    return results


def _within(
    deadline: Deadline | None, block: Block, hyper: Hyperparameters, judged: Tensor, rounds: Rounds
) -> tuple[Tensor, Deadline | None]:
    """As many rows to judge by as there is time for, and when to stop climbing so that the last round is judged."""
    if deadline is None:
        return judged, None
    few, started = judged[: rounds.fewest_judged // 2], deadline.clock()
    held_out_log_density(block, hyper, few, rounds.n_neighbours)
    seconds = (deadline.clock() - started) / len(few)
    if seconds > 0.0:
        judged = judged[: max(rounds.fewest_judged, int(rounds.judging * max(deadline.left, 0.0) / seconds))]
    return judged, Deadline(deadline.at - len(judged) * seconds, deadline.clock)


def _shorten_lengthscales(
    block: Block, hyper: Hyperparameters, judged: Tensor, n_neighbours: int, deadline: Deadline | None
) -> None:
    """Start from the multiple of the lengthscales that predicts held-out rows best; far off, all looks like noise."""
    kernel = hyper.kernel
    if not isinstance(kernel, Stationary) or not kernel.log_lengthscales.requires_grad:
        return
    given = kernel.log_lengthscales.detach().clone()
    scores: dict[float, float] = {}
    for factor in START_FACTORS:
        if scores and is_over(deadline):
            break
        kernel.log_lengthscales.data = given + math.log(factor)
        scores[factor] = held_out_log_density(block, hyper, judged, n_neighbours)
    kernel.log_lengthscales.data = given + math.log(max(scores, key=lambda factor: scores[factor]))


def held_out_log_density(block: Block, hyper: Hyperparameters, judged: Tensor, n_neighbours: int) -> float:
    """Mean log density of the targets of some rows, each predicted by the exact GP on its nearest other rows."""
    if len(block) < 2:
        return 0.0
    mean, var = predicted_by_neighbours(block, hyper, judged, n_neighbours)
    return float((-0.5 * (torch.log(2.0 * torch.pi * var) + (block.y[judged] - mean).square() / var)).mean())


def predicted_by_neighbours(
    block: Block, hyper: Hyperparameters, judged: Tensor, n_neighbours: int
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the targets of some rows, each predicted by the exact GP on its nearest other rows.

    Rows with the same inputs are left out with it, as long as others remain: a copy would give the target away.
    """
    metric = kernel_metric(hyper.kernel, block.X.shape[1]).to(block.X)
    X, noise_var = block.X * metric, hyper.noise_var

    def moments(row: int) -> tuple[float, float]:
        distance = (X - X[row]).square_().sum(1)
        apart = int((distance > 0).sum())
        if apart:
            distance[distance == 0] = torch.inf
        else:
            distance[row] = torch.inf
        others = distance.topk(min(n_neighbours, apart or len(X) - 1), largest=False).indices
        posterior = ExactPosterior.build(hyper.kernel, block.take(others), noise_var)
        mean, var = posterior.marginals(block.X[row : row + 1])
        return float(mean), float(var + (noise_var if block.noise_var is None else block.noise_var[row]))

    threads = Threads()
    found = torch.tensor(threads.map(moments, threads.place(judged.tolist())), dtype=torch.float64)
    return found[:, 0], found[:, 1]


def neighbourhoods(block: Block, metric: Tensor, count: int, n_rows: int, rng: np.random.Generator) -> list[Block]:
    """The n_rows rows nearest to each of `count` random rows; no more of them than it takes to hold every row."""
    n_rows = min(n_rows, len(block))
    count = min(count, -(-len(block) // n_rows))
    X = block.X * metric
    centres = X[torch.from_numpy(rng.choice(len(block), count, replace=False))]
    return [block.take(_nearest(X, centre, n_rows)) for centre in centres]


def _nearest(X: Tensor, centre: Tensor, n_rows: int) -> Tensor:
    nearest: Tensor = (X - centre).square_().sum(1).topk(n_rows, largest=False).indices
    return nearest
