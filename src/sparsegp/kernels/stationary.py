"""Kernels of the scaled distance r^2 = sum_d (x_d - z_d)^2 / l_d^2."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import ClassVar

import torch
from torch import Tensor

from sparsegp.kernels.base import Kernel
from sparsegp.kernels.parameters import (
    Values,
    check_change_of_units,
    check_length,
    checked_groups,
    log_parameter,
    log_scalar_parameter,
    per_group,
    split_units,
)
from sparsegp.kernels.radial import (
    MATERN12,
    MATERN32,
    MATERN52,
    KernelColumns,
    Profile,
    covariance,
    squared_distance,
    squared_exponential,
)


class Stationary(Kernel):
    """Base of the kernels that depend on the scaled distance r alone: k(x, z) = variance * profile(r^2).

    The scaled distance is r^2 = sum_d (x_d - z_d)^2 / l_d^2, with lengthscales l_d.

    Parameters
    ----------
    variance : float, default=1.0
        k(x, x), in squared units of y.
    lengthscales : float or sequence of float, default=1.0
        Distance over which the function changes, in units of X. One number is shared by all columns. A sequence has
        one for each column, or for each group.
    active_dims : sequence of int, default=None
        Columns that the kernel sees, counted from 0. None is all of them.
    groups : sequence of int, default=None
        For each column that the kernel sees, the number of its group, counted from 0. Columns of a group share a
        lengthscale.
    """

    units: Tensor
    groups: tuple[int, ...] | None = None

    def __init__(
        self,
        variance: Values = 1.0,
        lengthscales: Values = 1.0,
        *,
        active_dims: Sequence[int] | None = None,
        groups: Sequence[int] | None = None,
    ) -> None:
        super().__init__(active_dims)
        self.log_variance = log_scalar_parameter("variance", variance)
        self.log_lengthscales = log_parameter("lengthscales", lengthscales)
        self.register_buffer("units", torch.ones(1, dtype=torch.float64))
        if groups is not None:
            self.groups = checked_groups(groups)
            self.log_lengthscales = per_group("lengthscales", self.log_lengthscales, self.groups)
        if self.active_dims is not None:
            check_length("lengthscales", self.lengthscales, len(self.active_dims))

    @property
    def variance(self) -> Tensor:
        """k(x, x)."""
        return self.log_variance.exp()

    @property
    def lengthscales(self) -> Tensor:
        """One entry if shared by all features, otherwise one for each."""
        learned = self.log_lengthscales.exp()
        return (learned if self.groups is None else learned[list(self.groups)]) * self.units

    def diag(self, X: Tensor) -> Tensor:
        return self.variance.to(X) * X.new_ones(len(X))

    def rescaled(self, x_shift: Tensor, x_scale: Tensor, y_scale: float) -> Kernel:
        _, scale, y_scale = check_change_of_units(x_shift, x_scale, y_scale)
        scale = self.select_features(scale)
        check_length("lengthscales", self.lengthscales, len(scale))
        log_factor, units = split_units(self.units, scale, self.log_lengthscales.numel(), self.groups)
        new = deepcopy(self)
        with torch.no_grad():
            new.log_variance.add_(2.0 * math.log(y_scale))
            new.log_lengthscales.add_(log_factor.to(new.log_lengthscales))
        new.units = units.to(self.units)
        return new

    def extra_repr(self) -> str:
        return self._arguments_repr({})

    def _arguments_repr(self, more: dict[str, Tensor]) -> str:
        """Lengthscales as they would be given: of each group, unless units differ within groups."""
        shown = self.lengthscales if self.units.numel() > 1 else self.log_lengthscales.exp() * self.units
        text = self.arguments_repr({"variance": self.variance, "lengthscales": shown, **more})
        return text if self.groups is None else f"{text}, groups={list(self.groups)}"

    def _columns_onto(self, profile: Profile | None, Z: Tensor) -> KernelColumns:
        own_Z = self.select(Z)
        dims = None if self.active_dims is None else list(self.active_dims)
        return KernelColumns.build(profile, dims, own_Z, self._lengthscales_like(own_Z), self.log_variance.to(own_Z))

    def _lengthscales_like(self, X: Tensor) -> Tensor:
        lengthscales = self.lengthscales
        check_length("lengthscales", lengthscales, X.shape[1])
        return lengthscales.to(X).expand(X.shape[1])


class SquaredExponential(Stationary):
    """k = variance * exp(-r^2 / 2). Functions are very smooth.

    Parameters
    ----------
    variance : float, default=1.0
        k(x, x), in squared units of y.
    lengthscales : float or sequence of float, default=1.0
        Distance over which the function changes, in units of X. One number is shared by all columns. A sequence has
        one for each column, or for each group.
    active_dims : sequence of int, default=None
        Columns that the kernel sees, counted from 0. None is all of them.
    groups : sequence of int, default=None
        For each column that the kernel sees, the number of its group, counted from 0. Columns of a group share a
        lengthscale.

    Examples
    --------
    >>> import torch
    >>> from sparsegp import kernels
    >>> kernel = kernels.SquaredExponential(variance=2.0, lengthscales=[1.0, 10.0])
    >>> X = torch.zeros(1, 2, dtype=torch.float64)
    >>> kernel(X).tolist()
    [[2.0]]
    """

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return squared_exponential(X, Z, self._lengthscales_like(X), self.log_variance.to(X))

    def onto(self, Z: Tensor) -> Callable[[Tensor], Tensor]:
        return self._columns_onto(None, Z)


class Matern(Stationary):
    """Base of the Matern kernels: k = variance * polynomial(s) exp(-s), with s proportional to r.

    Parameters
    ----------
    variance : float, default=1.0
        k(x, x), in squared units of y.
    lengthscales : float or sequence of float, default=1.0
        Distance over which the function changes, in units of X. One number is shared by all columns. A sequence has
        one for each column, or for each group.
    active_dims : sequence of int, default=None
        Columns that the kernel sees, counted from 0. None is all of them.
    groups : sequence of int, default=None
        For each column that the kernel sees, the number of its group, counted from 0. Columns of a group share a
        lengthscale.
    """

    profile: ClassVar[Profile]

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return covariance(self.profile, X, Z, self._lengthscales_like(X), self.log_variance.to(X))

    def onto(self, Z: Tensor) -> Callable[[Tensor], Tensor]:
        return self._columns_onto(self.profile, Z)


class Matern12(Matern):
    """k = variance * exp(-r). Functions are continuous but jagged.

    Parameters
    ----------
    variance : float, default=1.0
        k(x, x), in squared units of y.
    lengthscales : float or sequence of float, default=1.0
        Distance over which the function changes, in units of X. One number is shared by all columns. A sequence has
        one for each column, or for each group.
    active_dims : sequence of int, default=None
        Columns that the kernel sees, counted from 0. None is all of them.
    groups : sequence of int, default=None
        For each column that the kernel sees, the number of its group, counted from 0. Columns of a group share a
        lengthscale.

    Examples
    --------
    >>> import torch
    >>> from sparsegp import kernels
    >>> kernel = kernels.Matern12(variance=2.0, lengthscales=[1.0, 10.0])
    >>> X = torch.zeros(1, 2, dtype=torch.float64)
    >>> kernel(X).tolist()
    [[2.0]]
    """

    profile = MATERN12


class Matern32(Matern):
    """k = variance * (1 + s) exp(-s), with s = sqrt(3) r. Functions have slopes, but are rough in detail.

    Parameters
    ----------
    variance : float, default=1.0
        k(x, x), in squared units of y.
    lengthscales : float or sequence of float, default=1.0
        Distance over which the function changes, in units of X. One number is shared by all columns. A sequence has
        one for each column, or for each group.
    active_dims : sequence of int, default=None
        Columns that the kernel sees, counted from 0. None is all of them.
    groups : sequence of int, default=None
        For each column that the kernel sees, the number of its group, counted from 0. Columns of a group share a
        lengthscale.

    Examples
    --------
    >>> import torch
    >>> from sparsegp import kernels
    >>> kernel = kernels.Matern32(variance=2.0, lengthscales=[1.0, 10.0])
    >>> X = torch.zeros(1, 2, dtype=torch.float64)
    >>> kernel(X).tolist()
    [[2.0]]
    """

    profile = MATERN32


class Matern52(Matern):
    """k = variance * (1 + s + s^2 / 3) exp(-s), with s = sqrt(5) r. Functions are smooth.

    Parameters
    ----------
    variance : float, default=1.0
        k(x, x), in squared units of y.
    lengthscales : float or sequence of float, default=1.0
        Distance over which the function changes, in units of X. One number is shared by all columns. A sequence has
        one for each column, or for each group.
    active_dims : sequence of int, default=None
        Columns that the kernel sees, counted from 0. None is all of them.
    groups : sequence of int, default=None
        For each column that the kernel sees, the number of its group, counted from 0. Columns of a group share a
        lengthscale.

    Examples
    --------
    >>> import torch
    >>> from sparsegp import kernels
    >>> kernel = kernels.Matern52(variance=2.0, lengthscales=[1.0, 10.0])
    >>> X = torch.zeros(1, 2, dtype=torch.float64)
    >>> kernel(X).tolist()
    [[2.0]]
    """

    profile = MATERN52


class RationalQuadratic(Stationary):
    """k = variance * (1 + r^2 / (2 shape))^(-shape). Functions change slowly and quickly at the same time.

    Parameters
    ----------
    variance : float, default=1.0
        k(x, x), in squared units of y.
    lengthscales : float or sequence of float, default=1.0
        Distance over which the function changes, in units of X. One number is shared by all columns. A sequence has
        one for each column, or for each group.
    shape : float, default=1.0
        The power with which the covariance decays. Large values approach the squared exponential.
    active_dims : sequence of int, default=None
        Columns that the kernel sees, counted from 0. None is all of them.
    groups : sequence of int, default=None
        For each column that the kernel sees, the number of its group, counted from 0. Columns of a group share a
        lengthscale.

    Examples
    --------
    >>> import torch
    >>> from sparsegp import kernels
    >>> kernel = kernels.RationalQuadratic(variance=2.0, lengthscales=[1.0, 10.0])
    >>> X = torch.zeros(1, 2, dtype=torch.float64)
    >>> kernel(X).tolist()
    [[2.0]]
    """

    def __init__(
        self,
        variance: Values = 1.0,
        lengthscales: Values = 1.0,
        shape: Values = 1.0,
        *,
        active_dims: Sequence[int] | None = None,
        groups: Sequence[int] | None = None,
    ) -> None:
        super().__init__(variance, lengthscales, active_dims=active_dims, groups=groups)
        self.log_shape = log_scalar_parameter("shape", shape)

    @property
    def shape(self) -> Tensor:
        """The power with which the covariance decays; large values approach the squared exponential."""
        return self.log_shape.exp()

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        shape = self.shape.to(X)
        r2 = squared_distance(X, Z, self._lengthscales_like(X))
        return torch.exp(self.log_variance.to(X) - shape * torch.log1p(r2 / (2.0 * shape)))

    def extra_repr(self) -> str:
        return self._arguments_repr({"shape": self.shape})
