"""Disjoint blocks of rows. Located blocks: the block of a point depends on that point alone."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sparsegp.checked import as_array
from sparsegp.errors import InputError
from sparsegp.kernels import Kernel, Stationary
from sparsegp.parallel import one_scipy_thread

_CHUNK_ENTRIES = 2**18  # rows x centroids held at once: 2 MB, stays in the cache
_ROWS_PER_CENTRE = 200
_FEWEST_SAMPLE_ROWS = 2_000
_MOST_SAMPLE_ROWS = 40_000
_FLAT_CENTROIDS = 100
_LLOYD_STEPS = 10
_BALANCING_ROUNDS = 20
_ROUNDS = 100

NO_BLOCK = -1

_Centre = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Partition:
    """Voronoi cells of `centroids` [K, D]: a point belongs to the block of its nearest centroid."""

    centroids: Tensor

    @property
    def n_blocks(self) -> int:
        return self.centroids.shape[0]

    def assign(self, X: Tensor) -> Tensor:
        """Block of each row: argmin_k |x - c_k|, the smallest k on a tie. No other row has a say in it."""
        if X.ndim != 2 or X.shape[1] != self.centroids.shape[1]:
            raise InputError(
                f"Points to assign must have shape [n, {self.centroids.shape[1]}], like the training rows; "
                f"got {list(X.shape)}. Give the same columns as in fit."
            )
        return self._search(X)

    @cached_property
    def _search(self) -> "_Search":
        return _Search(self.centroids)


@dataclass(frozen=True)
class Blocking:
    """Where rows belong: the partition, the metric it was made in, and the user's labels when blocks were given."""

    partition: Partition
    metric: Tensor
    originals: Tensor | None = None

    @property
    def n_blocks(self) -> int:
        return self.partition.n_blocks

    def nearest(self, X: Tensor) -> Tensor:
        """The block of each row, found from the row itself."""
        return self.partition.assign(X.to(torch.float64) * self.metric)

    def labels(self, X: Tensor, blocks: ArrayLike | None) -> Tensor:
        """Block of each row: as given by the user's label, else found from the row itself.

        A label that had no training rows gives NO_BLOCK: such a row is predicted from the inducing values alone.
        """
        if blocks is None:
            return self.nearest(X)
        given = torch.from_numpy(require_integers(blocks, X.shape[0]))
        known = torch.arange(self.n_blocks) if self.originals is None else self.originals
        place = torch.searchsorted(known, given).clamp_max(len(known) - 1)
        return torch.where(known[place] == given, place, NO_BLOCK)

    def same_as(self, other: "Blocking") -> bool:
        """Whether every new row would have the same block in both."""
        if self.originals is not None or other.originals is not None:
            mine, theirs = self.originals, other.originals
            return mine is not None and theirs is not None and torch.equal(mine, theirs)
        return torch.equal(self.partition.centroids, other.partition.centroids)

    def moved_to(self, centroids: Tensor) -> "Blocking":
        return replace(self, partition=Partition(centroids))

    def unseen(self, blocks: ArrayLike | None) -> Tensor:
        """Where blocks are labels of the user, those that have no block."""
        if blocks is None or self.originals is None:
            return torch.empty(0, dtype=torch.int64)
        given = _whole_numbers(blocks)
        found: Tensor = given[torch.isin(given, self.originals, invert=True)].unique()
        return found

    def with_labels(self, unseen: Tensor, X: Tensor, blocks: ArrayLike) -> tuple["Blocking", Tensor]:
        """With blocks for more labels, at the means of their rows; and the place of each old block, then of each new
        one, in the order of all."""
        assert self.originals is not None
        given, scaled = _whole_numbers(blocks), X.to(torch.float64) * self.metric
        means = torch.stack([scaled[given == label].mean(0) for label in unseen])
        originals, order = torch.cat([self.originals, unseen]).sort()
        centroids = torch.cat([self.partition.centroids, means])[order]
        return Blocking(Partition(centroids), self.metric, originals), order

    def with_moved_means(self, rows: Mapping[int, Tensor]) -> "Blocking":
        """Where blocks are labels of the user, they are located at the mean of their rows, if they have any."""
        if self.originals is None:
            return self
        centroids = self.partition.centroids.clone()
        for k, X in rows.items():
            if len(X):
                centroids[k] = (X.to(torch.float64) * self.metric).mean(0)
        return self.moved_to(centroids)


