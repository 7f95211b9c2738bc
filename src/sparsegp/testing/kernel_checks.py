"""What every kernel must satisfy, the built-in ones and yours."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sparsegp.kernels.base import Kernel

STEP = 1e-5
DIRECTIONS = 2


def check_kernel(kernel: Kernel, n_features: int, *, seed: int = 0) -> None:
    """Check a kernel of your own.

    Checked are shape, symmetry, positive semi-definite matrices, the diagonal, gradients of the parameters and of both
    inputs against central differences, finite gradients at coincident rows, float32, inputs left unchanged, copies and
    `rescaled`. Pickling is checked where the kernel's classes can be imported by name.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    n_features : int
        Number of columns that it sees.
    seed : int, default=0
        Seed of the rows that it is tried on.

    Raises
    ------
    AssertionError
        If the kernel lacks a property. The message names the first one.
    """
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(12, n_features, dtype=torch.float64, generator=generator)
    Z = torch.randn(7, n_features, dtype=torch.float64, generator=generator)
    kernel = copy.deepcopy(kernel)
    for check in (_inputs, _matrix, _diagonal, _float32, _copies, _rescaling, _coincident_gradients):
        check(kernel, X, Z)
    _gradients(kernel, X, Z, generator)


def _expect(holds: bool, name: str, detail: str) -> None:
    if not holds:
        raise AssertionError(f"kernel check '{name}' failed: {detail}")


def _expect_close(actual: Tensor, expected: Tensor, name: str, tolerance: float, floor: float = 0.0) -> None:
    scale = max(float(expected.detach().abs().max()), floor) or 1.0
    error = float((actual - expected).detach().abs().max()) / scale
    _expect(error <= tolerance, name, f"relative difference {error:.2e} is above {tolerance:.0e}")


def _inputs(kernel: Kernel, X: Tensor, Z: Tensor) -> None:
    own_X, own_Z = X.clone(), Z.clone()
    with torch.no_grad():
        kernel(own_X, own_Z)
        kernel.diagonal(own_X)
    unchanged = torch.equal(own_X, X) and torch.equal(own_Z, Z)
    _expect(unchanged, "inputs unchanged", "the kernel wrote into X or Z")


def _matrix(kernel: Kernel, X: Tensor, Z: Tensor) -> None:
    with torch.no_grad():
        K, cross = kernel(X), kernel(X, Z)
    _expect(K.shape == (len(X), len(X)), "shape", f"K(X) has shape {tuple(K.shape)} for {len(X)} rows")
    expected = (len(X), len(Z))
    _expect(cross.shape == expected, "shape", f"K(X, Z) has shape {tuple(cross.shape)} instead of {expected}")
    _expect(bool(torch.isfinite(cross).all()), "finite values", "K(X, Z) has NaN or infinite entries")
    _expect_close(K, K.T, "symmetry", 1e-12)
    with torch.no_grad():
        _expect_close(kernel(Z, X).T, cross, "symmetry of K(X, Z) and K(Z, X)", 1e-10)
        _expect_close(kernel(X, X.clone()), K, "K(X) equals K(X, copy of X)", 1e-10)
    eigenvalues = np.linalg.eigvalsh(K.numpy())
    detail = f"eigenvalues of K(X) reach from {eigenvalues[0]:.2e} to {eigenvalues[-1]:.2e}"
    _expect(eigenvalues[0] > -1e-10 * abs(eigenvalues[-1]), "positive semi-definite", detail)


def _diagonal(kernel: Kernel, X: Tensor, Z: Tensor) -> None:
    diagonal = kernel.diagonal(X)
    _expect(diagonal.shape == (len(X),), "diagonal", f"shape {tuple(diagonal.shape)} for {len(X)} rows")
    _expect_close(diagonal, kernel(X).diagonal(), "diagonal equals the diagonal of K(X)", 1e-10)
    weights = torch.linspace(-1.0, 2.0, len(X), dtype=X.dtype)
    direct = _parameter_gradients(kernel, (weights * diagonal).sum())
    full = _parameter_gradients(kernel, (weights * kernel(X).diagonal()).sum())
    size = float(diagonal.detach().abs().sum())
    for name, gradient in direct.items():
        _expect_close(gradient, full[name], f"gradient of the diagonal for '{name}'", 1e-8, floor=size)


def _float32(kernel: Kernel, X: Tensor, Z: Tensor) -> None:
    try:
        with torch.no_grad():
            K, diagonal = kernel(X.float(), Z.float()), kernel.diagonal(X.float())
    except RuntimeError as error:
        raise AssertionError(f"kernel check 'float32' failed: float32 rows raise {error}") from error
    both = K.dtype == diagonal.dtype == torch.float32
    _expect(both, "float32", f"float32 rows give {K.dtype} and a diagonal of {diagonal.dtype}")
    with torch.no_grad():
        _expect_close(K.double(), kernel(X, Z), "float32 agrees with float64", 1e-3)


def _copies(kernel: Kernel, X: Tensor, Z: Tensor) -> None:
    with torch.no_grad():
        K = kernel(X, Z)
        _expect_close(copy.deepcopy(kernel)(X, Z), K, "deepcopy", 0.0)
        if all(_importable(type(module)) for module in kernel.modules()):
            _expect_close(pickle.loads(pickle.dumps(kernel))(X, Z), K, "pickle", 0.0)


def _importable(cls: type) -> bool:
    found: object = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


def _rescaling(kernel: Kernel, X: Tensor, Z: Tensor) -> None:
    shift = torch.linspace(-3.0, 2.0, X.shape[1], dtype=torch.float64)
    scale = torch.linspace(0.3, 2.5, X.shape[1], dtype=torch.float64)
    new = kernel.rescaled(shift, scale, 1.7)
    back = new.rescaled(-shift / scale, 1.0 / scale, 1.0 / 1.7)
    with torch.no_grad():
        moved = new(shift + scale * X, shift + scale * Z)
        _expect_close(moved, 1.7**2 * kernel(X, Z), "rescaled is the same covariance in new units", 1e-9)
        _expect_close(back(X, Z), kernel(X, Z), "rescaled there and back", 1e-9)
    old, restored = dict(kernel.named_parameters()), dict(back.named_parameters())
    _expect(old.keys() == restored.keys(), "rescaled there and back", f"parameters are {list(restored)}")
    for name, parameter in old.items():
        _expect_close(restored[name], parameter, f"rescaled there and back, parameter '{name}'", 1e-9)
        same_flag = restored[name].requires_grad == parameter.requires_grad
        _expect(same_flag, "rescaled keeps requires_grad", f"it changed for '{name}'")


def _coincident_gradients(kernel: Kernel, X: Tensor, Z: Tensor) -> None:
    rows = torch.cat([X, X[:3]]).requires_grad_()
    same = (kernel(rows) * torch.arange(1.0, 1.0 + len(rows), dtype=rows.dtype)).sum()
    apart = kernel(rows, rows.detach().clone()).square().sum()
    for value in (same, apart):
        gradients = {"X": _gradient(value, rows), **_parameter_gradients(kernel, value)}
        for name, gradient in gradients.items():
            finite = bool(torch.isfinite(gradient).all())
            _expect(finite, "gradients at coincident rows", f"gradient of '{name}' is not finite")


def _gradients(kernel: Kernel, X: Tensor, Z: Tensor, generator: torch.Generator) -> None:
    weights = torch.randn(len(X), len(Z), dtype=torch.float64, generator=generator)
    X, Z = X.clone().requires_grad_(), Z.clone().requires_grad_()

    def value() -> Tensor:
        return (weights * kernel(X, Z)).sum()

    learned = {name: p for name, p in kernel.named_parameters() if p.requires_grad}
    for name, tensor in {**learned, "X": X, "Z": Z}.items():
        gradient = _gradient(value(), tensor)
        for _ in range(DIRECTIONS):
            direction = torch.randn(tensor.shape, dtype=torch.float64, generator=generator).to(tensor.dtype)
            _expect_slope(value, tensor, direction, gradient, f"gradient of '{name}'")


def _expect_slope(value: Callable[[], Tensor], tensor: Tensor, direction: Tensor, gradient: Tensor, name: str) -> None:
    original = tensor.detach().clone()
    with torch.no_grad():
        tensor.copy_(original + STEP * direction)
        above = float(value())
        tensor.copy_(original - STEP * direction)
        below = float(value())
        tensor.copy_(original)
        numeric, exact = (above - below) / (2.0 * STEP), float((gradient * direction).sum())
        scale = float(gradient.norm() * direction.norm()) + abs(float(value()))
    detail = f"slope {exact:.9g}, central difference {numeric:.9g}"
    _expect(abs(numeric - exact) <= 1e-6 * scale + 1e-9, name, detail)


def _gradient(value: Tensor, tensor: Tensor) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(tensor)
    (gradient,) = torch.autograd.grad(value, [tensor], retain_graph=True, allow_unused=True)
    return torch.zeros_like(tensor) if gradient is None else gradient


def _parameter_gradients(kernel: Kernel, value: Tensor) -> dict[str, Tensor]:
    learned = {name: p for name, p in kernel.named_parameters() if p.requires_grad}
    return {name: _gradient(value, parameter) for name, parameter in learned.items()}
