"""Boosted oblivious trees in numpy: every node of a level asks the same question, so a tree is three small arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TreeOptions:
    """`shrinkage` is the number of rows at zero in each leaf; `checked` the share of rows that ends the growth.

    A tree grows on a share `drawn` of the other rows.
    """

    n_trees: int = 200
    depth: int = 4
    rate: float = 0.1
    n_bins: int = 64
    shrinkage: float = 20.0
    checked: float = 0.15
    patience: int = 15
    most_rows: int = 30_000
    drawn: float = 0.5


@dataclass(frozen=True)
class Trees:
    """Sum of trees: leaf number = sum_l 2^l [x_{column l} > threshold l], value = leaves[tree, leaf number]."""

    base: float
    columns: NDArray[np.int64]
    thresholds: Array
    leaves: Array

    def __call__(self, X: Array) -> Array:
        out = np.full(len(X), self.base)
        powers = 1 << np.arange(self.columns.shape[1])
        for columns, thresholds, leaves in zip(self.columns, self.thresholds, self.leaves, strict=True):
            out += leaves[(X[:, columns] > thresholds) @ powers]
        return out


def fitted_trees(X: Array, target: Array, options: TreeOptions) -> Trees:
    """Squared error; the number of trees is the one with the least error on the checked rows."""
    rng = np.random.default_rng(0)
    order = rng.permutation(len(X))[: options.most_rows]
    n_checked = round(options.checked * len(order))
    target = target[order]
    check, grow = np.arange(n_checked), np.arange(n_checked, len(order))
    edges = [
        np.unique(np.quantile(X[order[grow], j], np.linspace(0, 1, options.n_bins + 1)[1:-1]))
        for j in range(X.shape[1])
    ]
    bins = np.stack([np.searchsorted(edge, X[order, j]) for j, edge in enumerate(edges)]).astype(np.int32)
    base = float(target[grow].mean())
    fit = np.full(len(order), base)
    trees: list[tuple[NDArray[np.int64], Array, Array]] = []
    best, best_size = float(((target[check] - fit[check]) ** 2).mean()) if n_checked else np.inf, 0
    for size in range(1, options.n_trees + 1):
        drawn = (
            grow if options.drawn >= 1 else rng.choice(grow, max(1, round(options.drawn * len(grow))), replace=False)
        )
        tree, leaf = _grown(bins, edges, target - fit, drawn, options)
        trees.append(tree)
        fit = fit + tree[2][leaf]
        error = float(((target[check] - fit[check]) ** 2).mean())
        if error < best:
            best, best_size = error, size
        elif size - best_size >= options.patience:
            break
    trees = trees[:best_size]
    if not trees:
        return Trees(base, np.zeros((0, 1), int), np.zeros((0, 1)), np.zeros((0, 2)))
    return Trees(base, *(np.stack(part) for part in zip(*trees, strict=True)))


def _grown(
    bins: NDArray[np.int32], edges: list[Array], left: Array, rows: NDArray[np.int64], options: TreeOptions
) -> tuple[tuple[NDArray[np.int64], Array, Array], NDArray[np.int64]]:
    """A tree of some rows, and the leaf of every row. `bins` has a row for each column of X."""
    own, values = np.ascontiguousarray(bins[:, rows]), left[rows]
    leaf = np.zeros(len(rows), dtype=np.int32)
    everywhere = np.zeros(bins.shape[1], dtype=np.int64)
    columns, thresholds = [], []
    for level in range(options.depth):
        cuts = [
            (*_best_cut(own[j], leaf, 1 << level, values, len(edge) + 1, options.shrinkage), j)
            for j, edge in enumerate(edges)
            if len(edge)
        ]
        _, cut, column = max(cuts)
        columns.append(column)
        thresholds.append(edges[column][cut])
        leaf += (own[column] > cut).astype(np.int32) << level
        everywhere += (bins[column] > cut).astype(np.int64) << level
    n_leaves = 1 << options.depth
    total = np.bincount(leaf, values, n_leaves)
    leaves = options.rate * total / (np.bincount(leaf, minlength=n_leaves) + options.shrinkage)
    return (np.array(columns), np.array(thresholds), leaves), everywhere


def _best_cut(
    bins: NDArray[np.int32], leaf: NDArray[np.int32], n_leaves: int, values: Array, n_bins: int, shrinkage: float
) -> tuple[float, int]:
    """(gain, bin) of the cut that explains most, summed over the leaves of the level."""
    place = leaf * n_bins + bins
    total = np.bincount(place, values, n_leaves * n_bins).reshape(n_leaves, n_bins).cumsum(1)
    count = np.bincount(place, minlength=n_leaves * n_bins).reshape(n_leaves, n_bins).cumsum(1)
    above, n_above = total[:, -1:] - total, count[:, -1:] - count
    gain = (total**2 / (count + shrinkage) + above**2 / (n_above + shrinkage)).sum(0)[:-1]
    cut = int(gain.argmax())
    return float(gain[cut]), cut


def tree_fit(options: TreeOptions) -> Callable[[Array, Array], Callable[[Array], Array]]:
    return lambda columns, target: fitted_trees(columns, target, options)
