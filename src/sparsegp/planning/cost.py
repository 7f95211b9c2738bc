"""What each part of a fit costs, by the operations that the code does (docs/scaling.md).

M inducing inputs, D columns, b rows in a block. Products that are known to be symmetric cost 5/8 of a full one.
"""

import math
from dataclasses import dataclass

from sparsegp.core import inducing
from sparsegp.core.approximations import Approximation, Family
from sparsegp.core.block import CHUNK_ROWS
from sparsegp.core.local import CACHE_BYTES
from sparsegp.fit.budget import Fractions
from sparsegp.learn.neighbourhoods import Rounds
from sparsegp.learn.schedules import START_FACTORS, Schedules
from sparsegp.planning.machine import Machine
from sparsegp.planning.shape import ModelShape

# Triangular solves and Cholesky factorisations of some hundred rows run at this fraction of the speed of products.
SOLVE_EFFICIENCY = 0.3
# One call of torch from Python, with what surrounds it; calls of several threads wait for each other.
CALL_SECONDS = 1e-5
SYMMETRIC = 1.25  # 5/8 of the 2 n k flop of a product, each n x k
# Bytes moved for an entry of K: written, exponentiated, cut off and read; and for its gradient.
KERNEL_BYTES, KERNEL_GRADIENT_BYTES = 40.0, 80.0
FIRST_CALLS, SECOND_CALLS, BLOCK_CALLS, PREDICTION_CALLS = 35, 60, 60, 20
EVALUATION_CALLS = 300
# Line searches that need a second step; the fraction of its iterations that a round of scouting needs to converge.
EVALUATIONS_PER_ITERATION = 1.1
SCOUT_FRACTION = 0.35
DENSE_ITERATIONS = 60
STARTING_VALUES = 0.5 * len(START_FACTORS)  # a value without gradient is half an evaluation
PAIR_BYTES = 60.0  # moved for the distance of a row to a centre of k-means, its search included


@dataclass(frozen=True)
class Cost:
    """Flop in matrix products and in solves or factorisations, exponentials, bytes moved elementwise, torch calls."""

    products: float = 0.0
    solves: float = 0.0
    exps: float = 0.0
    moved: float = 0.0
    calls: float = 0.0

    @property
    def flops(self) -> float:
        """What a textbook counts."""
        return self.products + self.solves

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.products + other.products,
            self.solves + other.solves,
            self.exps + other.exps,
            self.moved + other.moved,
            self.calls + other.calls,
        )

    def __mul__(self, factor: float) -> "Cost":
        return Cost(
            factor * self.products, factor * self.solves, factor * self.exps, factor * self.moved, factor * self.calls
        )

    __rmul__ = __mul__

    def seconds(self, machine: Machine) -> float:
        return (
            (self.products + self.solves / SOLVE_EFFICIENCY) / machine.flops_per_second
            + self.exps / machine.exps_per_second
            + self.moved / machine.memory_bytes_per_second
            + self.calls * CALL_SECONDS
        )


def first_pass(model: ModelShape) -> Cost:
    """Of a row when statistics are added up: inference, and the first half of an evaluation."""
    M, b = model.n_inducing, model.block_rows
    cost = covariance(model, M) + Cost(products=SYMMETRIC * M**2, solves=M**2, moved=40.0 * M)
    if model.approx.by_block:
        residual = Cost(products=SYMMETRIC * b * M, solves=b * M + b**2 / 3, moved=16.0 * M + 48.0 * b)
        cost = cost + covariance(model, b) + residual
    return _narrowed(model, cost) + _calls(model, FIRST_CALLS)


def second_pass(model: ModelShape) -> Cost:
    """Of a row when adjoints are pushed through the kernel."""
    M, b = model.n_inducing, model.block_rows
    cost = covariance(model, M) + covariance_gradient(model, M) + Cost(solves=M**2)
    if model.approx.by_block:
        cost = cost + covariance(model, b) + covariance_gradient(model, b)
        products = (4.0 + SYMMETRIC) * M**2 + (4.0 + 2.0 * SYMMETRIC) * b * M
        cost = cost + Cost(products, solves=b**2, moved=150.0 * (M + b))
    elif model.approx.keeps_residual:
        cost = cost + Cost((4.0 + SYMMETRIC) * M**2, moved=150.0 * M)
    else:
        cost = cost + Cost(2.0 * M**2, moved=56.0 * M)
    return _narrowed(model, cost) + _calls(model, SECOND_CALLS)


