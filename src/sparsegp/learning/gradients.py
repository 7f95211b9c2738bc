"""Gradients that travel between processes: plain arrays, one for every parameter."""

import numpy as np
import torch
from numpy.typing import NDArray

from sparsegp.learning.hyperparameters import Hyperparameters

Gradients = tuple[NDArray[np.float64] | None, ...]
"""Of every parameter; None: not learned."""


def gradients_of(hyper: Hyperparameters) -> Gradients:
    return tuple(None if p.grad is None else p.grad.cpu().numpy() for p in hyper.parameters())


def add_gradients(hyper: Hyperparameters, gradients: Gradients) -> None:
    for p, part in zip(hyper.parameters(), gradients, strict=True):
        if part is not None:
            gradient = torch.from_numpy(np.array(part)).to(p)
            p.grad = gradient if p.grad is None else p.grad + gradient