def require_integers(blocks: ArrayLike, n_rows: int) -> NDArray[np.int64]:
    """One integer a row."""
    given = as_array(blocks, "blocks")
    if given.shape != (n_rows,) or not np.issubdtype(given.dtype, np.integer):
        raise InputError(
            f"blocks must have one integer label for each of the {n_rows} rows; got {given.dtype} {given.shape}."
        )
    return given.astype(np.int64)


def _whole_numbers(blocks: ArrayLike) -> Tensor:
    return torch.from_numpy(np.asarray(blocks).astype(np.int64, casting="same_kind"))


def kmeans_partition(
    X: Tensor,
    n_blocks: int,
    rng: np.random.Generator,
    *,
    max_ratio: float = 2.0,
    is_late: Callable[[], bool] = lambda: False,
) -> Partition:
    """About `n_blocks` compact blocks, none with more than `max_ratio` times the rows of the median block.

    k-means on samples gives the first centroids. Then, because membership is decided by the nearest centroid
    alone, sizes are evened out through the centroids: a block that is too large gives way to the halves
    (thirds, ...) of its rows, and as many of the smallest blocks are dropped. The number of blocks can thus
    differ from the request. Every block has a row of X. Equal rows always share a block, so the cap cannot
    hold for a block made of one row repeated too often: it is kept as it is. Once `is_late`, large blocks are split and
    no small ones dropped, which takes few rounds.
    """
    if X.ndim != 2 or X.shape[0] < 1 or X.shape[1] < 1:
        raise InputError(f"Expected inputs [n, D] with at least one row and one column; got {list(X.shape)}.")
    if n_blocks < 1:
        raise InputError(f"n_blocks must be at least 1 (one block of all rows); got {n_blocks}.")
    if not max_ratio >= 2.0:
        raise InputError(
            f"max_ratio, the largest block over the median one, must be at least 2; got {max_ratio}. "
            "Halving a block cannot promise less."
        )
    if not torch.isfinite(X).all():
        raise InputError(
            "Some inputs are so much larger than their lengthscale that their quotient overflows. Use normalize=True, "
            "or give the columns of X in units of about the same size."
        )
    n_blocks = min(n_blocks, X.shape[0])
    blocks = _Blocks.of(X, _first_centroids(X, n_blocks, rng))
    return Partition(_even_out(blocks, n_blocks, max_ratio, rng, is_late).centroids)


def random_partition(n: int, n_blocks: int, rng: np.random.Generator) -> Tensor:
    """Labels 0..min(n_blocks, n)-1 in random order, block sizes equal up to one row.

    Such blocks have no location, hence no `Partition`: a model that predicts from the block of a new point
    (PIC, local experts) must be told that block by the caller.
    """
    if n < 1 or n_blocks < 1:
        raise InputError(f"Expected at least one row and one block; got {n} rows and n_blocks={n_blocks}.")
    return torch.from_numpy(rng.permutation(np.arange(n) % min(n_blocks, n)))


