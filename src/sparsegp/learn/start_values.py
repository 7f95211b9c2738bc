"""Starting values that suit any standardised data: median distances and a nearest-neighbour noise estimate."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sparsegp import parallel

SAMPLE_ROWS = 2000
NOISE_RANGE = (0.01, 0.5)


def median_lengthscales(X: Tensor, rng: np.random.Generator, groups: Sequence[int] | None = None) -> Tensor:
    """Per column the median distance of random pairs that differ, times sqrt(D): distances add up over columns.

    With `groups`, the number of a group for every column: per group, whose columns have one distance together.
    """
    n = X.shape[0]
    first, second = (torch.from_numpy(rng.integers(0, n, SAMPLE_ROWS)) for _ in range(2))
    gaps = (X[first] - X[second]).abs().to(torch.float64)
    if groups is not None:
        together = gaps.new_zeros(len(gaps), max(groups) + 1)
        gaps = together.index_add_(1, torch.tensor(groups), gaps.square()).sqrt()
    gaps[gaps == 0.0] = torch.nan
    medians = gaps.nanmedian(dim=0).values
    usual = medians[medians.isfinite()].median() if medians.isfinite().any() else torch.tensor(1.0, dtype=torch.float64)
    found: Tensor = medians.where(medians.isfinite(), usual) * math.sqrt(gaps.shape[1])
    return found


@parallel.single()
def neighbour_noise_var(X: Tensor, y: Tensor, rng: np.random.Generator) -> float:
    """Half the mean squared difference of y between nearest neighbours in a sample, relative to var(y), clipped.

    It counts what varies faster than the sample resolves as noise, hence the upper clip.
    """
    n = X.shape[0]
    variance = float(y.var()) if n > 1 else 0.0
    if n < 8 or variance == 0.0:
        return NOISE_RANGE[0] * (variance or 1.0)
    index = torch.from_numpy(rng.permutation(n)[:SAMPLE_ROWS])
    sample, target = X[index].to(torch.float64), y[index].to(torch.float64)
    sq = torch.cdist(sample, sample).fill_diagonal_(torch.inf)
    ratio = float((target - target[sq.argmin(dim=1)]).square().mean()) / 2.0 / variance
    return min(max(ratio, NOISE_RANGE[0]), NOISE_RANGE[1]) * variance
