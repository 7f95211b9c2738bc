"""Forward derivatives of a kernel: the whole matrix dK/dtheta for one parameter after the other.

Reverse mode gives sums over such matrices, the forward recursion of SRGP needs the matrices. "Shared" tangents belong
to the kernel's own parameters; the tangent of input dimension q holds dK_ij/du_jq, since column j depends on u_j alone.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.func import functional_call

from sparsegp.kernels import Kernel, SquaredExponential
from sparsegp.kernels.radial import squared_distance
from sparsegp.kernels.stationary import Matern

STENCIL_STEP = 2e-3

Function = Callable[[Tensor], Tensor]
Derivative = Callable[[Function, Tensor, Tensor], Tensor]
"""Of a function at a point along a direction."""


class KernelTangents(Protocol):
    """dK/dtheta for each entry of the kernel's parameters, in their order, then for each input dimension."""

    n_shared: int

    def covariance(self, X: Tensor, U: Tensor, n_tangents: int) -> tuple[Tensor, Iterator[Tensor]]:
        """K_xu, and its first `n_tangents` tangents one at a time; a tangent is overwritten when the next is asked."""

    def diagonal(self, X: Tensor) -> Tensor:
        """dk(x_i, x_i)/dtheta as [shared, rows]."""


def make_tangents(kernel: Kernel, U: Tensor) -> KernelTangents:
    """Closed forms for the stationary kernels, forward-mode autograd where the kernel has it, else differences.

    `U` are some rows that the kernel can be tried on.
    """
    if isinstance(kernel, SquaredExponential | Matern):
        return StationaryTangents(kernel)
    by_autograd = DirectionalTangents(kernel, forward_derivative)
    try:
        list(by_autograd.covariance(U[:1].detach(), U[:1].detach(), by_autograd.n_shared + U.shape[1])[1])
    except NotImplementedError:
        # torch's word for a custom autograd function (our Matern and distances, a user's own) without a jvp: whether a
        # composed kernel contains one shows only when it is evaluated
        return DirectionalTangents(kernel, difference_quotient)
    return by_autograd


class StationaryTangents:
    """K = variance * profile(r^2): every tangent is the slope dK/dr^2 times powers of x_q - u_q."""

    def __init__(self, kernel: SquaredExponential | Matern) -> None:
        self.kernel = kernel
        self.n_shared = sum(p.numel() for p in kernel.parameters())

    def covariance(self, X: Tensor, U: Tensor, n_tangents: int) -> tuple[Tensor, Iterator[Tensor]]:
        with torch.no_grad():
            K, slope = self._with_slope(self.kernel.select(X), self.kernel.select(U))
        return K, self._tangents(K, slope, X, U, n_tangents)

    def _with_slope(self, X: Tensor, U: Tensor) -> tuple[Tensor, Tensor]:
        """K and -2 dK/dr^2."""
        if isinstance(self.kernel, SquaredExponential):
            K = self.kernel.forward(X, U)
            return K, K
        profile, log_variance = self.kernel.profile, self.kernel.log_variance
        scales = self.kernel.lengthscales.expand(X.shape[1]) / profile.steepness**0.5
        K = squared_distance(X, U, scales)
        base = torch.empty_like(K)
        profile.fill(K, base, log_variance)
        return K, base.mul_(-2.0 * profile.slope * profile.steepness)

    @torch.no_grad()
    def _tangents(self, K: Tensor, slope: Tensor, X: Tensor, U: Tensor, n_tangents: int) -> Iterator[Tensor]:
        dims = list(self.kernel.active_dims or range(X.shape[1]))
        squared = self.kernel.lengthscales.square().expand(len(dims)).tolist()
        gap, tangent = torch.empty_like(K), torch.empty_like(K)

        def gaps(dim: int, scale_sq: float) -> Tensor:
            return torch.sub((X[:, dim, None] / scale_sq), U[:, dim] / scale_sq, out=gap)

        yield K
        by_lengthscale = list(zip(dims, squared, strict=True))
        if self.kernel.log_lengthscales.numel() == 1:
            total = tangent.zero_()
            for dim, scale_sq in by_lengthscale:
                total.addcmul_(gaps(dim, scale_sq).square_(), slope, value=scale_sq)
            yield total
        else:
            for dim, scale_sq in by_lengthscale:
                yield torch.mul(gaps(dim, scale_sq).square_().mul_(scale_sq), slope, out=tangent)
        scale_of = dict(by_lengthscale)
        for dim in range(n_tangents - self.n_shared):
            yield torch.mul(gaps(dim, scale_of[dim]), slope, out=tangent) if dim in scale_of else tangent.zero_()

    def diagonal(self, X: Tensor) -> Tensor:
        result = X.new_zeros(self.n_shared, len(X))
        result[0] = self.kernel.variance.detach()
        return result


class _Covariances(nn.Module):
    """Matrix or diagonal of a kernel, to be called with other values of its parameters."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, X: Tensor, U: Tensor | None) -> Tensor:
        return self.kernel.diagonal(X) if U is None else self.kernel(X, U)


class DirectionalTangents:
    """Tangents of any kernel from a rule for the derivative of a function of one tensor along a direction."""

    def __init__(self, kernel: Kernel, derivative: Derivative) -> None:
        self.covariances, self.derivative = _Covariances(kernel), derivative
        self.n_shared = sum(p.numel() for p in kernel.parameters())

    @torch.no_grad()
    def covariance(self, X: Tensor, U: Tensor, n_tangents: int) -> tuple[Tensor, Iterator[Tensor]]:
        return self.covariances(X, U), self._tangents(X, U, n_tangents)

    @torch.no_grad()
    def _tangents(self, X: Tensor, U: Tensor, n_tangents: int) -> Iterator[Tensor]:
        yield from self._shared(X, U)
        for dim in range(n_tangents - self.n_shared):
            direction = torch.zeros_like(U)
            direction[:, dim] = 1.0
            yield self.derivative(lambda moved: self.covariances(X, moved), U, direction)

    def _shared(self, X: Tensor, U: Tensor | None) -> Iterator[Tensor]:
        for name, parameter in self.covariances.named_parameters():
            for entry in range(parameter.numel()):
                direction = torch.zeros_like(parameter)
                direction.view(-1)[entry] = 1.0
                yield self.derivative(self._function_of(name, X, U), parameter.detach(), direction)

    def _function_of(self, name: str, X: Tensor, U: Tensor | None) -> Function:
        def evaluate(value: Tensor) -> Tensor:
            covariances: Tensor = functional_call(self.covariances, {name: value}, (X, U))
            return covariances

        return evaluate

    @torch.no_grad()
    def diagonal(self, X: Tensor) -> Tensor:
        parts = list(self._shared(X, None))
        return torch.stack(parts) if parts else X.new_zeros(0, len(X))


def forward_derivative(function: Function, at: Tensor, direction: Tensor) -> Tensor:
    """By forward-mode automatic differentiation."""
    with forward_ad.dual_level():
        value = function(forward_ad.make_dual(at, direction))
        tangent = forward_ad.unpack_dual(value).tangent
        return torch.zeros_like(value) if tangent is None else tangent.clone()


def difference_quotient(function: Function, at: Tensor, direction: Tensor) -> Tensor:
    """By central differences of fourth order, for kernels whose code has no forward derivative: about ten digits."""
    step = STENCIL_STEP * direction
    near = function(at + step) - function(at - step)
    far = function(at + 2.0 * step) - function(at - 2.0 * step)
    return near.mul_(8.0).sub_(far).div_(12.0 * STENCIL_STEP)
