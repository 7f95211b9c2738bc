"""Which rows each expert has: compact cells, random shares or given labels, and rows common to all."""

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp import partition

CHOICES = ("kmeans", "random")


def divide(
    X: Tensor,
    n_experts: int,
    how: str,
    rng: np.random.Generator,
    *,
    communicates: bool = False,
    blocks: ArrayLike | None = None,
) -> list[Tensor]:
    """Row numbers of each of about `n_experts` experts. X is in the metric in which near means alike.

    A communications expert counts as one of them and comes first: it has an equal share, drawn from everywhere, and
    the others share the rest. Labels `blocks` replace `how` and say how many experts there are.
    """
    codes = None if blocks is None else partition.from_labels(X, blocks)[1]
    n_shares = n_experts if codes is None else int(codes.max()) + 1
    if not communicates:
        return _cells(X, n_shares, how, rng, codes)
    shuffled = torch.from_numpy(rng.permutation(X.shape[0]))
    n_common = max(1, round(X.shape[0] / n_shares))
    common, rest = shuffled[:n_common].sort().values, shuffled[n_common:].sort().values
    if not len(rest):
        return [common]
    own_codes = None if codes is None else codes[rest]
    cells = _cells(X[rest], max(1, n_shares - 1), how, rng, own_codes)
    return [common, *(rest[cell] for cell in cells)]


def _cells(X: Tensor, n_cells: int, how: str, rng: np.random.Generator, codes: Tensor | None) -> list[Tensor]:
    """Row numbers of each cell that has rows."""
    if codes is not None:
        labels = codes
    elif how == "kmeans":
        labels = partition.kmeans_partition(X, n_cells, rng).assign(X)
    else:
        labels = partition.random_partition(X.shape[0], n_cells, rng)
    order, offsets = partition.block_slices(labels, int(labels.max()) + 1)
    return [cell for cell in order.split(offsets.diff().tolist()) if len(cell)]
