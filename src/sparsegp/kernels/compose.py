"""Kernels made of kernels: sum, product, power, change of units."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from copy import deepcopy
from functools import reduce
from numbers import Real

import torch
from torch import Tensor

from sparsegp.errors import InputError
from sparsegp.kernels.base import Kernel
from sparsegp.kernels.nonstationary import Constant, Linear, Periodic
from sparsegp.kernels.parameters import check_change_of_units
from sparsegp.kernels.stationary import Stationary

SAME_UNITS = 1e-12


class Composite(Kernel):
    """Several kernels on the same rows; their active_dims count within those of the composite."""

    def __init__(self, *parts: Kernel, active_dims: Sequence[int] | None = None) -> None:
        super().__init__(active_dims)
        if not parts or not all(isinstance(part, Kernel) for part in parts):
            raise InputError(f"{type(self).__name__} expects kernels; got {parts!r}")
        self.parts = torch.nn.ModuleList(parts)

    @property
    def kernels(self) -> list[Kernel]:
        """The parts, in order."""
        return [part for part in self.parts if isinstance(part, Kernel)]

    def __repr__(self) -> str:
        arguments = ", ".join(repr(part) for part in self.kernels)
        active = "" if self.active_dims is None else f", active_dims={list(self.active_dims)}"
        return f"{type(self).__name__}({arguments}{active})"

    def _with_rescaled_parts(self, y_scales: dict[int, float], shift: Tensor, scale: Tensor) -> Kernel:
        """The same composite of rescaled parts; a part used twice stays one. y_scales: by id, 1 if absent."""
        shift, scale = self.select_features(shift), self.select_features(scale)
        unique = {id(part): part for part in self.kernels}
        new = {key: part.rescaled(shift, scale, y_scales.get(key, 1.0)) for key, part in unique.items()}
        return type(self)(*[new[id(part)] for part in self.kernels], active_dims=self.active_dims)


class Sum(Composite):
    """k(x, z) = sum of the parts. Written kernel + kernel.

    Parameters
    ----------
    *parts : Kernel
        The parts.
    active_dims : sequence of int, default=None
        Columns that the sum sees. Those of a part count within them.
    """

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return reduce(operator.add, [part(X, Z) for part in self.kernels])

    def diag(self, X: Tensor) -> Tensor:
        return reduce(operator.add, [part.diagonal(X) for part in self.kernels])

    def rescaled(self, x_shift: Tensor, x_scale: Tensor, y_scale: float) -> Kernel:
        shift, scale, y_scale = check_change_of_units(x_shift, x_scale, y_scale)
        return self._with_rescaled_parts({id(part): y_scale for part in self.kernels}, shift, scale)

    def __repr__(self) -> str:
        if self.active_dims is not None:
            return super().__repr__()
        return " + ".join(repr(part) for part in self.kernels)


class Product(Composite):
    """k(x, z) = product of the parts. Written kernel * kernel.

    Parameters
    ----------
    *parts : Kernel
        The parts.
    active_dims : sequence of int, default=None
        Columns that the product sees. Those of a part count within them.
    """

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return reduce(operator.mul, [part(X, Z) for part in self.kernels])

    def diag(self, X: Tensor) -> Tensor:
        return reduce(operator.mul, [part.diagonal(X) for part in self.kernels])

    def rescaled(self, x_shift: Tensor, x_scale: Tensor, y_scale: float) -> Kernel:
        """The first part takes y_scale; its p-th root if the part occurs p times."""
        shift, scale, y_scale = check_change_of_units(x_shift, x_scale, y_scale)
        first = self.kernels[0]
        occurrences = sum(part is first for part in self.kernels)
        return self._with_rescaled_parts({id(first): y_scale ** (1.0 / occurrences)}, shift, scale)

    def __repr__(self) -> str:
        if self.active_dims is not None:
            return super().__repr__()
        return " * ".join(_factor_repr(part) for part in self.kernels)


class Power(Kernel):
    """k(x, z) = base(x, z)^exponent. Written kernel ** exponent.

    Parameters
    ----------
    base : Kernel
        The kernel to raise.
    exponent : int
        A whole number, at least 1.
    active_dims : sequence of int, default=None
        Columns that the power sees. Those of the base count within them.
    """

    def __init__(self, base: Kernel, exponent: int, *, active_dims: Sequence[int] | None = None) -> None:
        super().__init__(active_dims)
        if isinstance(exponent, bool) or int(exponent) != exponent or exponent < 1:
            raise InputError(f"the exponent of a kernel must be a whole number >= 1; got {exponent!r}")
        self.base = base
        self.exponent = int(exponent)

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return self.base(X, Z).pow(self.exponent)

    def diag(self, X: Tensor) -> Tensor:
        return self.base.diagonal(X).pow(self.exponent)

    def rescaled(self, x_shift: Tensor, x_scale: Tensor, y_scale: float) -> Kernel:
        shift, scale, y_scale = check_change_of_units(x_shift, x_scale, y_scale)
        shift, scale = self.select_features(shift), self.select_features(scale)
        base = self.base.rescaled(shift, scale, y_scale ** (1.0 / self.exponent))
        return Power(base, self.exponent, active_dims=self.active_dims)

    def __repr__(self) -> str:
        if self.active_dims is not None:
            return f"Power({self.base!r}, {self.exponent}, active_dims={list(self.active_dims)})"
        inner = f"({self.base!r})" if isinstance(self.base, Product) else _factor_repr(self.base)
        return f"{inner} ** {self.exponent}"


class Rescaled(Kernel):
    """k'(x', z') = y_scale^2 k(x, z) with x = (x' - x_shift) / x_scale: any kernel, in other units.

    Parameters
    ----------
    kernel : Kernel
        The kernel, which is copied.
    x_shift : Tensor of shape (n_features,)
        Added to each column.
    x_scale : Tensor of shape (n_features,)
        Factor of each column, not zero.
    y_scale : float
        Factor of y.
    """

    x_shift: Tensor
    x_scale: Tensor

    def __init__(self, kernel: Kernel, x_shift: Tensor, x_scale: Tensor, y_scale: float) -> None:
        super().__init__()
        shift, scale, self.y_scale = check_change_of_units(x_shift, x_scale, y_scale)
        self.kernel = deepcopy(kernel)
        self.register_buffer("x_shift", shift)
        self.register_buffer("x_scale", scale)

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        own = self._original(X)
        return self.y_scale**2 * self.kernel(own, None if X is Z else self._original(Z))

    def diag(self, X: Tensor) -> Tensor:
        return self.y_scale**2 * self.kernel.diagonal(self._original(X))

    def rescaled(self, x_shift: Tensor, x_scale: Tensor, y_scale: float) -> Kernel:
        """One wrapper for both changes; none if the second undoes the first."""
        shift, scale, y_scale = check_change_of_units(x_shift, x_scale, y_scale)
        total_scale, total_shift = scale * self.x_scale.cpu(), scale * self.x_shift.cpu() + shift
        rounding = SAME_UNITS * ((scale * self.x_shift.cpu()).abs() + shift.abs())
        total_y_scale = y_scale * self.y_scale
        undone = ((total_scale - 1.0).abs() < SAME_UNITS) & (total_shift.abs() <= rounding)
        if bool(undone.all()) and abs(total_y_scale - 1.0) < SAME_UNITS:
            return deepcopy(self.kernel)
        return Rescaled(self.kernel, total_shift, total_scale, total_y_scale)

    def __repr__(self) -> str:
        return f"Rescaled({self.kernel!r}, y_scale={self.y_scale:.6g})"

    def _original(self, X: Tensor) -> Tensor:
        return (X - self.x_shift.to(X)) / self.x_scale.to(X)


def add(left: Kernel, right: Kernel | float) -> Kernel:
    """left + right as one flat Sum; a number is a constant kernel."""
    other = right if isinstance(right, Kernel) else _constant(right)
    return Sum(*_parts(left, Sum), *_parts(other, Sum))


def multiply(left: Kernel, right: Kernel | float) -> Kernel:
    """left * right as one flat Product; a number multiplies the variance of a copy, or is a constant part."""
    if isinstance(right, Kernel):
        return Product(*_parts(left, Product), *_parts(right, Product))
    factor = _constant(right)
    if not isinstance(left, Stationary | Periodic | Linear | Constant):
        return Product(factor, *_parts(left, Product))
    new = deepcopy(left)
    with torch.no_grad():
        new.log_variance.add_(factor.log_variance)
    return new


def _constant(value: object) -> Constant:
    if not isinstance(value, Real):
        raise InputError(f"a kernel combines with a kernel or a positive number; got {value!r}")
    return Constant(float(value))


def _parts(kernel: Kernel, kind: type[Composite]) -> list[Kernel]:
    return kernel.kernels if isinstance(kernel, kind) and kernel.active_dims is None else [kernel]


def _factor_repr(kernel: Kernel) -> str:
    bare_sum = isinstance(kernel, Sum) and kernel.active_dims is None
    return f"({kernel!r})" if bare_sum else repr(kernel)
