"""The contract of a covariance function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import SupportsFloat, SupportsIndex

import torch
from torch import Tensor

from sparsegp.errors import InputError
from sparsegp.kernels.parameters import format_values

DIAGONAL_ROWS = 128


class Kernel(torch.nn.Module):
    """A covariance k(x, z) of two rows, with its learned parameters. Base of every kernel.

    Your own kernel subclasses this and writes `forward(X, Z)`, the matrix [k(x_i, z_j)], in torch. It may add
    `diag(X)`, the vector [k(x_i, x_i)]. Both see the active columns only. Kernels add and multiply.

    Parameters
    ----------
    active_dims : sequence of int, default=None
        Columns that the kernel sees, counted from 0. None is all of them.

    Examples
    --------
    >>> import torch
    >>> from sparsegp import kernels
    >>> kernel = kernels.Matern32(lengthscales=2.0) + 0.5 * kernels.Linear(active_dims=[0])
    >>> kernel(torch.rand(5, 3, dtype=torch.float64)).shape
    torch.Size([5, 5])
    """

    __array_ufunc__ = None  # numpy_scalar * kernel comes to __rmul__

    def __init__(self, active_dims: Sequence[int] | None = None) -> None:
        super().__init__()
        self.active_dims = None if active_dims is None else _checked_dims(active_dims)

    def __call__(self, X: Tensor, Z: Tensor | None = None) -> Tensor:
        """Matrix [k(x_i, z_j)] in the dtype of X; Z = X if None."""
        own_X = self.select(X)
        own_Z = own_X if Z is None or Z is X else self.select(Z).to(own_X.dtype)
        K: Tensor = super().__call__(own_X, own_Z)
        return K.to(X.dtype)

    def onto(self, Z: Tensor) -> Callable[[Tensor], Tensor]:
        """A function of X that gives [k(x_i, z_j)] for one fixed Z.

        What depends on Z alone is computed once, where the kernel can. It is for values: gradients need not flow
        through it.

        Parameters
        ----------
        Z : Tensor of shape (m, n_features)
            The fixed rows.

        Returns
        -------
        callable
            From a tensor of shape (n, n_features) to one of shape (n, m).
        """
        return partial(self, Z=Z)

    def diagonal(self, X: Tensor) -> Tensor:
        """Variance of each row.

        Parameters
        ----------
        X : Tensor of shape (n, n_features)
            The rows.

        Returns
        -------
        Tensor of shape (n,)
            [k(x_i, x_i)], in the dtype of X.
        """
        return self.diag(self.select(X)).to(X.dtype)

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        """Covariances of the active columns. Every kernel defines this.

        Parameters
        ----------
        X : Tensor of shape (n, n_active)
            Rows, with the active columns only.
        Z : Tensor of shape (m, n_active)
            Other rows, with the active columns only.

        Returns
        -------
        Tensor of shape (n, m)
            [k(x_i, z_j)].
        """
        raise NotImplementedError(f"{type(self).__name__} must define forward(X, Z)")

    def diag(self, X: Tensor) -> Tensor:
        """Variances of the active columns. By default they come from small square blocks of `forward`.

        Parameters
        ----------
        X : Tensor of shape (n, n_active)
            Rows, with the active columns only.

        Returns
        -------
        Tensor of shape (n,)
            [k(x_i, x_i)].
        """
        return torch.cat([self.forward(rows, rows).diagonal() for rows in torch.split(X, DIAGONAL_ROWS)])

    def select(self, X: Tensor) -> Tensor:
        """The active columns of a matrix of rows."""
        if X.ndim != 2 or not X.is_floating_point():
            raise InputError(
                f"a kernel expects a floating-point matrix [rows, features]; got {X.dtype} of shape {tuple(X.shape)}"
            )
        return X if self.active_dims is None else X[:, self._columns(X.shape[1])]

    def select_features(self, values: Tensor) -> Tensor:
        """The active entries of a vector with one entry per feature."""
        return values if self.active_dims is None else values[self._columns(len(values))]

    def rescaled(self, x_shift: Tensor, x_scale: Tensor, y_scale: float) -> Kernel:
        """The same covariance in other units: k'(x', z') = y_scale^2 k(x, z), where x' = x_shift + x_scale x.

        Parameters
        ----------
        x_shift : Tensor of shape (n_features,)
            Added to each column.
        x_scale : Tensor of shape (n_features,)
            Factor of each column, not zero.
        y_scale : float
            Factor of y.

        Returns
        -------
        Kernel
            A new kernel.
        """
        from sparsegp.kernels.compose import Rescaled

        return Rescaled(self, x_shift, x_scale, y_scale)

    def __add__(self, other: Kernel | float) -> Kernel:
        """(k1 + k2)(x, z) = k1(x, z) + k2(x, z); a number stands for a constant kernel."""
        from sparsegp.kernels.compose import add

        return add(self, other)

    __radd__ = __add__

    def __mul__(self, other: Kernel | float) -> Kernel:
        """(k1 k2)(x, z) = k1(x, z) k2(x, z); a number multiplies the variance."""
        from sparsegp.kernels.compose import multiply

        return multiply(self, other)

    __rmul__ = __mul__

    def __pow__(self, exponent: int) -> Kernel:
        """(k^p)(x, z) = k(x, z)^p."""
        from sparsegp.kernels.compose import Power

        return Power(self, exponent)

    def extra_repr(self) -> str:
        """The arguments shown by repr: here the module's own parameters and its active columns."""
        return self.arguments_repr(dict(self.named_parameters(recurse=False)))

    def arguments_repr(self, values: dict[str, Tensor]) -> str:
        """`name=value, ...`, with active_dims where they are set."""
        parts = [f"{name}={format_values(value)}" for name, value in values.items()]
        if self.active_dims is not None:
            parts.append(f"active_dims={list(self.active_dims)}")
        return ", ".join(parts)

    def _columns(self, n_features: int) -> list[int]:
        dims = list(self.active_dims or ())
        if max(dims) >= n_features:
            raise InputError(f"active_dims={dims} needs at least {max(dims) + 1} features; the input has {n_features}")
        return dims


def _checked_dims(active_dims: Sequence[int]) -> tuple[int, ...]:
    dims = tuple(active_dims)
    whole = all(isinstance(d, SupportsIndex) and isinstance(d, SupportsFloat) for d in dims)
    if not dims or not whole or len(set(dims)) != len(dims) or min(dims) < 0:
        raise InputError(f"active_dims must be distinct column numbers counted from 0; got {active_dims!r}")
    return tuple(int(d) for d in dims)