def from_labels(X: Tensor, labels: ArrayLike | Tensor) -> tuple[Partition, Tensor, Tensor]:
    """Blocks given by one integer a row: (partition for new points, labels as 0..K-1, the K given values).

    Label k stands for the k-th smallest given value. A new point goes to the block whose mean is nearest, at
    a cost of K distances. Training rows keep their given blocks, which `assign` need not reproduce.
    """
    given = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else as_array(labels, "blocks")
    if given.shape != (X.shape[0],):
        raise InputError(f"Expected one block label a row, shape [{X.shape[0]}]; got {list(given.shape)}.")
    if not np.issubdtype(given.dtype, np.integer):
        raise InputError(
            f"Block labels must be integers; got {given.dtype}. Number the blocks first, "
            "for example with numpy.unique(labels, return_inverse=True)[1]."
        )
    originals, codes, sizes = np.unique(given.astype(np.int64), return_inverse=True, return_counts=True)
    renumbered = torch.from_numpy(codes)
    sums = X.new_zeros(len(originals), X.shape[1]).index_add_(0, renumbered, X)
    return Partition(sums / torch.from_numpy(sizes).to(X)[:, None]), renumbered, torch.from_numpy(originals)


def block_slices(labels: Tensor, n_blocks: int) -> tuple[Tensor, Tensor]:
    """(order, offsets): rows order[offsets[k]:offsets[k+1]] are those of block k, in their original order."""
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < n_blocks:
        raise InputError(
            f"Block labels must lie in 0..{n_blocks - 1}; got {int(labels.min())}..{int(labels.max())}. "
            "Renumber them with from_labels."
        )
    sizes = torch.bincount(labels, minlength=n_blocks)
    return torch.argsort(labels, stable=True), torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Rows with the index of their nearest centroid; every centroid is the nearest of some row."""

    X: Tensor
    centroids: Tensor
    labels: Tensor

    @classmethod
    def of(cls, X: Tensor, centroids: Tensor) -> "_Blocks":
        return cls(X, centroids, _nearest(X, centroids))._without_empty()

    @property
    def sizes(self) -> NDArray[np.int64]:
        return torch.bincount(self.labels, minlength=len(self.centroids)).cpu().numpy()

    def rows(self, chosen: list[int]) -> list[Tensor]:
        order, offsets = block_slices(self.labels, len(self.centroids))
        return [self.X[order[offsets[k] : offsets[k + 1]]] for k in chosen]

    def above(self, limit: float) -> list[int]:
        """Blocks with more rows than `limit` and at least two different ones."""
        large = np.flatnonzero(self.sizes > limit).tolist()
        return [k for k, rows in zip(large, self.rows(large), strict=True) if not (rows == rows[0]).all()]

    def replace(self, removed: list[int], new: Tensor) -> "_Blocks":
        """Without the centroids `removed`, with `new` at the end; rows that keep theirs search `new` only."""
        keep = torch.ones(len(self.centroids), dtype=torch.bool, device=self.X.device)
        keep[removed] = False
        centroids = torch.cat([self.centroids[keep], new])
        labels = (keep.cumsum(0) - 1)[self.labels]
        homeless = ~keep[self.labels]
        labels[homeless] = _nearest(self.X[homeless], centroids)
        settled = torch.nonzero(~homeless).squeeze(1)
        rows, rival = self.X[settled], _nearest(self.X[settled], new) + int(keep.sum())
        current = _squared_distance(rows, centroids[labels[settled]])
        moves = _squared_distance(rows, centroids[rival]) < current
        labels[settled[moves]] = rival[moves]
        return _Blocks(self.X, centroids, labels)._without_empty()

    def _without_empty(self) -> "_Blocks":
        present, labels = torch.unique(self.labels, return_inverse=True)
        return _Blocks(self.X, self.centroids[present], labels)


def _even_out(
    blocks: _Blocks,
    n_blocks: int,
    max_ratio: float,
    rng: np.random.Generator,
    is_late: Callable[[], bool] = lambda: False,
) -> _Blocks:
    """Split blocks above the cap and drop as many small ones, until all blocks above it are single points.

    Dropping makes neighbours grow and need not settle. The last rounds only split, at means: that lowers the sum
    of squared distances to the centroids each time, so no state comes back, but the number of blocks grows.
    """
    target = len(blocks.X) / n_blocks
    for round_number in range(_ROUNDS):
        median = float(np.median(blocks.sizes))
        too_large = blocks.above(max_ratio * max(median, target)) or blocks.above(max_ratio * median)
        if not too_large:
            break
        balancing = round_number < _BALANCING_ROUNDS and not is_late()
        new = _parts(blocks, too_large, max(median, target), _median if balancing else _mean, rng)
        dropped = _smallest(blocks, len(new) - len(too_large), n_blocks) if balancing else []
        blocks = blocks.replace(too_large + dropped, new)
    return blocks


def _parts(
    blocks: _Blocks, too_large: list[int], part_rows: float, centre: _Centre, rng: np.random.Generator
) -> Tensor:
    """Centroids in place of those of the blocks `too_large`: two or more each, one for about `part_rows`."""
    centres: list[Tensor] = []
    for rows in blocks.rows(too_large):
        n_parts = max(2, round(len(rows) / part_rows))
        distinct = torch.unique(_sample(rows, n_parts, rng), dim=0)
        if len(distinct) == 1:
            distinct = torch.unique(rows, dim=0)
        centres += _bisect(distinct, min(n_parts, len(distinct)), centre)
    return torch.stack(centres)


def _bisect(rows: Tensor, parts: int, centre: _Centre) -> list[Tensor]:
    """Centres of `parts` equally large groups of distinct rows, cut across the coordinate of widest spread."""
    if parts == 1:
        return [centre(rows)]
    widest = int((rows - rows.mean(0)).square().sum(0).argmax())
    ordered = rows[rows[:, widest].argsort(stable=True)]
    cut = len(rows) * (parts // 2) // parts
    left, right = ordered[:cut], ordered[cut:]
    if parts == 2 and torch.equal(centre(left), centre(right)):
        return [_mean(left), _mean(right)]
    return _bisect(left, parts // 2, centre) + _bisect(right, parts - parts // 2, centre)


def _mean(rows: Tensor) -> Tensor:
    return rows.mean(0)


def _median(rows: Tensor) -> Tensor:
    """Median of each coordinate: unlike the mean, it does not follow one far row away from all the others."""
    return rows.median(0).values


def _smallest(blocks: _Blocks, n_added: int, n_blocks: int) -> list[int]:
    """The smallest blocks below 3/4 of the mean size, as many as are in excess once `n_added` are added."""
    sizes = blocks.sizes
    excess = max(0, len(sizes) + n_added - n_blocks)
    order = np.argsort(sizes, kind="stable")[:excess]
    return [int(k) for k in order if sizes[k] < 0.75 * len(blocks.X) / n_blocks]


def _first_centroids(X: Tensor, k: int, rng: np.random.Generator) -> Tensor:
    """k-means centres of X; many centres in two levels, each coarse cell getting its share of them."""
    if k <= _FLAT_CENTROIDS:
        return _lloyd(X, k, rng)
    n_coarse = round(k**0.5)
    coarse = _even_out(_Blocks.of(X, _lloyd(X, n_coarse, rng)), n_coarse, 2.0, rng)
    cells = coarse.rows(list(range(len(coarse.centroids))))
    seats = np.diff(np.rint(k * np.cumsum(coarse.sizes) / len(X)), prepend=0.0)
    return torch.cat([_lloyd(cell, max(1, int(n)), rng) for cell, n in zip(cells, seats, strict=True)])


def _lloyd(X: Tensor, k: int, rng: np.random.Generator) -> Tensor:
    """k-means centres of a sample of X; the distinct rows of the sample when there are at most k."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    rows = _sample(X, k, rng)
    distinct: Tensor = torch.unique(rows, dim=0)
    if len(distinct) <= k:
        return distinct
    model = KMeans(k, n_init=1, max_iter=_LLOYD_STEPS, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings(), one_scipy_thread():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a cluster left empty: such a block is dropped
        model.fit(rows.cpu().numpy())
    return torch.as_tensor(model.cluster_centers_, dtype=X.dtype, device=X.device)


def _sample(X: Tensor, n_centres: int, rng: np.random.Generator) -> Tensor:
    """Rows enough to place `n_centres` centres."""
    n_rows = min(max(_ROWS_PER_CENTRE * n_centres, _FEWEST_SAMPLE_ROWS), _MOST_SAMPLE_ROWS)
    if X.shape[0] <= n_rows:
        return X
    return X[torch.from_numpy(rng.choice(X.shape[0], n_rows, replace=False))]


def _nearest(X: Tensor, centroids: Tensor) -> Tensor:
    """Index of the nearest centroid of each row."""
    return _Search(centroids)(X)


class _Search:
    """The nearest of some centroids, for rows in chunks that cannot change the result."""

    def __init__(self, centroids: Tensor) -> None:
        self.centroids, self.centre = centroids, _median(centroids)
        self.C = centroids - self.centre
        self.C_sq = self.C.square().sum(1)

    def __call__(self, X: Tensor) -> Tensor:
        if len(self.C) == 1:
            return torch.zeros(X.shape[0], dtype=torch.int64, device=X.device)
        labels = torch.empty(X.shape[0], dtype=torch.int64, device=X.device)
        step = max(1, _CHUNK_ENTRIES // len(self.C))
        for start in range(0, X.shape[0], step):
            chunk = X[start : start + step]
            centred = chunk - self.centre
            labels[start : start + step] = _nearest_in_chunk(chunk, centred, self.centroids, self.C, self.C_sq)
        return labels


def _nearest_in_chunk(X: Tensor, X_centred: Tensor, centroids: Tensor, C: Tensor, C_sq: Tensor) -> Tensor:
    """argmin_k of |c_k|^2 - 2 x.c_k from a matrix product, whose last bits depend on the shape of the chunk:
    centroids that are equally near up to rounding are compared by elementwise distances, which do not."""
    scores = torch.addmm(C_sq, X_centred, C.mT, alpha=-2.0)
    best, label = scores.min(1)
    runner_up = scores.scatter_(1, label[:, None], torch.inf).amin(1)
    # |score error| <= const * eps * (|x| + |c|)^2, and a c that competes has |c| <= |x| + |x - c_best|.
    norm_sq = X_centred.square().sum(1)
    reach = 2.0 * norm_sq.sqrt() + (best + norm_sq).clamp_min(0.0).sqrt()
    limit = best + 16.0 * (X.shape[1] + 4) * torch.finfo(X.dtype).eps * reach.square()
    doubtful = torch.nonzero(runner_up <= limit).squeeze(1)
    if len(doubtful):
        close = scores[doubtful] <= limit[doubtful, None]
        close.scatter_(1, label[doubtful, None], True)
        row, k = torch.nonzero(close, as_tuple=True)
        distance = torch.full_like(scores[doubtful], torch.inf)
        distance[row, k] = _squared_distance(X[doubtful[row]], centroids[k])
        label[doubtful] = distance.argmin(1)
    return label


def _squared_distance(A: Tensor, B: Tensor) -> Tensor:
    """sum_d (A_d - B_d)^2 for each row, added column by column: the same bits whatever the number of rows."""
    total = A.new_zeros(A.shape[0])
    for d in range(A.shape[1]):
        total += (A[:, d] - B[:, d]).square()
    return total


def kernel_metric(kernel: Kernel, n_features: int) -> Tensor:
    """1/lengthscale of each feature, so that near means correlated; 1 for kernels without lengthscales."""
    if not isinstance(kernel, Stationary):
        return torch.ones(n_features, dtype=torch.float64)
    metric = torch.zeros(n_features, dtype=torch.float64)
    metric[list(kernel.active_dims or range(n_features))] = 1.0 / kernel.lengthscales.detach().to(torch.float64)
    return metric
