"""Which rows each expert has: compact cells, random parts or given labels, and rows common to all; which are near."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp.core.partition import Partition, block_slices, from_labels, kmeans_partition, random_partition

CHOICES = ("kmeans", "random")


@dataclass(frozen=True)
class Split:
    """Row numbers of each expert, and of the communications expert where there is one.

    `partition` says where later rows belong; None: anywhere, the split was random. `labels` are the user's.
    """

    cells: list[Tensor]
    common: Tensor | None = None
    partition: Partition | None = None
    labels: Tensor | None = None

    @property
    def all(self) -> list[Tensor]:
        """Those of the communications expert first."""
        return self.cells if self.common is None else [self.common, *self.cells]


def split(
    X: Tensor,
    n_experts: int,
    how: str,
    rng: np.random.Generator,
    *,
    communicates: bool = False,
    blocks: ArrayLike | None = None,
) -> Split:
    """Rows divided among about `n_experts` experts. X is in the metric in which near means alike.

    A communications expert counts as one of them: it has as many rows as the others, drawn from everywhere. Labels
    `blocks` replace `how` and say how many experts there are.
    """
    codes = None if blocks is None else from_labels(X, blocks)[1]
    n_parts = n_experts if codes is None else int(codes.max()) + 1
    if not communicates:
        return _cells(X, n_parts, how, rng, blocks)
    shuffled = torch.from_numpy(rng.permutation(X.shape[0]))
    n_common = max(1, round(X.shape[0] / n_parts))
    common, rest = shuffled[:n_common].sort().values, shuffled[n_common:].sort().values
    if not len(rest):
        return Split([], common)
    own_labels = None if blocks is None else np.asarray(blocks)[rest.numpy()]
    found = _cells(X[rest], max(1, n_parts - 1), how, rng, own_labels)
    return replace(found, cells=[rest[cell] for cell in found.cells], common=common)


def _cells(X: Tensor, n_cells: int, how: str, rng: np.random.Generator, blocks: ArrayLike | None) -> Split:
    """Every cell has rows."""
    located, originals = None, None
    if blocks is not None:
        located, numbers, originals = from_labels(X, blocks)
    elif how == "kmeans":
        located = kmeans_partition(X, n_cells, rng)
        numbers = located.assign(X)
    else:
        numbers = random_partition(X.shape[0], n_cells, rng)
    order, offsets = block_slices(numbers, int(numbers.max()) + 1)
    return Split(list(order.split(offsets.diff().tolist())), None, located, originals)


@dataclass(frozen=True)
class Nearest:
    """The experts nearest to a point, by its distance from the mean of their rows in the metric of their cells: no more
    than `most` of them are asked, which bounds what a prediction costs."""

    most: int
    centres: Tensor
    metric: Tensor

    @classmethod
    def of(cls, most: int, rows: list[Tensor], metric: Tensor) -> "Nearest":
        """`rows`: the inputs of each expert."""
        return cls(most, torch.stack([X.to(torch.float64).mean(0) for X in rows]) * metric, metric)

    def near(self, X: Tensor) -> Tensor:
        """Whether each expert (column) may be asked about each row of X; depends on that row alone."""
        near = torch.zeros(X.shape[0], len(self.centres), dtype=torch.bool)
        # differences, not products: their rounding would depend on the other rows and decide between equal distances
        distance = torch.cdist(X * self.metric, self.centres, compute_mode="donot_use_mm_for_euclid_dist")
        return near.scatter_(1, distance.argsort(dim=1, stable=True)[:, : self.most], True)
