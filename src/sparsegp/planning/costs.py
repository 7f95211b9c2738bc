"""What one row of data costs in each row of the table, by the operations that the code does (docs/scaling.md).

M inducing inputs, D columns, b rows in a block. Products that are known to be symmetric cost 5/8 of a full one.
"""

from sparsegp.approximations import Approximation
from sparsegp.data import CHUNK_ROWS
from sparsegp.planning.model import Model
from sparsegp.planning.work import Work

SYMMETRIC = 1.25  # 5/8 of the 2 n k flop of a product, each n x k
# Bytes moved for an entry of K: written, exponentiated, cut off and read; and for its gradient.
KERNEL_BYTES, KERNEL_GRADIENT_BYTES = 40.0, 80.0
FIRST_CALLS, SECOND_CALLS, BLOCK_CALLS, PREDICTION_CALLS = 35, 60, 60, 20
EVALUATION_CALLS = 300


def first_pass(model: Model) -> Work:
    """Of a row when statistics are added up: inference, and the first half of an evaluation."""
    M, b = model.n_inducing, model.block_rows
    work = covariance(model, M) + Work(products=SYMMETRIC * M**2, solves=M**2, moved=40.0 * M)
    if model.row.by_block:
        residual = Work(products=SYMMETRIC * b * M, solves=b * M + b**2 / 3, moved=16.0 * M + 48.0 * b)
        work = work + covariance(model, b) + residual
    return _narrowed(model, work) + _calls(model, FIRST_CALLS)


def second_pass(model: Model) -> Work:
    """Of a row when adjoints are pushed through the kernel."""
    M, b = model.n_inducing, model.block_rows
    work = covariance(model, M) + covariance_gradient(model, M) + Work(solves=M**2)
    if model.row.by_block:
        work = work + covariance(model, b) + covariance_gradient(model, b)
        products = (4.0 + SYMMETRIC) * M**2 + (4.0 + 2.0 * SYMMETRIC) * b * M
        work = work + Work(products, solves=b**2, moved=150.0 * (M + b))
    elif model.row.keeps_residual:
        work = work + Work((4.0 + SYMMETRIC) * M**2, moved=150.0 * M)
    else:
        work = work + Work(2.0 * M**2, moved=56.0 * M)
    return _narrowed(model, work) + _calls(model, SECOND_CALLS)


def gradient(model: Model) -> Work:
    """Of a row in one evaluation of objective and gradient."""
    return first_pass(model) + second_pass(model)


def evaluation_overhead(model: Model) -> Work:
    """Of an evaluation, however few its rows: factors and inverses of M x M matrices, the gradient through Kuu."""
    M = model.n_inducing
    kernel = M * (2.0 * covariance(model, M) + covariance_gradient(model, M))
    return kernel + Work(products=8.0 * M**3, solves=4.0 * M**3, moved=400.0 * M**2, calls=EVALUATION_CALLS)


def prediction(model: Model) -> Work:
    """Of mean and variance at a new row."""
    M, b = model.n_inducing, model.block_rows
    if model.is_dense:
        return covariance(model, M) + Work(products=2.0 * M, solves=M**2, moved=24.0 * M)
    if not model.row.is_local:
        work = covariance(model, M) + Work(products=2.0 * M**2, moved=16.0 * M)
        return _narrowed(model, work) + Work(calls=PREDICTION_CALLS / CHUNK_ROWS)
    assigned = Work(products=2.0 * model.n_features * model.n_blocks, moved=16.0 * model.n_blocks)
    local = Work(products=4.0 * b * M, solves=2.0 * M**2 + 2.0 * b**2, moved=80.0 * (M + b))
    return covariance(model, M) + covariance(model, b) + assigned + local


def prediction_overhead(model: Model, n_rows: int, n_predicted: int) -> Work:
    """Before the first row: the root of the covariance; for local models, the blocks that are visited."""
    M, b = model.n_inducing, model.block_rows
    if model.is_dense:
        return Work()
    if not model.row.is_local:
        return Work(products=2.0 * M**3, solves=12.0 * M**3)
    visited = min(model.n_blocks, n_predicted)
    whitened = Work(products=SYMMETRIC * b * M, solves=M**2 + b**2 / 3, moved=40.0 * (M + b))
    rows = visited * b
    return rows * (covariance(model, M) + covariance(model, b) + whitened) + Work(
        calls=3.0 * PREDICTION_CALLS * visited
    )


def dense_evaluation(model: Model, n_rows: float) -> Work:
    """Objective and gradient of the exact GP on a few rows."""
    kernel = n_rows * (2.0 * covariance(model, n_rows) + covariance_gradient(model, n_rows))
    return kernel + Work(solves=n_rows**3, moved=64.0 * n_rows**2, calls=SECOND_CALLS)


def covariance(model: Model, columns: float) -> Work:
    """Of a row with so many others: distances by a product, then elementwise."""
    once = Work(products=2.0 * model.n_features * columns, exps=columns, moved=KERNEL_BYTES * columns)
    return model.kernel_cost * once


def covariance_gradient(model: Model, columns: float) -> Work:
    once = Work(products=4.0 * model.n_features * columns, moved=KERNEL_GRADIENT_BYTES * columns)
    return model.kernel_cost * once


def matrices_per_worker(row: Approximation) -> float:
    """Triangles of M x M numbers that travel in an evaluation, in matrices of 8 M^2 bytes: q(u) to the worker, the
    statistics back, and a third one for a row that keeps a residual."""
    return 1.5 if row.keeps_residual else 1.0


def _narrowed(model: Model, work: Work) -> Work:
    """Half the work for numbers of half the width."""
    return model.number_bytes / 8.0 * work


def _calls(model: Model, point_calls: int) -> Work:
    if model.row.by_block:
        return Work(calls=(point_calls + BLOCK_CALLS) / max(model.block_rows, 1.0))
    return Work(calls=point_calls / CHUNK_ROWS)
