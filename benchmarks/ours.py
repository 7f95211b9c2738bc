"""The one file of the benchmarks that knows the inside of sparsegp; everything else uses its public names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from sparsegp import kernels
from sparsegp.core.approximations import get
from sparsegp.core.block import Block, MemoryRows
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective

Gradients = dict[str, np.ndarray]


def vfe_value_and_gradient(
    X: np.ndarray,
    y: np.ndarray,
    Z: np.ndarray,
    lengthscales: np.ndarray,
    variance: float,
    noise_var: float,
    row: str,
    labels: np.ndarray | None = None,
) -> Callable[[], tuple[float, Gradients]]:
    """A call without arguments that gives the objective of `row` and all its gradients.

    `labels` (block rows only): the block of each data row, sorted. Rows of the table other than "vfe" go
    through the same code path.
    """
    kernel = kernels.SquaredExponential(variance=variance, lengthscales=lengthscales)
    hyper = Hyperparameters(kernel, noise_var, torch.from_numpy(Z))
    offsets = None if labels is None else _offsets(labels)
    objective = CollapsedObjective(MemoryRows(Block(torch.from_numpy(X), torch.from_numpy(y)), offsets), get(row))

    def evaluate() -> tuple[float, Gradients]:
        value = objective.value_and_gradient(hyper)
        return value, {name: p.grad.numpy() for name, p in hyper.named_parameters() if p.grad is not None}

    return evaluate


def _offsets(labels: np.ndarray) -> torch.Tensor:
    """First row of each block of sorted labels, and the number of rows."""
    starts = np.flatnonzero(np.diff(labels, prepend=labels[0] - 1))
    return torch.from_numpy(np.append(starts, len(labels)))
