"""The least and the largest noise variance, kept smoothly.

With x = log noise between x_0 and x_1, s = SHARPNESS and sigma the logistic function

    limited  = x_0 + [softplus(s (x - x_0)) - softplus(s (x - x_1))]/s
    reaction = sigma(s (x - x_0)) - sigma(s (x - x_1))

The kink of a hard limit stops full steps of q(g_u) and line searches: with half of the rows at the floor an ascent took
thirty evaluations instead of five. A factor of two away from a limit this one changes the noise by 0.3 %.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

SHARPNESS = 6.0
LINEAR_FROM = 40.0  # softplus(x) = x to rounding


def limited(log_noise: Tensor, limits: tuple[float, float]) -> Tensor:
    """The log noise variance inside the limits; far from both of them the value itself."""
    lowest, highest = (math.log(limit) for limit in limits)
    return lowest + _above(log_noise - lowest) - _above(log_noise - highest)


def reaction(log_noise: Tensor, limits: tuple[float, float]) -> Tensor:
    """d limited / d log_noise: 1 far inside the limits, 0 far outside."""
    lowest, highest = (math.log(limit) for limit in limits)
    return torch.sigmoid(SHARPNESS * (log_noise - lowest)) - torch.sigmoid(SHARPNESS * (log_noise - highest))


def _above(x: Tensor) -> Tensor:
    """x, smoothly kept above 0."""
    return softplus(x, beta=SHARPNESS, threshold=LINEAR_FROM)
