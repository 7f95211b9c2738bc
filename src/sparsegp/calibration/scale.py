"""c(x): where rows left out are nearer to their forecasts, or farther from them, than the model says."""

import math
from dataclasses import dataclass, replace

import numpy as np

from sparsegp.calibration.trees import Array, Trees


@dataclass(frozen=True, eq=False)
class LocalScale:
    """c = exp(strength t(s)) between 1/most and most, with trees t of s: inputs, mean and log std of y, all scaled."""

    trees: Trees
    strength: float = 1.0
    most: float = 20.0

    def with_strength(self, strength: float) -> "LocalScale":
        return replace(self, strength=strength)

    def at(self, X: Array, mean: Array, std: Array) -> Array:
        """c at each row, positive; everything is in the scaling of the model."""
        scale: Array = np.exp(self.log_scale(self.trees(surroundings(X, mean, std))))
        return scale

    def log_scale(self, level: Array) -> Array:
        """log c, from what the trees say."""
        return np.clip(self.strength * level, -math.log(self.most), math.log(self.most))


def surroundings(X: Array, mean: Array, std: Array) -> Array:
    """What c may depend on."""
    return np.column_stack([X, mean, np.log(std)])
