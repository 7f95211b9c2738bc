"""Gaussian-process regression with honest uncertainty, from a hundred rows to more than fit into memory."""

import os
from importlib import import_module
from sys import modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsegp import files, kernels, metrics, report, serving
    from sparsegp.errors import (
        FactorizationError,
        FingerprintError,
        InputError,
        MissingPackageError,
        ModelFileError,
        OutputError,
        SparseGPError,
    )
    from sparsegp.estimators.committee_regressor import CommitteeGPRegressor
    from sparsegp.estimators.heteroscedastic_regressor import HeteroscedasticGPRegressor
    from sparsegp.estimators.loading import load
    from sparsegp.estimators.pipelines import wrap
    from sparsegp.estimators.sparse import SparseGPRegressor
    from sparsegp.fit.pipeline import Progress
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

# Names are imported when first asked for: the command line answers without waiting for torch.
_HOMES = {
    "CommitteeGPRegressor": "sparsegp.estimators.committee_regressor",
    "FactorizationError": "sparsegp.errors",
    "FingerprintError": "sparsegp.errors",
    "MemoryLimitError": "sparsegp.errors",
    "HeteroscedasticGPRegressor": "sparsegp.estimators.heteroscedastic_regressor",
    "InputError": "sparsegp.errors",
    "MissingPackageError": "sparsegp.errors",
    "ModelFileError": "sparsegp.errors",
    "OutputError": "sparsegp.errors",
    "Progress": "sparsegp.fit.pipeline",
    "SparseGPError": "sparsegp.errors",
    "SparseGPRegressor": "sparsegp.estimators.sparse",
    "load": "sparsegp.estimators.loading",
    "plan": "sparsegp.planning",
    "wrap": "sparsegp.estimators.pipelines",
}
_MODULES = ("files", "kernels", "metrics", "report", "serving")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(_imported(_HOMES[name]), name)
    elif name in _MODULES:
        value = _imported(f"sparsegp.{name}")
    elif name == "__version__":
        from importlib.metadata import version

        value = version("sparsegp")
    else:
        raise AttributeError(f"module 'sparsegp' has no attribute {name!r}")
    globals()[name] = value
    return value


def _imported(module: str) -> Any:
    """A module of this package. Most need torch, which an installation for predictions may lack."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from sparsegp.errors import NEEDS_TORCH, MissingPackageError

        raise MissingPackageError(NEEDS_TORCH) from error


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
