"""PIC: f at a point of block P given u and the rows of P (000 appendix D.4, docs/derivations/local.md)."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sparsegp import linalg, parallel
from sparsegp.core import noise_model
from sparsegp.core.block import CHUNK_ROWS, Block, BlockStore
from sparsegp.core.posterior import SMALLEST_VARIANCE, InducingPosterior, SparsePosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import repeated_noise
from sparsegp.core.trend import Trend
from sparsegp.errors import InputError
from sparsegp.parallel import FEW_ROWS, Threads, available

CACHE_BYTES = 2**30
NARROW_ROWS = 256
"""Blocks of so many rows are worth the trial of float32."""
NARROW_ERROR = 2e-4
"""Of a variance: standard deviations are right to half of it."""
PROBE_ROWS = 32


@dataclass(frozen=True)
class Beyond:
    """What the rows of a block say beyond other values: k(., X_P), A = C^-1 W_P and C^-1.

    W_P are the features of the rows, whitened by those values, and C C^T is what these leave of the rows' covariance.
    """

    covariance: Callable[[Tensor], Tensor]
    A: Tensor
    inverse_C: linalg.InverseLower

    def conditional(self, K: Tensor, W: Tensor, prior: SparsePrior) -> tuple[Tensor, Tensor]:
        """Of rows with features W: their innovations, and the slope that the values of W are left with."""
        root = self.innovations(K, prior.of_kernel(W))
        return root.to(torch.float64), W - root @ self.A

    @property
    def n_bytes(self) -> int:
        return self.A.nbytes + self.inverse_C.n_bytes

    def innovations(self, K: Tensor, W: Tensor | None = None) -> Tensor:
        """C^-1 (k_P(x) - W_P w(x)), row by row, of rows with K = k(x, X_P) and whitened features W (None: there are no
        other values)."""
        K = K.to(self.A.dtype)
        if W is None:
            return self.inverse_C.whiten(K)
        return self.inverse_C.whiten(K, less=W.to(self.A.dtype) @ self.A[:, : W.shape[1]].mT)

    def narrowed(self, variance: "Callable[[Beyond], Tensor]") -> "Beyond":
        """In float32 where that leaves variances right: half the memory, and half the time of products.

        `variance` gives those of some of the block's own rows, where variances are smallest: they must come out to
        NARROW_ERROR of themselves.
        """
        if len(self.A) < NARROW_ROWS:
            return self
        narrow = Beyond(self.covariance, self.A.to(torch.float32), self.inverse_C.to(torch.float32))
        var, other = variance(self), variance(narrow)
        return narrow if bool(((var - other).abs() <= NARROW_ERROR * var).all()) else self


def probes(X: Tensor) -> slice:
    """Some of the rows of a block, to try float32 out on."""
    return slice(None, None, max(1, -(-len(X) // PROBE_ROWS)))


@dataclass(frozen=True)
class LocalBlock(Beyond):
    """Of one block P what no q changes: beyond u, with C C^T = Gamma_P = K_PP - Q_PP + noise, and z = C^-1 y_P."""

    z: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, prior: SparsePrior, block: Block) -> "LocalBlock":
        X = block.X.to(torch.float64)
        W = prior.features(X)
        noise, weight = repeated_noise(prior, block)
        V = noise_model.block_covariance(prior.approx, prior.residual_block(X, W), noise, weight)
        inverse_C = linalg.InverseLower.of(linalg.cholesky(V, name="noise covariance of a block").factor)
        whitened = inverse_C.whiten(torch.column_stack([W, block.y.to(torch.float64)]).mT).mT
        return cls(prior.kernel.onto(X), whitened[:, :-1].contiguous(), inverse_C, whitened[:, -1].contiguous())

    def for_variances(self, prior: SparsePrior, q: InducingPosterior, X: Tensor) -> Beyond:
        """What variances under q need, of the block with these rows: in float32 where that is right."""
        rows = X[probes(X)].to(torch.float64)
        W, K = prior.features(rows), self.covariance(rows)
        D = prior.residual_diag(rows, W)
        return self.narrowed(lambda part: _variance(q, D, *part.conditional(K, W, prior)))


@dataclass(frozen=True)
class LocalWeights:
    """The mean of a row of block P is [k_u(x), b T(x)] `shared` + k_P(x) `own`; `covariance` gives k_P."""

    covariance: Callable[[Tensor], Tensor]
    shared: Tensor
    own: Tensor

    @classmethod
    def of(cls, prior: SparsePrior, q: InducingPosterior, local: LocalBlock) -> "LocalWeights":
        left = local.z - local.A @ q.mean
        whitened = q.mean.clone()
        prior_part = whitened[: prior.n_inducing]
        prior_part -= (local.A.mT @ left)[: prior.n_inducing]
        prior_part.copy_(prior.inverse_root.solve_transposed(prior_part))
        return cls(local.covariance, whitened, local.inverse_C.solve_transposed(left))

    def mean(self, columns: Tensor, K: Tensor) -> Tensor:
        return columns @ self.shared + K @ self.own


class PreparedBlocks:
    """Blocks that are ready, up to a limit of bytes. A call never gives away what it needs itself: one that visits more
    blocks than there is room for finds as many ready the next time as before. Copies start empty."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, Beyond] = OrderedDict()
        self._lock = threading.Lock()
        self.n_bytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return PreparedBlocks, ()

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, k: int) -> Beyond | None:
        with self._lock:
            if k in self._blocks:
                self._blocks.move_to_end(k)
            return self._blocks.get(k)

    def keep(self, k: int, block: Beyond, limit: int, needed: Collection[int]) -> None:
        """Where there is room, or where blocks that are not needed now can leave, those asked for longest ago first."""
        with self._lock:
            idle = (j for j in list(self._blocks) if j not in needed)
            while k not in self._blocks and self.n_bytes + block.n_bytes > limit:
                oldest = next(idle, None)
                if oldest is None:
                    return
                self.n_bytes -= self._blocks.pop(oldest).n_bytes
            if k not in self._blocks:
                self._blocks[k] = block
                self.n_bytes += block.n_bytes


