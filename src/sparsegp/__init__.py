"""Gaussian-process regression with honest uncertainty, from a hundred rows to more than fit into memory."""

import os
from sys import modules
from typing import TYPE_CHECKING, Any

from sparsegp.errors import (
    NEEDS_TORCH,
    FactorizationError,
    FingerprintError,
    InputError,
    MemoryLimitError,
    MissingPackageError,
    ModelFileError,
    OutputError,
    SparseGPError,
)

if TYPE_CHECKING:
    from sparsegp import files, kernels, metrics, report, serving
    from sparsegp.estimators.committee_regressor import CommitteeGPRegressor
    from sparsegp.estimators.heteroscedastic_regressor import HeteroscedasticGPRegressor
    from sparsegp.estimators.loading import load
    from sparsegp.estimators.pipelines import wrap
    from sparsegp.estimators.sparse import SparseGPRegressor
    from sparsegp.fit.progress import Progress
    from sparsegp.planning import plan

    __version__: str

__all__ = [
    "CommitteeGPRegressor",
    "FactorizationError",
    "FingerprintError",
    "HeteroscedasticGPRegressor",
    "InputError",
    "MemoryLimitError",
    "MissingPackageError",
    "ModelFileError",
    "OutputError",
    "Progress",
    "SparseGPError",
    "SparseGPRegressor",
    "files",
    "kernels",
    "load",
    "metrics",
    "plan",
    "report",
    "serving",
    "wrap",
]

# Threads that wait for each other sleep (decisions/0021). OpenMP reads this when torch is loaded; afterwards it would
# tell other processes only, and sparsegp.parallel has another way.
if "torch" not in modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def __getattr__(name: str) -> Any:
    """Names are imported when first asked for: the command line answers without waiting for torch."""
    try:
        value = _imported(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingPackageError(NEEDS_TORCH) from error
    globals()[name] = value
    return value


def _imported(name: str) -> Any:
    value: Any
    match name:
        case "CommitteeGPRegressor":
            from sparsegp.estimators.committee_regressor import CommitteeGPRegressor as value
        case "HeteroscedasticGPRegressor":
            from sparsegp.estimators.heteroscedastic_regressor import HeteroscedasticGPRegressor as value
        case "SparseGPRegressor":
            from sparsegp.estimators.sparse import SparseGPRegressor as value
        case "load":
            from sparsegp.estimators.loading import load as value
        case "wrap":
            from sparsegp.estimators.pipelines import wrap as value
        case "Progress":
            from sparsegp.fit.progress import Progress as value
        case "plan":
            from sparsegp.planning import plan as value
        case "files":
            import sparsegp.files as value
        case "kernels":
            import sparsegp.kernels as value
        case "metrics":
            import sparsegp.metrics as value
        case "report":
            import sparsegp.report as value
        case "serving":
            import sparsegp.serving as value
        case "__version__":
            from importlib.metadata import version

            value = version("sparsegp")
        case _:
            raise AttributeError(f"module 'sparsegp' has no attribute {name!r}")
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
