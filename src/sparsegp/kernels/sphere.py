"""A kernel for places on the earth, given by longitude and latitude in degrees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsegp.errors import InputError
from sparsegp.kernels.base import Kernel
from sparsegp.kernels.parameters import Values, log_scalar_parameter
from sparsegp.kernels.radial import MATERN12, MATERN32, MATERN52, Profile, covariance, squared_exponential

EARTH_RADIUS = 6371.0088
"""Kilometres: the mean radius of the earth."""
PROFILES: dict[str, Profile | None] = {
    "matern12": MATERN12,
    "matern32": MATERN32,
    "matern52": MATERN52,
    "squared_exponential": None,
}


class GreatCircle(Kernel):
    """k = variance * profile(c / lengthscale), c = 2 R sin(d / (2 R)), for places with the great-circle distance d.

    c is the straight line through the earth, which is d but for 0.1% up to 1,000 km. As a function of c every profile
    is a covariance on the sphere; as a function of d the smooth ones are not. There is no seam at 180 degrees and no
    crowding at the poles.

    Parameters
    ----------
    variance : float, default 1.0
    lengthscale : float, default 1000.0
        In kilometres, whatever the units of the data.
    profile : {"matern12", "matern32", "matern52", "squared_exponential"}, default "matern32"
    active_dims : two column numbers, optional
        Those of longitude and latitude, in this order and in degrees. None: the rows have these two columns alone.

    Examples
    --------
    >>> import torch
    >>> from sparsegp import kernels
    >>> places = torch.tensor([[179.5, 10.0], [-179.5, 10.0]], dtype=torch.float64)  # longitude, latitude
    >>> bool(kernels.GreatCircle(lengthscale=1000.0)(places)[0, 1] > 0.9)
    True
    """

    def __init__(
        self,
        variance: Values = 1.0,
        lengthscale: Values = 1000.0,
        profile: str = "matern32",
        *,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(active_dims)
        if profile not in PROFILES:
            raise InputError(f"profile must be one of {', '.join(map(repr, PROFILES))}; got {profile!r}")
        if self.active_dims is not None and len(self.active_dims) != 2:
            raise InputError(
                "active_dims must be the columns of longitude and latitude, in this order; got "
                f"{list(self.active_dims)}"
            )
        self.profile = profile
        self.log_variance = log_scalar_parameter("variance", variance)
        # one entry, as a file has it for lengthscales
        self.log_lengthscales = torch.nn.Parameter(log_scalar_parameter("lengthscale", lengthscale).detach().reshape(1))

    @property
    def variance(self) -> Tensor:
        """k(x, x)."""
        return self.log_variance.exp()

    @property
    def lengthscale(self) -> Tensor:
        """In kilometres."""
        return self.log_lengthscales.exp()

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        # in single precision a place is known to half a metre, but not the difference of two squares of the radius
        A = _places(X.double())
        B = A if Z is X else _places(Z.double())
        scales, log_variance = self.lengthscale.to(A).expand(3), self.log_variance.to(A)
        profile = PROFILES[self.profile]
        if profile is None:
            return squared_exponential(A, B, scales, log_variance)
        return covariance(profile, A, B, scales, log_variance)

    def diag(self, X: Tensor) -> Tensor:
        return self.variance.to(X) * X.new_ones(len(X))

    def extra_repr(self) -> str:
        shown = self.arguments_repr({"variance": self.variance, "lengthscale": self.lengthscale})
        return f"{shown}, profile={self.profile!r}"


def _places(X: Tensor) -> Tensor:
    """Points in space, in kilometres from the middle of the earth."""
    if X.shape[1] != 2:
        raise InputError(
            f"GreatCircle sees longitude and latitude; the input has {X.shape[1]} columns. Name the two with "
            "active_dims=[longitude, latitude]"
        )
    longitude, latitude = torch.deg2rad(X).unbind(1)
    flat = torch.cos(latitude)
    points = torch.stack([flat * torch.cos(longitude), flat * torch.sin(longitude), torch.sin(latitude)], dim=1)
    return EARTH_RADIUS * points
