"""Boosted trees in which every node of a level asks the same question, so that a tree is three small arrays.

Needs numpy alone, because models are served without the rest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Whole = NDArray[np.int64]

FEW_ROWS = 64


@dataclass(frozen=True, eq=False)
class Trees:
    """A sum of trees. A row x has the leaf sum_l 2^l [x[columns[tree, l]] > thresholds[tree, l]] of each tree."""

    base: float
    columns: Whole
    thresholds: Array
    leaves: Array

    @classmethod
    def constant(cls, value: float) -> "Trees":
        return cls(value, np.zeros((0, 1), dtype=np.int64), np.zeros((0, 1)), np.zeros((0, 2)))

    def __call__(self, X: Array) -> Array:
        powers = 1 << np.arange(self.columns.shape[1])
        if len(X) <= FEW_ROWS:
            # all trees at once: few rows spend more time in the loop than in the trees
            leaf = (X[:, self.columns] > self.thresholds) @ powers
            few: Array = self.base + self.leaves[np.arange(len(self.leaves)), leaf].sum(axis=1)
            return few
        out = np.full(len(X), self.base)
        for columns, thresholds, leaves in zip(self.columns, self.thresholds, self.leaves, strict=True):
            out += leaves[(X[:, columns] > thresholds) @ powers]
        return out


@dataclass(frozen=True)
class TreeOptions:
    """How trees grow.

    Each corrects the sum of those before by `rate` of what a random part `drawn` of the rows calls for. Leaves are
    shrunk as if by `shrinkage` more rows at zero. Growth ends after `patience` trees that did not help the `checked`
    part of the rows, which no tree has grown on. Columns are cut between `n_bins` quantiles.
    """

    most_trees: int = 400
    depth: int = 5
    rate: float = 0.1
    n_bins: int = 64
    shrinkage: float = 20.0
    checked: float = 0.15
    patience: int = 15
    drawn: float = 0.5


def grown(X: Array, size: Array, rng: np.random.Generator, options: TreeOptions | None = None) -> Trees:
    """Trees for the log of the mean of positive numbers at x, as many as are best for the checked rows.

    With the sum F of trees so far the loss is size exp(-F) + F, minus the log likelihood of a gamma distribution.
    """
    options = options or TreeOptions()
    order = rng.permutation(len(X))
    n_checked = round(options.checked * len(order))
    check, grow = order[:n_checked], order[n_checked:]
    base = math.log(float(size.mean())) if len(size) else 0.0
    if n_checked == 0:
        return Trees.constant(base)
    cuts = _Cuts.of(X, grow, options.n_bins)
    sums = np.full(len(X), base)

    def loss() -> float:
        return float((size[check] * np.exp(-sums[check]) + sums[check]).mean())

    trees: list[tuple[Whole, Array, Array]] = []
    best, best_size = loss(), 0
    while len(trees) - best_size < options.patience and len(trees) < options.most_trees and cuts.exist:
        drawn = rng.choice(grow, max(1, round(options.drawn * len(grow))), replace=False)
        tree, leaf = _tree(cuts, size * np.exp(-sums) - 1.0, drawn, options)
        trees.append(tree)
        sums += tree[2][leaf]
        now = loss()
        if now < best:
            best, best_size = now, len(trees)
    if best_size == 0:
        return Trees.constant(base)
    columns, thresholds, leaves = (np.stack(part) for part in zip(*trees[:best_size], strict=True))
    return Trees(base, columns, thresholds, leaves)


@dataclass(frozen=True)
class _Cuts:
    """Where columns may be cut, and between which cuts each row lies: `bins` is [columns, rows]."""

    edges: Sequence[Array]
    bins: Whole

    @classmethod
    def of(cls, X: Array, rows: Whole, n_bins: int) -> "_Cuts":
        levels = np.linspace(0.0, 1.0, n_bins + 1)[1:-1]
        edges = [np.unique(np.quantile(X[rows, j], levels)) for j in range(X.shape[1])]
        return cls(edges, np.stack([np.searchsorted(edge, X[:, j]) for j, edge in enumerate(edges)]))

    @property
    def exist(self) -> bool:
        return any(len(edge) for edge in self.edges)


def _tree(cuts: _Cuts, left: Array, rows: Whole, options: TreeOptions) -> tuple[tuple[Whole, Array, Array], Whole]:
    """A tree (columns, thresholds, leaves) for what is left at some rows, and the leaf of every row."""
    own, values = np.ascontiguousarray(cuts.bins[:, rows]), left[rows]
    leaf, everywhere = np.zeros(len(rows), dtype=np.int64), np.zeros(cuts.bins.shape[1], dtype=np.int64)
    columns, thresholds = [], []
    for level in range(options.depth):
        gains = [
            (*_best_cut(own[j], leaf, 1 << level, values, len(edge) + 1, options.shrinkage), j)
            for j, edge in enumerate(cuts.edges)
            if len(edge)
        ]
        _, cut, column = max(gains)
        columns.append(column)
        thresholds.append(float(cuts.edges[column][cut]))
        leaf += (own[column] > cut).astype(np.int64) << level
        everywhere += (cuts.bins[column] > cut).astype(np.int64) << level
    total = np.bincount(leaf, values, 1 << options.depth)
    leaves = options.rate * total / (np.bincount(leaf, minlength=1 << options.depth) + options.shrinkage)
    return (np.array(columns, dtype=np.int64), np.array(thresholds), leaves), everywhere


def _best_cut(
    bins: Whole, leaf: Whole, n_leaves: int, values: Array, n_bins: int, shrinkage: float
) -> tuple[float, int]:
    """(gain, bin) of the cut that explains most, summed over the leaves of the level."""
    place = leaf * n_bins + bins
    total = np.bincount(place, values, n_leaves * n_bins).reshape(n_leaves, n_bins).cumsum(1)
    count = np.bincount(place, minlength=n_leaves * n_bins).reshape(n_leaves, n_bins).cumsum(1)
    above, n_above = total[:, -1:] - total, count[:, -1:] - count
    gain = (total**2 / (count + shrinkage) + above**2 / (n_above + shrinkage)).sum(0)[:-1]
    cut = int(gain.argmax())
    return float(gain[cut]), cut