class _WeightsByBlock(dict[int, LocalWeights]):
    """Copies start empty."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _WeightsByBlock, ()


@dataclass(frozen=True)
class _Batch:
    """Rows that are worked on together, block after block: their numbers, and the place of each block among them."""

    index: Tensor
    blocks: Sequence[tuple[int, slice]]


@dataclass(frozen=True)
class LocalPosterior:
    """PIC posterior for any q(u). Blocks are prepared when first visited; so many bytes of them are kept.

    The weights of the mean are kept for all blocks: N + K (M + P) numbers.
    """

    prior: SparsePrior
    q: InducingPosterior
    rows: BlockStore
    cache_bytes: int = CACHE_BYTES
    _prepared: PreparedBlocks = field(default_factory=PreparedBlocks, repr=False, compare=False)
    _weights: _WeightsByBlock = field(default_factory=_WeightsByBlock, init=False, repr=False, compare=False)

    @property
    def trend(self) -> Trend | None:
        return self.prior.trend

    def with_posterior(self, q: InducingPosterior) -> "LocalPosterior":
        """The same blocks under another q(u): both share the prepared blocks, which depend on the prior alone."""
        return replace(self, q=q)

    def mean(self, X: Tensor, labels: Tensor | None = None) -> Tensor:
        """One covariance a row with u and the rows of its block, and a product with weights that are kept."""
        out = torch.empty(X.shape[0], dtype=torch.float64)

        def visit(batches: Sequence[_Batch], needed: Collection[int]) -> None:
            for batch in batches:
                rows = X[batch.index].to(torch.float64)
                columns = self.prior.columns(rows)
                for k, place in batch.blocks:
                    out[batch.index[place]] = self._mean_in_block(k, rows[place], columns[place], needed)

        self._visit(_checked(labels, X), self._weights, visit)
        return out

    def _mean_in_block(self, k: int, X: Tensor, columns: Tensor, needed: Collection[int]) -> Tensor:
        if k not in self._weights and self._block(k, needed) is None:
            return columns @ self._shared_weights
        weights = self._weights_of(k)
        return weights.mean(columns, weights.covariance(X))

    def marginals(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mean, var = torch.empty(2, X.shape[0], dtype=torch.float64)

        def visit(batches: Sequence[_Batch], needed: Collection[int]) -> None:
            transient: dict[int, Beyond | None] = {}
            for batch in batches:
                rows = X[batch.index].to(torch.float64)
                mean[batch.index], var[batch.index] = self._batch_moments(rows, batch.blocks, needed, transient)

        self._visit(_checked(labels, X), self._prepared, visit)
        return mean, var

    def _batch_moments(
        self,
        X: Tensor,
        blocks: Sequence[tuple[int, slice]],
        needed: Collection[int],
        transient: dict[int, Beyond | None],
    ) -> tuple[Tensor, Tensor]:
        columns = self.prior.columns(X)
        slopes = self.prior.whitened(columns)
        prior_var = self.prior.diagonal(X)
        mean = torch.empty_like(prior_var)
        var = (prior_var - linalg.row_squares(self.prior.of_kernel(slopes))).clamp_min_(0.0)
        for k, place in blocks:
            if k not in transient:
                transient.clear()
                transient[k] = self._block(k, needed)
            local = transient[k]
            if local is None:
                mean[place] = columns[place] @ self._shared_weights
                continue
            K = local.covariance(X[place])
            mean[place] = self._weights_of(k).mean(columns[place], K)
            root = local.innovations(K, self.prior.of_kernel(slopes[place]))
            slopes[place] -= root @ local.A
            var[place] -= linalg.row_squares(root)
        var += linalg.row_squares(self.q.inverse_root.whiten(slopes))
        return mean, torch.maximum(var, SMALLEST_VARIANCE * prior_var)

    def conditionals(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Of p(f_* | y_P, u) = N(B u + l, R), whatever q: the whitened slope B and the variance R at each row."""
        slopes = torch.empty(X.shape[0], self.prior.n_features, dtype=torch.float64)
        var = torch.empty(X.shape[0], dtype=torch.float64)
        with torch.no_grad():
            for k, index in _by_label(_checked(labels, X)):
                _, slopes[index], D, root = self._conditional(X[index].to(torch.float64), k)
                var[index] = (D - linalg.row_squares(root)).clamp_min(0.0)
        return slopes, var

    def joint(self, X: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """cov = blockdiag(R_P) + B Sigma B^T: points of different blocks are independent given u."""
        X = X.to(torch.float64)
        mean = torch.empty(X.shape[0], dtype=torch.float64)
        slopes = torch.empty(X.shape[0], self.prior.n_features, dtype=torch.float64)
        cov = torch.zeros(X.shape[0], X.shape[0], dtype=torch.float64)
        with torch.no_grad():
            for k, index in _by_label(_checked(labels, X)):
                mean[index], slopes[index], _, root = self._conditional(X[index], k)
                D = self.prior.residual_block(X[index], self.prior.features(X[index]))
                cov[index[:, None], index] = D - root @ root.mT
            spread = self.q.inverse_root.whiten(slopes)
            cov += spread @ spread.mT
        return mean, linalg.symmetric(cov)

    def _conditional(self, X: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of p(f_* | y_P, u) = N(B u + l, R): mean under q, whitened slope B, diag D_**, and a root of what P adds."""
        W = self.prior.features(X)
        D = self.prior.residual_diag(X, W)
        local = self._block(k, (k,))
        if local is None:
            return W @ self.q.mean, W, D, torch.zeros(X.shape[0], 0, dtype=torch.float64)
        K = local.covariance(X)
        root, slope = local.conditional(K, W, self.prior)
        return self._weights_of(k).mean(self.prior.columns(X), K), slope, D, root

    def _visit(
        self,
        labels: Tensor,
        ready: "PreparedBlocks | _WeightsByBlock",
        visit: Callable[[Sequence[_Batch], Collection[int]], None],
    ) -> None:
        """Every block once. Threads share the batches; those of a block that is not ready go to the same thread."""
        n_rows = len(labels)
        blocks = list(_by_label(labels))
        needed = {k for k, _ in blocks}
        most = min(CHUNK_ROWS, max(FEW_ROWS, -(-n_rows // available())))
        with torch.no_grad():
            if n_rows <= FEW_ROWS:
                visit([_batch(blocks)], needed)
                return
            # roots that all threads need, before they begin
            _ = self.prior.inverse_root, self.q.inverse_root
            tasks = list(_tasks(blocks, {k for k in needed if ready.get(k) is not None}, most))
            threads = Threads()
            costs = [float(sum(len(batch.index) for batch in task)) for task in tasks]
            threads.map(_without_gradients(visit), threads.place(tasks, costs), needed)

    def _block(self, k: int, needed: Collection[int]) -> Beyond | None:
        """None: the block has no rows, or is none of the model's."""
        if not 0 <= k < self.rows.n_blocks:
            return None
        local = self._prepared.get(k)
        if local is None:
            block = self.rows.block(k)
            if len(block) == 0:
                return None
            with parallel.single():
                wide = LocalBlock.of(self.prior, block)
                if k not in self._weights:
                    self._weights[k] = LocalWeights.of(self.prior, self.q, wide)
                local = wide.for_variances(self.prior, self.q, block.X)
            self._prepared.keep(k, local, self.cache_bytes, needed)
        return local

    def _weights_of(self, k: int) -> LocalWeights:
        """Of a block that has rows. They are those of float64: for another q the block is factored again."""
        weights = self._weights.get(k)
        if weights is None:
            local = self._prepared.get(k)
            with parallel.single():
                wide = local if isinstance(local, LocalBlock) else LocalBlock.of(self.prior, self.rows.block(k))
                weights = self._weights[k] = LocalWeights.of(self.prior, self.q, wide)
        return weights

    @property
    def _shared_weights(self) -> Tensor:
        """Of rows that no block says anything of."""
        weights = self.q.mean.clone()
        own = weights[: self.prior.n_inducing]
        own.copy_(self.prior.inverse_root.solve_transposed(own))
        return weights


def _variance(q: InducingPosterior, D: Tensor, root: Tensor, slope: Tensor) -> Tensor:
    return D - linalg.row_squares(root) + linalg.row_squares(q.inverse_root.whiten(slope))


def make_posterior(prior: SparsePrior, q: InducingPosterior, rows: BlockStore) -> SparsePosterior | LocalPosterior:
    """The posterior of f that the row's test conditional asks for."""
    return LocalPosterior(prior, q, rows) if prior.approx.is_local else SparsePosterior(prior, q)


def _checked(labels: Tensor | None, X: Tensor) -> Tensor:
    if labels is None or len(labels) != X.shape[0]:
        raise InputError(f"Local predictions need the block of each of the {X.shape[0]} rows; got {labels!r}.")
    return labels


def _by_label(labels: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(label, indices of the rows that have it), label by label."""
    if len(labels) == 1:
        yield int(labels), torch.zeros(1, dtype=torch.int64)
        return
    order = labels.argsort(stable=True)
    values, counts = labels[order].unique_consecutive(return_counts=True)
    yield from zip(values.tolist(), order.split(counts.tolist()), strict=True)


def _tasks(blocks: Iterable[tuple[int, Tensor]], ready: Collection[int], most: int) -> Iterator[list[_Batch]]:
    """Batches of at most so many rows, in the order of blocks; those with a block that is not ready are one task."""
    task: list[_Batch] = []
    parts: list[tuple[int, Tensor]] = []
    n_held = 0
    for k, index in blocks:
        for number, part in enumerate(index.split(most)):
            if n_held + len(part) > most and parts:
                task.append(_batch(parts))
                parts, n_held = [], 0
                if number == 0 or k in ready:
                    yield task
                    task = []
            parts.append((k, part))
            n_held += len(part)
    if parts:
        yield [*task, _batch(parts)]


def _batch(parts: Sequence[tuple[int, Tensor]]) -> _Batch:
    if len(parts) == 1:
        ((k, index),) = parts
        return _Batch(index, [(k, slice(0, len(index)))])
    places, start = [], 0
    for k, part in parts:
        places.append((k, slice(start, start + len(part))))
        start += len(part)
    return _Batch(torch.cat([part for _, part in parts]), places)


def _without_gradients(visit: Callable[..., None]) -> Callable[..., None]:
    """Threads do not inherit that of the caller."""

    def visited(*given: Any) -> None:
        with torch.no_grad():
            visit(*given)

    return visited
