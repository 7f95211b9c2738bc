"""Which blocks a step sees, and the weights that make the sum over them unbiased for the sum over all blocks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsegp.data import Sizes
from sparsegp.errors import InputError


@dataclass(frozen=True)
class Draw:
    """Blocks of one step: E[sum_s w_s stat_s] = sum of all. `fresh` says that a block was not drawn before."""

    index: tuple[int, ...]
    weights: tuple[float, ...]
    fresh: tuple[bool, ...]

    def __post_init__(self) -> None:
        if not (self.index and len(self.index) == len(self.weights) == len(self.fresh)) or min(self.weights) < 0.0:
            raise InputError(
                "A step needs at least one block, and a weight >= 0 and a freshness for each: a negative weight can "
                f"make the posterior precision indefinite; got {self!r}."
            )


Draws = Callable[[Sizes, int, np.random.Generator], Iterator[Draw]]


@dataclass(frozen=True)
class Sampling:
    """An endless stream of draws. `exhaustive`: every block comes once before any comes again."""

    draws: Draws
    exhaustive: bool


def _without_replacement(sizes: Sizes, per_step: int, rng: np.random.Generator) -> Iterator[Draw]:
    """Random order, epoch by epoch; w = K/|S|."""
    filled = filled_blocks(sizes, per_step)
    first = True
    while True:
        order = rng.permutation(filled)
        for start in range(0, len(order), per_step):
            index = order[start : start + per_step]
            yield make_draw(index, np.full(len(index), len(filled) / len(index)), np.full(len(index), first))
        first = False


def make_draw(index: NDArray[np.int64], weights: Sizes, fresh: NDArray[np.bool_]) -> Draw:
    return Draw(tuple(index.tolist()), tuple(weights.tolist()), tuple(fresh.tolist()))


def filled_blocks(sizes: Sizes, per_step: int) -> NDArray[np.int64]:
    """The blocks that have rows."""
    filled = np.flatnonzero(sizes > 0)
    if len(filled) == 0:
        raise InputError(f"None of the {len(sizes)} blocks has a row; give at least one row of positive weight.")
    if per_step < 1:
        raise InputError(f"blocks_per_step must be at least 1; got {per_step!r}.")
    return filled


WITHOUT_REPLACEMENT = Sampling(_without_replacement, exhaustive=True)
