"""Kernel and noise from a few neighbourhoods: exact GPs on rows that lie close together.

A random subset of a large data set is sparse and shows only what varies slowly. Neighbourhoods are as dense as the data
and show what varies quickly, which is what local models live on. "Close" is a matter of the kernel's lengthscales, so
learning goes in rounds: each takes new neighbourhoods in the metric that the round before has learned.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from sparsegp import linalg
from sparsegp.calibration.shape_learning import QUICK, calibrated_log_density
from sparsegp.core.block import Block
from sparsegp.core.dense import ExactPosterior, row_noise
from sparsegp.core.partition import kernel_metric
from sparsegp.core.posterior import SMALLEST_VARIANCE
from sparsegp.kernels import Stationary
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.schedules import OPTIMIZERS
from sparsegp.learn.sum_objective import ExactPart, threaded_sum
from sparsegp.learn.trace import Deadline, LearningResult, Terms, is_over
from sparsegp.parallel import Threads

SPARE_NEIGHBOURS = 8
KERNEL_ROWS = 256
MOST_TOGETHER = 64


@dataclass(frozen=True)
class Opening:
    """Climbs before the first round: from `shorter` times the lengthscales, among a random `fraction` of the rows.

    Far off, all looks like noise. What the shortest distances hide shows among fewer rows. Whether a climb falls into
    "all is noise" hangs on its neighbourhoods, so there are several `times` of them.
    """

    shorter: float
    fraction: float
    times: int = 1


@dataclass(frozen=True)
class Rounds:
    """Neighbourhoods of each round, rows in each of them, how long a round may climb, and rows held out to judge it.

    With a deadline, judging a round takes about `judging` of the time, unless that is for less than the fewest rows.
    The rounds go on from the best of the openings, which have small neighbourhoods and at most `opening_time` of the
    time, and each climb at most `climb_time` of that.
    """

    counts: tuple[int, ...] = (12, 12, 12, 12, 12)
    n_rows: int = 500
    iterations: int = 40
    tolerance: float = 1e-5
    n_judged: int = 256
    n_neighbours: int = 200
    fewest_judged: int = 32
    judging: float = 0.06
    openings: tuple[Opening, ...] = (Opening(1.0, 1.0, 2), Opening(0.3, 1.0, 3), Opening(0.3, 0.1, 2))
    opening_count: int = 16
    opening_rows: int = 200
    opening_iterations: int = 30
    opening_time: float = 0.4
    climb_time: float = 0.3


def learn(block: Block, hyper: Hyperparameters, terms: Terms, rounds: Rounds | None = None) -> list[LearningResult]:
    """Learn kernel and noise in place; one result a climb, as many as there is time for.

    A round that made the predictions of held-out rows from their neighbours worse is undone, and the last one.
    """
    rounds, rng = rounds or Rounds(), terms.rng
    judged = torch.from_numpy(rng.choice(len(block), min(rounds.n_judged, len(block)), replace=False))
    judged, climbing = _within(terms.deadline, block, hyper, judged, rounds)
    start = best_vector = hyper.vector()
    best_score, results = -np.inf, list[LearningResult]()

    def climb(among: Block, count: int, n_rows: int, iterations: int, until: Deadline | None) -> bool:
        """Whether the predictions are the best so far."""
        nonlocal best_score, best_vector
        metric = kernel_metric(hyper.kernel, block.X.shape[1]).to(block.X)
        parts = [ExactPart(part) for part in neighbourhoods(among, metric, count, n_rows, rng)]
        result = OPTIMIZERS[terms.optimizer](
            threaded_sum(parts, hyper),
            hyper,
            terms.limits,
            max_iterations=iterations,
            tolerance=rounds.tolerance,
            on_step=terms.on_step,
            deadline=until,
        )
        results.append(result)
        score = held_out_log_density(block, hyper, judged, rounds.n_neighbours)
        is_best = score > best_score
        if is_best:
            best_score, best_vector = score, hyper.vector()
        return is_best

    def is_done() -> bool:
        return is_over(climbing) or (bool(results) and results[-1].stopped)

    opened = None if climbing is None else _after(climbing, rounds.opening_time)
    share = 0.0 if opened is None else rounds.climb_time * opened.left
    for opening in _worthwhile(rounds, len(block), hyper):
        if is_done() or (results and is_over(opened)):
            break
        hyper.load_vector(start)
        _shorten_lengthscales(hyper, opening.shorter)
        late = None if opened is None else Deadline(opened.clock() + share, opened.clock)
        among = _thinned(block, opening.fraction, rng)
        climb(among, rounds.opening_count, rounds.opening_rows, rounds.opening_iterations, late)
    hyper.load_vector(best_vector)
    for count in rounds.counts:
        if is_done() or not climb(block, count, rounds.n_rows, rounds.iterations, climbing):
            break
    hyper.load_vector(best_vector)
    return results


def _after(deadline: Deadline, fraction: float) -> Deadline:
    """When that fraction of what is left is over."""
    return Deadline(deadline.clock() + fraction * deadline.left, deadline.clock)


def _worthwhile(rounds: Rounds, n_rows: int, hyper: Hyperparameters) -> list[Opening]:
    """One for each climb, in turns, without those that would repeat another for want of rows or of lengthscales."""
    kernel, seen = hyper.kernel, rounds.opening_count * rounds.opening_rows
    is_learned = isinstance(kernel, Stationary) and kernel.log_lengthscales.requires_grad
    times: dict[Opening, int] = {}
    for opening in rounds.openings:
        fraction = 1.0 if opening.fraction * n_rows < seen else opening.fraction
        same = Opening(opening.shorter if is_learned else 1.0, fraction)
        times[same] = 1 if n_rows <= seen else max(times.get(same, 0), opening.times)
    return [one for turn in range(max(times.values(), default=0)) for one, n in times.items() if turn < n]


def _thinned(block: Block, fraction: float, rng: np.random.Generator) -> Block:
    if fraction == 1.0:
        return block
    index = rng.choice(len(block), round(fraction * len(block)), replace=False)
    return block.take(torch.from_numpy(np.sort(index)))


def _shorten_lengthscales(hyper: Hyperparameters, factor: float) -> None:
    if factor != 1.0:
        assert isinstance(hyper.kernel, Stationary)
        with torch.no_grad():
            hyper.kernel.log_lengthscales.add_(math.log(factor))


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


def held_out_log_density(block: Block, hyper: Hyperparameters, judged: Tensor, n_neighbours: int) -> float:
    """Mean log density of the targets of some rows, each predicted by the exact GP on its nearest other rows.

    It is that of forecasts once calibrated: a few rows far off would otherwise speak for a model that calls most of the
    signal noise.
    """
    if len(block) < 2:
        return 0.0
    mean, var = predicted_by_neighbours(block, hyper, judged, n_neighbours)
    y, rng = block.y[judged].double().cpu().numpy(), np.random.default_rng(0)
    return float(calibrated_log_density(y, mean.cpu().numpy(), var.sqrt().cpu().numpy(), rng, options=QUICK).mean())


def predicted_by_neighbours(
    block: Block, hyper: Hyperparameters, judged: Tensor, n_neighbours: int
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the targets of some rows, each predicted by the exact GP on its nearest other rows.

    Rows with the same inputs are left out with it, as long as others remain: a copy would give the target away.
    """
    metric = kernel_metric(hyper.kernel, block.X.shape[1]).to(block.X)
    scaled, k = block.X * metric, min(n_neighbours, len(block) - 1)
    n_together, K = max(1, KERNEL_ROWS // (k + 1)), None
    if len(block) ** 2 <= len(judged) * (k + 1) ** 2 * n_together:
        # few rows are neighbours again and again: all covariances once
        n_together = MOST_TOGETHER
        with torch.no_grad():
            K = hyper.kernel(block.X.to(torch.float64))
    others, is_known = _nearest_apart(scaled, judged, k)

    def moments(part: Tensor) -> Tensor:
        rows = judged[part]
        found = _predicted_together(block, hyper, rows, others[part], K)
        for i in torch.nonzero(~is_known[part] | found[:, 1].isnan())[:, 0].tolist():
            distance = (scaled - scaled[rows[i]]).square_().sum(1)
            found[i] = _predicted_alone(block, hyper, int(rows[i]), distance, k)
        return found

    threads = Threads()
    found = torch.cat(threads.map(moments, threads.place(torch.arange(len(judged)).split(n_together))))
    return found[:, 0], found[:, 1]


def _nearest_apart(scaled: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k rows nearest to each of some rows but not equal to it, and whether so many were found.

    Copies take places among the candidates: where there are more of them than spare places, the search fails.
    """
    X = scaled.cpu().numpy()
    search = NearestNeighbors(n_neighbors=min(k + 1 + SPARE_NEIGHBOURS, len(X)), algorithm="brute").fit(X)
    candidates = torch.from_numpy(search.kneighbors(X[rows.cpu().numpy()], return_distance=False)).to(scaled.device)
    distance = (scaled[rows][:, None] - scaled[candidates]).square_().sum(2)
    apart = distance.masked_fill(distance == 0.0, torch.inf).topk(k, dim=1, largest=False)
    return candidates.gather(1, apart.indices), apart.values[:, -1].isfinite()


@torch.no_grad()
def _predicted_together(
    block: Block, hyper: Hyperparameters, rows: Tensor, others: Tensor, whole: Tensor | None
) -> Tensor:
    """[mean, variance] of some rows, each from its own `others`; NaN where a covariance is hard to factor.

    Small systems side by side, with one call for all their factors. Covariances are those of `whole`, the matrix of all
    rows, or of one call of the kernel, although it computes some between the systems that nobody needs.
    """
    n, k = others.shape
    near, index = block.take(others.reshape(-1)), torch.cat([others, rows[:, None]], dim=1)
    if whole is None:
        of_all = hyper.kernel(block.X[index.reshape(-1)].to(torch.float64)).reshape(n, k + 1, n, k + 1)
        K = of_all.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    else:
        K = whole[index[:, :, None], index[:, None, :]]
    noise = row_noise(near, hyper.noise_var)[0].reshape(n, k)
    C, is_safe = linalg.cholesky_each(K[:, :k, :k] + torch.diag_embed(noise))
    given = torch.stack([K[:, :k, k], near.y.to(torch.float64).reshape(n, k)], dim=2)
    spread, target = linalg.solve_lower(C, given).unbind(2)
    prior_var = K[:, k, k]
    var = torch.maximum(prior_var - spread.square().sum(1), SMALLEST_VARIANCE * prior_var)
    own = hyper.noise_var if block.noise_var is None else block.noise_var[rows]
    return torch.stack([(spread * target).sum(1), (var + own).where(is_safe, torch.nan)], dim=1)


def _predicted_alone(block: Block, hyper: Hyperparameters, row: int, distance: Tensor, k: int) -> Tensor:
    """[mean, variance] of a row with few others apart from it, or with a covariance that needs jitter."""
    apart = int((distance > 0).sum())
    away = distance.masked_fill(distance == 0.0, torch.inf)
    if not apart:
        away = distance.clone()
        away[row] = torch.inf
    others = away.topk(min(k, apart or len(block) - 1), largest=False).indices
    mean, var = ExactPosterior.build(hyper.kernel, block.take(others), hyper.noise_var).marginals(block.X[[row]])
    own = hyper.noise_var if block.noise_var is None else block.noise_var[row]
    return torch.stack([mean[0], var[0] + own])


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
