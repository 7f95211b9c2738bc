"""The forecast of rows that are not known in full: the average of those of what each of them may be."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sparsegp.checked import checked_targets
from sparsegp.core.predictive import (
    PAIR_ROWS,
    Array,
    GaussianMixture,
    Generator,
    Parts,
    Predictive,
    by_chunks,
    root,
)

FEW_PARTS = 16
"""Parts of a row for which rows are taken PAIR_ROWS at once; fewer rows where there are more parts."""


@dataclass(frozen=True, eq=False)
class Drawn(GaussianMixture):
    """p(y) = sum_k p(y | x_k)/K for each row: `base` has the forecasts of its K possible inputs one after another.

    The variance is the mean variance and the variance of the means. What the gaps of a row leave open is of f.
    """

    base: Predictive
    n_draws: int

    @property
    def mean(self) -> Array:  # type: ignore[override]
        return self._mean_of(self.base.mean)

    @property
    def var(self) -> Array:
        return self._mean_of(self.base.var) + self._spread

    @property
    def std(self) -> Array:
        return root(self.var)

    @property
    def f_std(self) -> Array:
        return root(self._mean_of(self.base.f_std**2) + self._spread)

    @property
    def noise_var(self) -> Array:
        return self._mean_of(np.broadcast_to(self.base.noise_var, self.base.mean.shape))

    @property
    def noise_std(self) -> Array:
        return np.sqrt(self.noise_var)

    @property
    def latent(self) -> "Drawn":
        return Drawn(self.base.latent, self.n_draws)

    @property
    def _spread(self) -> Array:
        spread: Array = self.base.mean.reshape(-1, self.n_draws).var(axis=1)
        return spread

    def _mean_of(self, values: Array) -> Array:
        mean: Array = values.reshape(-1, self.n_draws).mean(axis=1)
        return mean

    def parts(self, rows: slice) -> Parts:
        """Those of all possible inputs, about the mean of all."""
        start, stop, _ = rows.indices(len(self.base.mean) // self.n_draws)
        base = self.base.parts(slice(start * self.n_draws, stop * self.n_draws))
        offset = base.centre[:, None] + (np.zeros_like(base.var) if base.offset is None else base.offset)
        log_weight = np.tile(base.log_weight, self.n_draws) - math.log(self.n_draws)
        means = offset.reshape(stop - start, -1)
        centre = base.centre.reshape(stop - start, -1).mean(axis=1)
        return Parts(centre, base.var.reshape(means.shape), log_weight, means - centre[:, None])

    def crps(self, y: ArrayLike) -> Array:
        target, n_parts = checked_targets(y, self.mean), len(self.parts(slice(0, 1)).log_weight)
        at_once = max(1, PAIR_ROWS * FEW_PARTS**2 // n_parts**2)
        return by_chunks(lambda rows: self.parts(rows).crps(target[rows]), np.empty(len(target)), at_once)

    def sample(self, n: int, rng: Generator) -> Array:
        return self._one_of(self.base.sample(n, rng), rng)

    def noise_sample(self, shape: tuple[int, int], rng: Generator) -> Array:
        own = len(self.base.mean), shape[1]
        return self._one_of(np.broadcast_to(self.base.noise_sample(own, rng), own), rng)

    def _one_of(self, draws: Array, rng: Generator) -> Array:
        """Of draws at all possible inputs, those at one of them for each row and draw."""
        draws = draws.reshape(-1, self.n_draws, draws.shape[1])
        chosen = rng.integers(self.n_draws, size=(len(draws), 1, draws.shape[2]))
        found: Array = np.take_along_axis(draws, chosen, axis=1)[:, 0]
        return found
