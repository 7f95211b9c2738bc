"""Radial profiles, with their slopes in the SQUARED distance: closed forms that are finite at zero distance.

With s^2 = steepness * r^2 and variance v. Every elementwise pass counts, hence log v inside the exponent and
the buffers written in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparsegp.kernels.radial import Profile, exponential_


def _fill_matern12(s2: Tensor, base: Tensor | None, log_variance: Tensor) -> None:
    s = torch.sqrt(s2, out=base)
    K = exponential_(torch.sub(log_variance, s, out=s2), log_variance)  # v exp(-s)
    if base is not None:
        # dK/ds^2 = -K / (2 s) has no limit at s = 0; zero is the mean of the one-sided derivatives in x.
        coincident = s == 0
        torch.div(K, s, out=base).masked_fill_(coincident, 0.0)


def _fill_matern32(s2: Tensor, base: Tensor | None, log_variance: Tensor) -> None:
    s = s2.sqrt_()
    decay = exponential_(torch.sub(log_variance, s, out=base), log_variance)  # v exp(-s)
    torch.addcmul(decay, s, decay, out=s)  # v (1 + s) exp(-s)


def _fill_matern52(s2: Tensor, base: Tensor | None, log_variance: Tensor) -> None:
    s = torch.sqrt(s2, out=base)
    decay = exponential_(torch.sub(log_variance, s), log_variance)  # v exp(-s)
    slope_base = torch.addcmul(decay, s, decay, out=s)  # v (1 + s) exp(-s)
    torch.addcmul(slope_base, s2, decay, value=1.0 / 3.0, out=s2)  # v (1 + s + s^2 / 3) exp(-s)


MATERN12 = Profile(_fill_matern12, steepness=1.0, slope=-0.5, refine=True)
MATERN32 = Profile(_fill_matern32, steepness=3.0, slope=-0.5)
MATERN52 = Profile(_fill_matern52, steepness=5.0, slope=-1.0 / 6.0)
