"""Kernels from short names and from scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sparsegp.errors import InputError
from sparsegp.kernels.base import Kernel
from sparsegp.kernels.compose import Power, Product, Sum
from sparsegp.kernels.nonstationary import Constant, Linear, Periodic
from sparsegp.kernels.stationary import (
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
    SquaredExponential,
    Stationary,
)

NAMES: dict[str, type[Stationary]] = {
    "se": SquaredExponential,
    "rbf": SquaredExponential,
    "squared_exponential": SquaredExponential,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rq": RationalQuadratic,
}
MATERN = {0.5: Matern12, 1.5: Matern32, 2.5: Matern52, math.inf: SquaredExponential}
SUPPORTED = (
    "RBF, Matern (nu = 0.5, 1.5, 2.5 or inf), RationalQuadratic, ExpSineSquared, DotProduct, ConstantKernel, "
    "WhiteKernel as a term of the outermost sum, Sum, Product, Exponentiation (whole exponent)"
)


def get(name: str) -> type[Stationary]:
    """The kernel class with a short name.

    Parameters
    ----------
    name : str
        One of "se", "matern12", "matern32", "matern52" and "rq".

    Returns
    -------
    type
        The class.

    Raises
    ------
    InputError
        If no kernel has this name.

    Examples
    --------
    >>> from sparsegp import kernels
    >>> kernels.get("se").__name__
    'SquaredExponential'
    """
    if name not in NAMES:
        raise InputError(f"unknown kernel {name!r}; the names are {', '.join(map(repr, NAMES))}")
    return NAMES[name]


def as_kernel(spec: object) -> tuple[Kernel, float | None]:
    """(kernel, noise variance or None) from a short name, a Kernel or a scikit-learn kernel."""
    if isinstance(spec, str):
        return get(spec)(), None
    if isinstance(spec, Kernel):
        return spec, None
    if isinstance(spec, type) and issubclass(spec, Kernel):
        raise InputError(f"kernel must be an instance; got the class {spec.__name__}, give {spec.__name__}()")
    return from_sklearn(spec)


def from_sklearn(kernel: object) -> tuple[Kernel, float | None]:
    """A kernel of scikit-learn as a kernel of this package, and its noise variance.

    Bounds "fixed" are kept: the parameter is not learned. A term without a ConstantKernel starts with variance 1,
    which is learned. ConstantKernel(1.0, "fixed") * kernel keeps it at 1. ExpSineSquared on several columns becomes a
    product over columns, because scikit-learn's own formula is not a covariance there.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
        The kernel of scikit-learn.

    Returns
    -------
    kernel : Kernel
        The same covariance.
    noise_var : float or None
        The sum of the WhiteKernel terms of the outermost sum, or None if there are none.

    Raises
    ------
    InputError
        If a kernel has no equivalent here.
    """
    from sklearn.gaussian_process import kernels as sk

    if not isinstance(kernel, sk.Kernel):
        raise InputError(
            f"kernel must be one of the names {', '.join(map(repr, NAMES))}, a sparsegp Kernel "
            f"or a scikit-learn kernel; got {type(kernel).__name__}"
        )
    terms = _flat(kernel, sk.Sum)
    noises = [float(term.noise_level) for term in terms if isinstance(term, sk.WhiteKernel)]
    signals = [_convert(term, True) for term in terms if not isinstance(term, sk.WhiteKernel)]
    if not signals:
        raise InputError(f"{kernel!r} is noise only; add a kernel for the signal: RBF() + WhiteKernel()")
    converted = signals[0] if len(signals) == 1 else Sum(*signals)
    return converted, sum(noises) if noises else None


def _convert(kernel: Any, free_variance: bool) -> Kernel:
    """The same covariance; a variance that scikit-learn does not have is 1, and learned if free_variance."""
    from sklearn.gaussian_process import kernels as sk

    converters: dict[type, Callable[[Any, bool], Kernel]] = {
        sk.RBF: _convert_radial,
        sk.Matern: _convert_radial,
        sk.RationalQuadratic: _convert_rational_quadratic,
        sk.ExpSineSquared: _convert_periodic,
        sk.DotProduct: _convert_dot_product,
        sk.ConstantKernel: _convert_constant,
        sk.Sum: lambda k, free: Sum(*[_convert(term, free) for term in _flat(k, sk.Sum)]),
        sk.Product: lambda k, free: _convert_product(_flat(k, sk.Product), free),
        sk.Exponentiation: lambda k, free: Power(_convert(k.kernel, free), k.exponent),
    }
    if type(kernel) not in converters:
        raise InputError(f"cannot convert scikit-learn's {kernel!r}; supported are {SUPPORTED}")
    return converters[type(kernel)](kernel, free_variance)


def _convert_radial(kernel: Any, free_variance: bool) -> Kernel:
    nu = getattr(kernel, "nu", math.inf)
    if nu not in MATERN:
        raise InputError(f"cannot convert scikit-learn's {kernel!r} with nu={nu}; supported are {SUPPORTED}")
    new = MATERN[nu](lengthscales=kernel.length_scale)
    new.log_variance.requires_grad_(free_variance)
    new.log_lengthscales.requires_grad_(_is_free(kernel, "length_scale"))
    return new


def _convert_rational_quadratic(kernel: Any, free_variance: bool) -> Kernel:
    new = RationalQuadratic(lengthscales=kernel.length_scale, shape=kernel.alpha)
    new.log_variance.requires_grad_(free_variance)
    new.log_lengthscales.requires_grad_(_is_free(kernel, "length_scale"))
    new.log_shape.requires_grad_(_is_free(kernel, "alpha"))
    return new


def _convert_periodic(kernel: Any, free_variance: bool) -> Kernel:
    new = Periodic(lengthscales=kernel.length_scale, period=kernel.periodicity)
    new.log_variance.requires_grad_(free_variance)
    new.log_lengthscales.requires_grad_(_is_free(kernel, "length_scale"))
    new.log_period.requires_grad_(_is_free(kernel, "periodicity"))
    return new


def _convert_dot_product(kernel: Any, free_variance: bool) -> Kernel:
    slope = Linear()
    slope.log_variance.requires_grad_(free_variance)
    if kernel.sigma_0 == 0:
        return slope
    offset = Constant(kernel.sigma_0**2)
    offset.log_variance.requires_grad_(_is_free(kernel, "sigma_0"))
    return Sum(slope, offset)


def _convert_constant(kernel: Any, free_variance: bool) -> Kernel:
    new = Constant(kernel.constant_value)
    new.log_variance.requires_grad_(_is_free(kernel, "constant_value"))
    return new


def _convert_product(factors: list[Any], free_variance: bool) -> Kernel:
    """One variance for the whole product: its constants, carried by the first factor that has a variance."""
    from sklearn.gaussian_process import kernels as sk

    constants = [factor for factor in factors if isinstance(factor, sk.ConstantKernel)]
    others = [_convert(factor, False) for factor in factors if not isinstance(factor, sk.ConstantKernel)]
    variance = Constant(math.prod(float(constant.constant_value) for constant in constants))
    is_free = any(_is_free(c, "constant_value") for c in constants) if constants else free_variance
    variance.log_variance.requires_grad_(is_free)
    carrier = next((k for k in others if isinstance(k, Stationary | Periodic | Linear)), None)
    if carrier is None:
        return Product(variance, *others) if others else variance
    carrier.log_variance.data += variance.log_variance.data
    carrier.log_variance.requires_grad_(is_free)
    return others[0] if len(others) == 1 else Product(*others)


def _flat(kernel: Any, kind: Any) -> list[Any]:
    return _flat(kernel.k1, kind) + _flat(kernel.k2, kind) if isinstance(kernel, kind) else [kernel]


def _is_free(kernel: Any, name: str) -> bool:
    bounds = getattr(kernel, f"{name}_bounds")
    return not (isinstance(bounds, str) and bounds == "fixed")
