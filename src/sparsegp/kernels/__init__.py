"""Covariance functions: built in, combined with + and *, from scikit-learn, or your own subclass."""

from sparsegp.kernels.base import Kernel
from sparsegp.kernels.compose import Power, Product, Rescaled, Sum
from sparsegp.kernels.convert import as_kernel, from_sklearn, get
from sparsegp.kernels.nonstationary import Constant, Linear, Periodic
from sparsegp.kernels.sphere import GreatCircle
from sparsegp.kernels.stationary import (
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
    SquaredExponential,
    Stationary,
)

__all__ = [
    "Constant",
    "GreatCircle",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Power",
    "Product",
    "RationalQuadratic",
    "Rescaled",
    "SquaredExponential",
    "Stationary",
    "Sum",
    "as_kernel",
    "from_sklearn",
    "get",
]
