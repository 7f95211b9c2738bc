"""The forms of a saved posterior in numpy: mean and variance of f at rows in the scaling of the model."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsegp.files import schema
from sparsegp.serving import algebra, covariance
from sparsegp.serving.algebra import Array, InverseLower

ROWS_AT_ONCE = 1024
FEW_ROWS = 64
KEPT_BYTES = 2**30
MOST_DENSE_ROWS = 5_000
"""An exact model of more rows is left to torch: its factor takes many seconds."""
SMALLEST_VARIANCE = 1e-14
# As in sparsegp.core.local.
NARROW_ROWS, NARROW_ERROR, PROBE_ROWS = 256, 2e-4, 32

Whole = NDArray[np.int64]


class Posterior(Protocol):
    """The posterior of f."""

    def mean(self, rows: Array) -> Array:
        """At each row, without the work that its variance takes."""

    def moments(self, rows: Array) -> tuple[Array, Array]:
        """Mean and variance at each row."""


def restored(record: schema.Posterior, kernel: schema.Kernel) -> Posterior:
    """The posterior of a record of one of the FORMS."""
    return _FORMS[record.form](record, kernel)


def is_known(record: schema.Posterior) -> bool:
    """Whether the form of a posterior can be evaluated here."""
    if record.form == schema.LOCAL:
        parts = record.approximation.components
        return len(parts) == 1 and parts[0].residual == "block" and parts[0].power == 1.0
    if record.form == schema.EXACT:
        return record.dense is not None and len(record.dense.inputs) <= MOST_DENSE_ROWS
    return record.form in _FORMS


def _batches(n_rows: int) -> list[slice]:
    most = min(ROWS_AT_ONCE, max(FEW_ROWS, -(-n_rows // algebra.cores())))
    return [slice(start, start + most) for start in range(0, n_rows, most)]


def _means(answer: Callable[[Array], Array], rows: Array) -> Array:
    out: Array = np.empty(len(rows))

    def work(batch: slice) -> None:
        out[batch] = answer(rows[batch])

    algebra.side_by_side(work, _batches(len(rows)))
    return out


def _moments(answer: Callable[[Array], tuple[Array, Array]], rows: Array) -> tuple[Array, Array]:
    mean, var = np.empty(len(rows)), np.empty(len(rows))

    def work(batch: slice) -> None:
        mean[batch], var[batch] = answer(rows[batch])

    algebra.side_by_side(work, _batches(len(rows)))
    return mean, var


def _features(trend: schema.Trend, rows: Array) -> Array:
    """width (1, x_j for j in columns) of each row."""
    T: Array = np.hstack([np.ones((len(rows), 1)), rows[:, trend.columns]])
    return trend.width * T


@dataclass(frozen=True, eq=False)
class _Prior:
    """What inducing values and a trend say of rows before any block: w = L^-1 k(Z, x), and then t(x)."""

    kernel: schema.Kernel
    inputs: Array
    inverse: InverseLower
    trend: schema.Trend | None

    @classmethod
    def of(cls, record: schema.Posterior, kernel: schema.Kernel) -> tuple["_Prior", InverseLower, Array]:
        """The prior, B^-1 and the mean of w."""
        values = record.inducing
        if values is None:
            raise ValueError("the model lacks its inducing values")
        inverse = InverseLower.of(algebra.lower(values.prior_cholesky, len(values.inputs)))
        spread = InverseLower.of(algebra.lower(values.precision_cholesky, len(values.mean)))
        return cls(kernel, values.inputs, inverse, record.trend), spread, values.mean

    @property
    def size(self) -> int:
        return len(self.inputs)

    def columns(self, rows: Array) -> Array:
        """[k(x, Z), t(x)]."""
        K = covariance.matrix(self.kernel, rows, self.inputs)
        return K if self.trend is None else np.hstack([K, _features(self.trend, rows)])

    def whitened(self, columns: Array) -> Array:
        """[w, t(x)]."""
        W = self.inverse.whiten(columns[:, : self.size])
        return W if self.trend is None else np.hstack([W, columns[:, self.size :]])

    def weights(self, whitened: Array) -> Array:
        """Those of `columns` from those of `whitened`."""
        out = whitened.copy()
        out[: self.size] = self.inverse.solve_transposed(whitened[: self.size])
        return out

    def left(self, rows: Array, whitened: Array) -> tuple[Array, Array]:
        """k(x, x), and what the inducing values leave of it."""
        prior_var = covariance.diagonal(self.kernel, rows)
        return prior_var, np.maximum(prior_var - algebra.row_squares(whitened[:, : self.size]), 0.0)


class Inducing:
    """m = w^T mu, v = k(x, x) - |w|^2 + |B^-1 w|^2, of SoR the last term alone."""

    def __init__(self, record: schema.Posterior, kernel: schema.Kernel) -> None:
        self._prior, self._spread, mean = _Prior.of(record, kernel)
        self._weights = self._prior.weights(mean)
        self._deterministic = record.approximation.new_rows == "deterministic"

    def mean(self, rows: Array) -> Array:
        return _means(lambda part: self._prior.columns(part) @ self._weights, rows)

    def moments(self, rows: Array) -> tuple[Array, Array]:
        return _moments(self._batch, rows)

    def _batch(self, rows: Array) -> tuple[Array, Array]:
        columns = self._prior.columns(rows)
        W = self._prior.whitened(columns)
        prior_var, left = self._prior.left(rows, W)
        var = algebra.row_squares(self._spread.whiten(W))
        if not self._deterministic:
            var += left
        return columns @ self._weights, np.maximum(var, SMALLEST_VARIANCE * prior_var)


@dataclass(frozen=True, eq=False)
class _Block:
    """Of one block: its inputs, A = C^-1 W and C^-1 with C C^T = D + noise, both perhaps in float32, and the weights of
    the mean."""

    inputs: Array
    A: Any
    inverse: InverseLower
    shared: Array
    own: Array

    @property
    def n_bytes(self) -> int:
        return int(self.A.nbytes) + self.inverse.n_bytes

    def conditional(self, K: Array, W: Array, size: int) -> tuple[Any, Array]:
        """Of rows with features W: C^-1 (k_P - W_P w), and the slope that the values of W are left with."""
        root = self.inverse.whiten(K.astype(self.A.dtype, copy=False))
        root -= W[:, :size].astype(self.A.dtype, copy=False) @ self.A[:, :size].T
        return root, W - root @ self.A


@dataclass(frozen=True, eq=False)
class _Weights:
    """Weights of the mean of a block, which stay when the block itself has to go."""

    inputs: Array
    shared: Array
    own: Array


@dataclass(eq=False)
class _Kept:
    """Blocks that are ready, up to a limit of bytes, and the weights of all that ever were."""

    blocks: OrderedDict[int, _Block] = field(default_factory=OrderedDict)
    weights: dict[int, _Weights] = field(default_factory=dict)
    n_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, k: int) -> _Block | None:
        with self.lock:
            if k in self.blocks:
                self.blocks.move_to_end(k)
            return self.blocks.get(k)

    def keep(self, k: int, block: _Block, needed: set[int]) -> None:
        """Blocks that are not needed now make room, those asked for longest ago first."""
        with self.lock:
            self.weights[k] = _Weights(block.inputs, block.shared, block.own)
            idle = (j for j in list(self.blocks) if j not in needed)
            while k not in self.blocks and self.n_bytes + block.n_bytes > KEPT_BYTES:
                oldest = next(idle, None)
                if oldest is None:
                    return
                self.n_bytes -= self.blocks.pop(oldest).n_bytes
            if k not in self.blocks:
                self.blocks[k] = block
                self.n_bytes += block.n_bytes


class Local:
    """PIC: f given the inducing values and the rows of the block of x. A block is prepared when it is first asked."""

    def __init__(self, record: schema.Posterior, kernel: schema.Kernel) -> None:
        if record.rows is None or record.partition is None or record.inducing is None:
            raise ValueError("the model lacks its rows or its blocks")
        self._prior, self._spread, self._mean = _Prior.of(record, kernel)
        self._rows, self._partition = record.rows, record.partition
        self._offsets: Whole = np.concatenate([[0], np.cumsum(record.rows.block_sizes)]).astype(np.int64)
        if self._offsets[-1] != len(record.rows.inputs) or len(record.rows.block_sizes) != len(
            self._partition.centroids
        ):
            raise ValueError("the blocks do not fit the rows")
        self._noise_var = record.inducing.noise_var
        self._without = self._prior.weights(self._mean)
        self._kept = _Kept()

    def mean(self, rows: Array) -> Array:
        out: Array = np.empty(len(rows))

        def work(index: list[tuple[int, Whole]]) -> None:
            for k, part in index:
                own = rows[part]
                weights = self._weights(k, {k})
                columns = self._prior.columns(own)
                out[part] = self._mean_of(columns, weights, own)

        self._visit(rows, work)
        return out

    def _mean_of(self, columns: Array, weights: _Weights | None, rows: Array) -> Array:
        if weights is None:
            return columns @ self._without
        mean: Array = columns @ weights.shared
        mean += covariance.matrix(self._prior.kernel, rows, weights.inputs) @ weights.own
        return mean

    def moments(self, rows: Array) -> tuple[Array, Array]:
        mean, var = np.empty(len(rows)), np.empty(len(rows))
        needed = set(np.unique(self._blocks_of(rows)).tolist())

        def work(index: list[tuple[int, Whole]]) -> None:
            for k, part in index:
                mean[part], var[part] = self._in_block(rows[part], self._block(k, needed))

        self._visit(rows, work)
        return mean, var

    def _in_block(self, rows: Array, block: _Block | None) -> tuple[Array, Array]:
        columns = self._prior.columns(rows)
        W = self._prior.whitened(columns)
        prior_var, var = self._prior.left(rows, W)
        if block is None:
            mean = columns @ self._without
            var += algebra.row_squares(self._spread.whiten(W))
        else:
            K = covariance.matrix(self._prior.kernel, rows, block.inputs)
            mean = columns @ block.shared
            mean += K @ block.own
            var = self._variance(block, K, W, var)
        return mean, np.maximum(var, SMALLEST_VARIANCE * prior_var)

    def _visit(self, rows: Array, work: Callable[[list[tuple[int, Whole]]], None]) -> None:
        """Every block once; threads share them, and large ones in parts if they are ready."""
        labels = self._blocks_of(rows)
        order = np.argsort(labels, kind="stable")
        cuts = np.flatnonzero(np.diff(labels[order])) + 1
        items: list[list[tuple[int, Whole]]] = []
        for index in np.split(order, cuts) if len(order) else []:
            k = int(labels[index[0]])
            parts = [(k, index[batch]) for batch in _batches(len(index))]
            items += [[part] for part in parts] if self._kept.get(k) is not None else [parts]
        algebra.side_by_side(work, sorted(items, key=lambda parts: -sum(len(index) for _, index in parts)))

    def _blocks_of(self, rows: Array) -> Whole:
        return nearest(rows * self._partition.metric, self._partition.centroids)

    def _weights(self, k: int, needed: set[int]) -> _Weights | None:
        if k not in self._kept.weights and self._block(k, needed) is None:
            return None
        return self._kept.weights[k]

    def _block(self, k: int, needed: set[int]) -> _Block | None:
        """None: it has no rows."""
        block = self._kept.get(k)
        if block is None and self._offsets[k + 1] > self._offsets[k]:
            block = self._prepared(slice(int(self._offsets[k]), int(self._offsets[k + 1])))
            self._kept.keep(k, block, needed)
        return block

    def _prepared(self, place: slice) -> _Block:
        prior, rows = self._prior, self._rows
        X = np.ascontiguousarray(rows.inputs[place])
        W = prior.whitened(prior.columns(X))
        D = covariance.matrix(prior.kernel, X, X)
        D[np.diag_indices_from(D)] = covariance.diagonal(prior.kernel, X)
        D -= W[:, : prior.size] @ W[:, : prior.size].T
        noise = self._noise_var if rows.noise_var is None else rows.noise_var[place]
        weight = 1.0 if rows.weights is None else rows.weights[place]
        D[np.diag_indices_from(D)] = np.maximum(D.diagonal(), 0.0) + noise / weight
        inverse = InverseLower.of(algebra.cholesky(D))
        whitened = inverse.whiten(np.column_stack([W, rows.targets[place]]).T).T
        A, left = np.ascontiguousarray(whitened[:, :-1]), whitened[:, -1] - whitened[:, :-1] @ self._mean
        shared = self._mean.copy()
        shared[: prior.size] -= (A.T @ left)[: prior.size]
        block = _Block(X, A, inverse, prior.weights(shared), inverse.solve_transposed(left))
        return self._narrowed(block, W) if len(X) >= NARROW_ROWS else block

    def _narrowed(self, block: _Block, W: Array) -> _Block:
        """In float32, where that leaves the variances of some of its own rows right, as in sparsegp.core.local."""
        narrow = replace(block, A=block.A.astype(np.float32), inverse=block.inverse.to(np.float32))
        some = slice(None, None, -(-len(W) // PROBE_ROWS))
        K = covariance.matrix(self._prior.kernel, block.inputs[some], block.inputs)
        left = self._prior.left(block.inputs[some], W[some])[1]
        var, other = (self._variance(part, K, W[some], left) for part in (block, narrow))
        return narrow if (np.abs(var - other) <= NARROW_ERROR * var).all() else block

    def _variance(self, block: _Block, K: Array, W: Array, left: Array) -> Array:
        root, slope = block.conditional(K, W, self._prior.size)
        return left - algebra.row_squares(root) + algebra.row_squares(self._spread.whiten(slope))


def nearest(X: Array, centroids: Array) -> Whole:
    """The number of the nearest centroid of each row, the smallest where several are equally near."""
    centre = np.median(centroids, axis=0)
    C, rows = centroids - centre, X - centre
    labels: Whole = np.empty(len(X), dtype=np.int64)
    for batch in (slice(start, start + ROWS_AT_ONCE) for start in range(0, len(X), ROWS_AT_ONCE)):
        scores = np.square(C).sum(1) - 2.0 * rows[batch] @ C.T
        labels[batch] = scores.argmin(1)
        # a product rounds; centroids that are equally near up to that are compared by differences
        size = np.square(rows[batch]).sum(1) + np.square(C).sum(1).max()
        close = scores <= (scores.min(1) + 1e-12 * size)[:, None]
        for i in np.flatnonzero(close.sum(1) > 1):
            distance = np.square(X[batch][i] - centroids).sum(1)
            labels[batch.start + i] = np.where(close[i], distance, np.inf).argmin()
    return labels


class Exact:
    """m = k(x, X) weights, v = k(x, x) - |C^-1 k(X, x)|^2, and what a trend adds to both."""

    def __init__(self, record: schema.Posterior, kernel: schema.Kernel) -> None:
        dense = record.dense
        if dense is None:
            raise ValueError("the model lacks its rows")
        self._kernel, self._inputs, self._weights = kernel, dense.inputs, dense.weights
        C = covariance.matrix(kernel, dense.inputs, dense.inputs)
        C[np.diag_indices_from(C)] = dense.covariance_diagonal
        self._inverse = InverseLower.of(algebra.cholesky(C, dense.jitter))
        self._trend, self._trend_mean = record.trend, dense.trend_mean
        if record.trend is not None:
            if dense.trend_mean is None:
                raise ValueError("the model lacks the mean of its trend")
            half = self._inverse.whiten(_features(record.trend, dense.inputs).T)
            self._from_root = half.T
            self._trend_inverse = InverseLower.of(np.linalg.cholesky(np.eye(len(half)) + half @ half.T))

    def mean(self, rows: Array) -> Array:
        return _means(lambda part: self._level(part, covariance.matrix(self._kernel, part, self._inputs)), rows)

    def _level(self, rows: Array, K: Array) -> Array:
        level: Array = K @ self._weights
        if self._trend is not None and self._trend_mean is not None:
            level += _features(self._trend, rows) @ self._trend_mean
        return level

    def moments(self, rows: Array) -> tuple[Array, Array]:
        return _moments(self._batch, rows)

    def _batch(self, rows: Array) -> tuple[Array, Array]:
        K, prior_var = covariance.matrix(self._kernel, rows, self._inputs), covariance.diagonal(self._kernel, rows)
        root = self._inverse.whiten(K)
        var = np.maximum(prior_var - algebra.row_squares(root), SMALLEST_VARIANCE * prior_var)
        if self._trend is not None:
            left = _features(self._trend, rows) - root @ self._from_root
            var += algebra.row_squares(self._trend_inverse.whiten(left))
        return self._level(rows, K), var


_FORMS: Mapping[str, Callable[[schema.Posterior, schema.Kernel], Posterior]] = {
    schema.INDUCING: Inducing,
    schema.LOCAL: Local,
    schema.EXACT: Exact,
}
