"""How many rows a fit looks at, and how often, before its pass over all of them."""

import math
from dataclasses import dataclass

from sparsegp import inducing
from sparsegp.approximations import Family
from sparsegp.committee.neighbourhoods import START_FACTORS as SCOUT_FACTORS
from sparsegp.committee.neighbourhoods import Rounds
from sparsegp.estimators.stepping.reach import PARTITION_PASSES
from sparsegp.learning.progressive import START_FACTORS, schedule_of
from sparsegp.planning import costs
from sparsegp.planning.model import Model
from sparsegp.planning.work import Work

# Line searches that need a second step; the share of its iterations that a round of scouting needs to converge.
EVALUATIONS_PER_ITERATION = 1.1
SCOUT_SHARE = 0.35
DENSE_ITERATIONS = 60
PAIR_BYTES = 60.0  # moved for the distance of a row to a centre of k-means, its search included


@dataclass(frozen=True)
class Stage:
    """Evaluations of objective and gradient on so many rows."""

    n_rows: int
    evaluations: float


def learning_stages(model: Model, n_rows: int, sample_rows: int | None = None) -> tuple[Stage, ...]:
    """What `learning.progressive` does when no stage converges early; all but the last fit in the sample, if any."""
    if model.optimizer is None:
        return ()
    if model.is_dense:
        return (Stage(model.n_inducing, EVALUATIONS_PER_ITERATION * DENSE_ITERATIONS),)
    schedule = schedule_of(model.row, model.optimizer)
    sizes = schedule.stages(n_rows)
    if sample_rows is not None:
        sizes = [*([size for size in sizes[:-1] if size < sample_rows] or [schedule.first_rows]), n_rows]
    found = [
        Stage(size, EVALUATIONS_PER_ITERATION * schedule.iterations(k, len(sizes), n_rows))
        for k, size in enumerate(sizes)
        if not schedule.skips(k, len(sizes))
    ]
    if not schedule.warm_up_iterations:
        return tuple(found)
    # a value without gradient is half an evaluation
    start = EVALUATIONS_PER_ITERATION * schedule.warm_up_iterations + 0.5 * len(START_FACTORS)
    return (Stage(sizes[0], start), *found)


def preparation(model: Model, n_rows: int) -> Work:
    """Before learning: neighbourhoods and blocks for models that have them, then inducing inputs."""
    work = _scouting(model, n_rows) + _partition(model, n_rows)
    return work if model.row.family is Family.EXACT else work + _inducing(model, n_rows)


def _scouting(model: Model, n_rows: int) -> Work:
    """Exact GPs on neighbourhoods, each found by a scan of all rows and judged on held-out rows."""
    if not model.row.by_block or model.optimizer is None:
        return Work()
    rounds = Rounds()
    size, held = min(rounds.n_rows, n_rows), min(rounds.n_neighbours, n_rows)
    climbs = sum(rounds.counts) * rounds.iterations * EVALUATIONS_PER_ITERATION * SCOUT_SHARE
    judged = min(rounds.n_judged, n_rows) * (len(SCOUT_FACTORS) + len(rounds.counts))
    scan = n_rows * Work(moved=24.0 * model.n_features + 40.0)
    posterior = held * costs.covariance(model, held) + Work(solves=held**3 / 3, calls=costs.SECOND_CALLS)
    scans = judged + sum(rounds.counts)
    return climbs * costs.dense_evaluation(model, size) + judged * posterior + scans * scan


def _partition(model: Model, n_rows: int) -> Work:
    return float(PARTITION_PASSES) * assignment(model, n_rows)


def assignment(model: Model, n_rows: float) -> Work:
    """Of rows to the nearest of all blocks."""
    return n_rows * float(model.n_blocks) * Work(products=2.0 * model.n_features, moved=16.0)


def _inducing(model: Model, n_rows: int) -> Work:
    """k-means on a sample (seeds, each the best of some candidates, then steps of Lloyd), or a pivoted Cholesky."""
    M = model.n_inducing
    if model.inducing == "greedy":
        return float(n_rows) * (costs.covariance(model, M) + Work(solves=M**2))
    if model.inducing != "kmeans":
        return Work()
    sample = min(n_rows, max(inducing.SAMPLE_ROWS, inducing.SAMPLE_ROWS_PER_CENTRE * M))
    pairs = sample * M * (2.0 + math.log(M) + inducing.LLOYD_STEPS)
    return pairs * Work(products=2.0 * model.n_features, moved=PAIR_BYTES)
