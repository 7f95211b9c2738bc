"""Checks shipped with the package: the dense oracle and conformance checks for kernels and rows of the table."""

from sparsegp.testing.approximation_checks import check_approximation
from sparsegp.testing.kernel_checks import check_kernel

__all__ = ["check_approximation", "check_kernel"]
