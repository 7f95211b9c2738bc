"""Gaussian-process regression with honest uncertainty, for data that do not fit the textbook."""

from importlib.metadata import version

from sparsegp import kernels, metrics
from sparsegp.errors import FactorizationError, FingerprintError, InputError, SparseGPError
from sparsegp.estimators.regressor import SparseGPRegressor

__version__ = version("sparsegp")

__all__ = [
    "FactorizationError",
    "FingerprintError",
    "InputError",
    "SparseGPError",
    "SparseGPRegressor",
    "kernels",
    "metrics",
]
