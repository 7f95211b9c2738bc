"""A bound on what a prediction costs: no more than so many experts are asked about a point, the nearest ones."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Nearest:
    """Experts by the distance of a point from the mean of their rows, in the metric of their compact cells."""

    most: int
    centres: Tensor
    metric: Tensor

    @classmethod
    def of(cls, most: int, rows: list[Tensor], metric: Tensor) -> "Nearest":
        """`rows`: the inputs of each expert."""
        return cls(most, torch.stack([X.to(torch.float64).mean(0) for X in rows]) * metric, metric)

    def audience(self, X: Tensor) -> Tensor:
        """Whether each expert (column) may be asked about each row of X; depends on that row alone."""
        near = torch.zeros(X.shape[0], len(self.centres), dtype=torch.bool)
        # differences, not products: their rounding would depend on the other rows and decide between equal distances
        distance = torch.cdist(X * self.metric, self.centres, compute_mode="donot_use_mm_for_euclid_dist")
        return near.scatter_(1, distance.argsort(dim=1, stable=True)[:, : self.most], True)
