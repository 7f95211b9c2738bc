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
    Columns,
    Profile,
    covariance,
    squared_distance,
    squared_exponential,
)


class Stationary(Kernel):
    """k(x, z) = variance * profile(r^2).

    A single lengthscale is one learned parameter shared by all features; a vector is one for each of them. With
    `groups`, which have for each (active) feature the number of its group, counted from 0, a vector is one for each
    group: its features share it. So all pairs of levels of a category in one-hot coordinates have the same covariance.
    lengthscales = exp(log_lengthscales)[groups] * units; `units` keeps what is shared shared when `rescaled`.
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

    def _columns_onto(self, profile: Profile | None, Z: Tensor) -> Columns:
        own_Z = self.select(Z)
        dims = None if self.active_dims is None else list(self.active_dims)
        return Columns.build(profile, dims, own_Z, self._lengthscales_like(own_Z), self.log_variance.to(own_Z))

    def _lengthscales_like(self, X: Tensor) -> Tensor:
        lengthscales = self.lengthscales
        check_length("lengthscales", lengthscales, X.shape[1])
        return lengthscales.to(X).expand(X.shape[1])


class SquaredExponential(Stationary):
    """k = variance * exp(-r^2 / 2)."""

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return squared_exponential(X, Z, self._lengthscales_like(X), self.log_variance.to(X))

    def onto(self, Z: Tensor) -> Callable[[Tensor], Tensor]:
        return self._columns_onto(None, Z)


class Matern(Stationary):
    """k = variance * polynomial(s) exp(-s), s proportional to r."""

    profile: ClassVar[Profile]

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return covariance(self.profile, X, Z, self._lengthscales_like(X), self.log_variance.to(X))

    def onto(self, Z: Tensor) -> Callable[[Tensor], Tensor]:
        return self._columns_onto(self.profile, Z)


class Matern12(Matern):
    """k = variance * exp(-r)."""

    profile = MATERN12


class Matern32(Matern):
    """k = variance * (1 + s) exp(-s), s = sqrt(3) r."""

    profile = MATERN32


class Matern52(Matern):
    """k = variance * (1 + s + s^2 / 3) exp(-s), s = sqrt(5) r."""

    profile = MATERN52


class RationalQuadratic(Stationary):
    """k = variance * (1 + r^2 / (2 shape))^(-shape)."""

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
