"""Shipped with the package: the dense oracle, and checks of kernels, approximations, engines, executors and rows."""

from sparsegp.testing.approximation_checks import check_approximation
from sparsegp.testing.engine_checks import check_engine
from sparsegp.testing.executor_checks import check_executor
from sparsegp.testing.kernel_checks import check_kernel
from sparsegp.testing.rows_checks import check_rows

__all__ = ["check_approximation", "check_engine", "check_executor", "check_kernel", "check_rows"]