def gradient(model: ModelShape) -> Cost:
    """Of a row in one evaluation of objective and gradient."""
    return first_pass(model) + second_pass(model)


def evaluation_overhead(model: ModelShape) -> Cost:
    """Of an evaluation, however few its rows: factors and inverses of M x M matrices, the gradient through Kuu."""
    M = model.n_inducing
    kernel = M * (2.0 * covariance(model, M) + covariance_gradient(model, M))
    return kernel + Cost(products=8.0 * M**3, solves=4.0 * M**3, moved=400.0 * M**2, calls=EVALUATION_CALLS)


def prediction(model: ModelShape) -> Cost:
    """Of mean and variance at a new row."""
    M, b = model.n_inducing, model.block_rows
    if model.is_dense:
        return covariance(model, M) + Cost(products=2.0 * M, solves=M**2, moved=24.0 * M)
    if not model.approx.is_local:
        cost = covariance(model, M) + Cost(products=2.0 * M**2, moved=16.0 * M)
        return _narrowed(model, cost) + Cost(calls=PREDICTION_CALLS / CHUNK_ROWS)
    assigned = Cost(products=2.0 * model.n_features * model.n_blocks, moved=16.0 * model.n_blocks)
    local = Cost(products=4.0 * b * M + SYMMETRIC * (2.0 * M**2 + b**2), moved=80.0 * (M + b))
    return covariance(model, M) + covariance(model, b) + assigned + local


def prediction_overhead(model: ModelShape, n_rows: int, n_predicted: int) -> Cost:
    """Before the first row: the root of the covariance; for local models, the blocks that are visited."""
    M, b = model.n_inducing, model.block_rows
    if model.is_dense:
        return Cost()
    if not model.approx.is_local:
        return Cost(products=2.0 * M**3, solves=12.0 * M**3)
    visited = min(model.n_blocks, n_predicted)
    whitened = Cost(products=(SYMMETRIC + 1.0) * b * M + SYMMETRIC * M**2, solves=2.0 * b**2 / 3, moved=40.0 * (M + b))
    rows = visited * b
    return rows * (covariance(model, M) + covariance(model, b) + whitened) + Cost(
        calls=3.0 * PREDICTION_CALLS * visited
    )


def prediction_bytes(model: ModelShape, n_rows: int, cores: int) -> float:
    """What predictions take besides the model: arrays of a chunk for every thread and, for local models, weights of the
    mean and the factors of blocks, so many bytes of which are kept."""
    M, b = model.n_inducing, model.block_rows
    if not model.approx.is_local:
        return 8.0 * 3.0 * CHUNK_ROWS * M
    weights = 8.0 * (n_rows + model.n_blocks * M)
    factors = 8.0 * n_rows * (M + SYMMETRIC / 2.0 * b)
    return weights + min(factors, float(CACHE_BYTES)) + 8.0 * cores * CHUNK_ROWS * (3.0 * M + 2.0 * b)


def dense_evaluation(model: ModelShape, n_rows: float) -> Cost:
    """Objective and gradient of the exact GP on a few rows."""
    kernel = n_rows * (2.0 * covariance(model, n_rows) + covariance_gradient(model, n_rows))
    return kernel + Cost(solves=n_rows**3, moved=64.0 * n_rows**2, calls=SECOND_CALLS)


def covariance(model: ModelShape, columns: float) -> Cost:
    """Of a row with so many others: distances by a product, then elementwise."""
    once = Cost(products=2.0 * model.n_features * columns, exps=columns, moved=KERNEL_BYTES * columns)
    return model.kernel_cost * once


def covariance_gradient(model: ModelShape, columns: float) -> Cost:
    once = Cost(products=4.0 * model.n_features * columns, moved=KERNEL_GRADIENT_BYTES * columns)
    return model.kernel_cost * once


def matrices_per_worker(approx: Approximation) -> float:
    """Triangles of M x M numbers that travel in an evaluation, in matrices of 8 M^2 bytes: q(u) to the worker, the
    statistics back, and a third one where the approximation keeps a residual."""
    return 1.5 if approx.keeps_residual else 1.0


