"""Kernels that are not functions of the distance: periodic, linear, constant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor

from sparsegp.kernels.base import Kernel
from sparsegp.kernels.parameters import (
    Values,
    check_change_of_units,
    check_length,
    finite_vector,
    log_parameter,
    log_scalar_parameter,
    split_units,
)
from sparsegp.kernels.radial import squared_exponential


class Periodic(Kernel):
    """k = variance * exp(-2 sum_d sin^2(pi (x_d - z_d) / period_d) / l_d^2). Functions repeat after a period.

    Parameters
    ----------
    variance : float, default=1.0
        k(x, x), in squared units of y.
    lengthscales : float or sequence of float, default=1.0
        Smoothness within a period, without a unit. One number is shared by all columns.
    period : float or sequence of float, default=1.0
        Distance after which the function repeats, in units of X.
    active_dims : sequence of int, default=None
        Columns that the kernel sees, counted from 0. None is all of them.

    Examples
    --------
    >>> import torch
    >>> from sparsegp import kernels
    >>> kernel = kernels.Periodic(period=24.0)
    >>> noon, next_noon = torch.tensor([[12.0]]), torch.tensor([[36.0]])
    >>> kernel(noon, next_noon).detach().round(decimals=4).tolist()
    [[1.0]]
    """

    units: Tensor

    def __init__(
        self,
        variance: Values = 1.0,
        lengthscales: Values = 1.0,
        period: Values = 1.0,
        *,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(active_dims)
        self.log_variance = log_scalar_parameter("variance", variance)
        self.log_lengthscales = log_parameter("lengthscales", lengthscales)
        self.log_period = log_parameter("period", period)
        self.register_buffer("units", torch.ones(1, dtype=torch.float64))
        if self.active_dims is not None:
            self._check_lengths(len(self.active_dims))

    @property
    def variance(self) -> Tensor:
        """k(x, x)."""
        return self.log_variance.exp()

    @property
    def lengthscales(self) -> Tensor:
        """Smoothness within a period, without unit."""
        return self.log_lengthscales.exp()

    @property
    def period(self) -> Tensor:
        """Distance after which the function repeats; one entry if shared by all features."""
        return self.log_period.exp() * self.units

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        self._check_lengths(X.shape[1])
        center = Z.detach().mean(0)
        own = self._circle(X - center)
        other = own if X is Z else self._circle(Z - center)
        return squared_exponential(own, other, X.new_ones(own.shape[1]), self.log_variance.to(X))

    def diag(self, X: Tensor) -> Tensor:
        return self.variance.to(X) * X.new_ones(len(X))

    def rescaled(self, x_shift: Tensor, x_scale: Tensor, y_scale: float) -> Kernel:
        _, scale, y_scale = check_change_of_units(x_shift, x_scale, y_scale)
        scale = self.select_features(scale)
        self._check_lengths(len(scale))
        log_factor, units = split_units(self.units, scale, self.log_period.numel())
        new = deepcopy(self)
        with torch.no_grad():
            new.log_variance.add_(2.0 * math.log(y_scale))
            new.log_period.add_(log_factor.to(new.log_period))
        new.units = units.to(self.units)
        return new

    def extra_repr(self) -> str:
        return self.arguments_repr(
            {"variance": self.variance, "lengthscales": self.lengthscales, "period": self.period}
        )

    def _circle(self, X: Tensor) -> Tensor:
        # |u(x) - u(z)|^2 / 2 = sum_d (1 - cos(w (x_d - z_d))) / l^2 = 2 sum_d sin^2(w (x_d - z_d) / 2) / l^2
        angle = X * (2.0 * math.pi / self.period.to(X))
        lengthscales = self.lengthscales.to(X)
        return torch.cat([angle.cos() / lengthscales, angle.sin() / lengthscales], dim=1)

    def _check_lengths(self, n_features: int) -> None:
        check_length("lengthscales", self.log_lengthscales, n_features)
        check_length("periods", self.log_period, n_features)


class Linear(Kernel):
    """k = sum_d variance_d (x_d - center_d) (z_d - center_d). Functions are planes.

    Parameters
    ----------
    variance : float or sequence of float, default=1.0
        Prior variance of the slope. One number is one learned parameter, shared by all columns.
    center : float or sequence of float, default=0.0
        Where the function is zero, in units of X. It is not learned.
    active_dims : sequence of int, default=None
        Columns that the kernel sees, counted from 0. None is all of them.

    Examples
    --------
    >>> import torch
    >>> from sparsegp import kernels
    >>> kernels.Linear(variance=2.0)(torch.tensor([[3.0]])).round().tolist()
    [[18.0]]
    """

    units: Tensor
    center: Tensor

    def __init__(
        self, variance: Values = 1.0, center: Values = 0.0, *, active_dims: Sequence[int] | None = None
    ) -> None:
        super().__init__(active_dims)
        self.log_variance = log_parameter("variance", variance)
        self.register_buffer("center", finite_vector("center", center))
        self.register_buffer("units", torch.ones(1, dtype=torch.float64))
        if self.active_dims is not None:
            self._check_lengths(len(self.active_dims))

    @property
    def variance(self) -> Tensor:
        """Prior variance of the slope; one entry if shared by all features."""
        return self.log_variance.exp() / self.units.square()

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        self._check_lengths(X.shape[1])
        center = self.center.to(X)
        return (X - center) * self.variance.to(X) @ (Z - center).T

    def diag(self, X: Tensor) -> Tensor:
        self._check_lengths(X.shape[1])
        return ((X - self.center.to(X)).square() * self.variance.to(X)).sum(1)

    def rescaled(self, x_shift: Tensor, x_scale: Tensor, y_scale: float) -> Kernel:
        shift, scale, y_scale = check_change_of_units(x_shift, x_scale, y_scale)
        shift, scale = self.select_features(shift), self.select_features(scale)
        self._check_lengths(len(scale))
        log_factor, units = split_units(self.units, scale, self.log_variance.numel())
        new = deepcopy(self)
        with torch.no_grad():
            new.log_variance.add_(2.0 * (math.log(y_scale) - log_factor.to(new.log_variance)))
        new.units = units.to(self.units)
        new.center = shift.to(self.center) + scale.to(self.center) * self.center
        return new

    def extra_repr(self) -> str:
        return self.arguments_repr({"variance": self.variance, "center": self.center})

    def _check_lengths(self, n_features: int) -> None:
        check_length("variances", self.log_variance, n_features)
        check_length("centers", self.center, n_features)


class Constant(Kernel):
    """k = variance, the same for every pair of rows. Functions are constants.

    Parameters
    ----------
    variance : float, default=1.0
        k(x, z), in squared units of y.
    active_dims : sequence of int, default=None
        Accepted as for other kernels. The covariance does not depend on it.

    Examples
    --------
    >>> import torch
    >>> from sparsegp import kernels
    >>> kernels.Constant(4.0)(torch.zeros(1, 3)).round().tolist()
    [[4.0]]
    """

    def __init__(self, variance: Values = 1.0, *, active_dims: Sequence[int] | None = None) -> None:
        super().__init__(active_dims)
        self.log_variance = log_scalar_parameter("variance", variance)

    @property
    def variance(self) -> Tensor:
        """k(x, z)."""
        return self.log_variance.exp()

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return self.variance.to(X) * X.new_ones(len(X), len(Z))

    def diag(self, X: Tensor) -> Tensor:
        return self.variance.to(X) * X.new_ones(len(X))

    def rescaled(self, x_shift: Tensor, x_scale: Tensor, y_scale: float) -> Kernel:
        _, _, y_scale = check_change_of_units(x_shift, x_scale, y_scale)
        new = deepcopy(self)
        with torch.no_grad():
            new.log_variance.add_(2.0 * math.log(y_scale))
        return new

    def extra_repr(self) -> str:
        return self.arguments_repr({"variance": self.variance})
