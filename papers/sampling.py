"""Blocks drawn with replacement (000, theorem 5): with equal chances, or by size."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sparsegp.core.block import Sizes
from sparsegp.infer.anytime import Draw, Sampling, filled_blocks, make_draw


def _uniform(sizes: Sizes, per_step: int, rng: np.random.Generator) -> Iterator[Draw]:
    """Each block with probability 1/K; w = K/|S|, unbiased whatever the sizes."""
    filled = filled_blocks(sizes, per_step)
    yield from _independent(filled, np.full(len(filled), 1.0 / len(filled)), per_step, rng)


def _proportional(sizes: Sizes, per_step: int, rng: np.random.Generator) -> Iterator[Draw]:
    """Block s with probability p_s = b_s/n; w = 1/(|S| p_s), which is n/(|S| b_s)."""
    filled = filled_blocks(sizes, per_step)
    yield from _independent(filled, sizes[filled] / sizes.sum(), per_step, rng)


def _independent(
    filled: NDArray[np.int64], probability: Sizes, per_step: int, rng: np.random.Generator
) -> Iterator[Draw]:
    unseen = np.ones(len(filled), dtype=bool)
    while True:
        place = rng.choice(len(filled), per_step, p=probability)
        fresh = unseen[place]
        fresh[[i for i, k in enumerate(place) if k in place[:i]]] = False
        unseen[place] = False
        yield make_draw(filled[place], 1.0 / (per_step * probability[place]), fresh)


UNIFORM = Sampling(_uniform, exhaustive=False)
PROPORTIONAL = Sampling(_proportional, exhaustive=False)