def _narrowed(model: ModelShape, cost: Cost) -> Cost:
    """Half the cost for numbers of half the width."""
    return model.number_bytes / 8.0 * cost


def _calls(model: ModelShape, point_calls: int) -> Cost:
    if model.approx.by_block:
        return Cost(calls=(point_calls + BLOCK_CALLS) / max(model.block_rows, 1.0))
    return Cost(calls=point_calls / CHUNK_ROWS)


def preparation(model: ModelShape, n_rows: int) -> Cost:
    """Before learning: neighbourhoods and blocks for models that have them, then inducing inputs."""
    cost = _scouting(model, n_rows) + _partition(model, n_rows)
    return cost if model.approx.family is Family.EXACT else cost + _inducing(model, n_rows)


def _scouting(model: ModelShape, n_rows: int) -> Cost:
    """Exact GPs on neighbourhoods, each found by a scan of all rows and judged on held-out rows."""
    if not model.approx.by_block or model.optimizer is None:
        return Cost()
    rounds, n_openings = Rounds(), sum(opening.times for opening in Rounds().openings)
    held = min(rounds.n_neighbours, n_rows)
    climbs = _climb(model, sum(rounds.counts), min(rounds.n_rows, n_rows), rounds.iterations)
    opened = _climb(
        model, n_openings * rounds.opening_count, min(rounds.opening_rows, n_rows), rounds.opening_iterations
    )
    judged = min(rounds.n_judged, n_rows) * (n_openings + len(rounds.counts))
    scan = n_rows * Cost(moved=24.0 * model.n_features + 40.0)
    posterior = held * covariance(model, held) + Cost(solves=held**3 / 3, calls=SECOND_CALLS)
    scans = judged + n_openings * rounds.opening_count + sum(rounds.counts)
    return opened + climbs + judged * posterior + scans * scan


def _climb(model: ModelShape, count: int, n_rows: int, iterations: int) -> Cost:
    """Exact GPs on so many neighbourhoods."""
    return count * iterations * EVALUATIONS_PER_ITERATION * SCOUT_FRACTION * dense_evaluation(model, n_rows)


def _partition(model: ModelShape, n_rows: int) -> Cost:
    return float(Fractions().partition_passes) * assignment(model, n_rows)


def assignment(model: ModelShape, n_rows: float) -> Cost:
    """Of rows to the nearest of all blocks."""
    return n_rows * float(model.n_blocks) * Cost(products=2.0 * model.n_features, moved=16.0)


def _inducing(model: ModelShape, n_rows: int) -> Cost:
    """k-means on a sample (seeds, each the best of some candidates, then steps of Lloyd), or a pivoted Cholesky."""
    M = model.n_inducing
    if model.inducing == "greedy":
        return float(n_rows) * (covariance(model, M) + Cost(solves=M**2))
    if model.inducing != "kmeans":
        return Cost()
    sample = min(n_rows, max(inducing.SAMPLE_ROWS, inducing.SAMPLE_ROWS_PER_CENTRE * M))
    pairs = sample * M * (2.0 + math.log(M) + inducing.LLOYD_STEPS)
    return pairs * Cost(products=2.0 * model.n_features, moved=PAIR_BYTES)


@dataclass(frozen=True)
class Stage:
    """Evaluations of objective and gradient on so many rows."""

    n_rows: int
    evaluations: float


def learning_stages(model: ModelShape, n_rows: int, sample_rows: int | None = None) -> tuple[Stage, ...]:
    """The climbs of the schedule when none converges early; all but those on all rows fit in the sample, if any."""
    if model.optimizer is None:
        return ()
    if model.is_dense:
        return (Stage(model.n_inducing, EVALUATIONS_PER_ITERATION * DENSE_ITERATIONS),)
    schedule = Schedules().of(model.approx, model.optimizer)
    climbs = schedule.climbs(schedule.stages(n_rows, sample_rows), n_rows)
    return tuple(
        Stage(climb.n_rows, EVALUATIONS_PER_ITERATION * climb.iterations + (STARTING_VALUES if climb.is_warm_up else 0))
        for climb in climbs
    )
