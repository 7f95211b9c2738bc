"""Adam's steps on a numpy vector. `torch.optim` has them too, but loading it takes seconds, longer than a small fit."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

EPSILON = 1e-8


@dataclass
class AdamSteps:
    """Running means of gradients and of their squares, with the decay rates `betas`."""

    betas: tuple[float, float] = (0.9, 0.999)
    count: int = 0
    mean: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))
    square: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))

    def step(self, gradient: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
        """What to add to the parameters to go up along the gradient."""
        first, second = self.betas
        self.count += 1
        self.mean = first * self.mean + (1.0 - first) * gradient
        self.square = second * self.square + (1.0 - second) * np.square(gradient)
        root = np.sqrt(self.square / (1.0 - second**self.count))
        move: NDArray[np.float64] = rate / (1.0 - first**self.count) * self.mean / (root + EPSILON)
        return move
