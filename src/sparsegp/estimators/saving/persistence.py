"""Fitted estimators to model files."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sparsegp import kernels
from sparsegp.estimators.families import Fitted
from sparsegp.estimators.saving.saved_types import ENUMS, RECORDS
from sparsegp.estimators.updating.batch_log import BatchLog
from sparsegp.io import model_file
from sparsegp.io.records import Encoder, plain
from sparsegp.kernels import Kernel
from sparsegp.local_posterior import LocalPosterior

TRANSIENT = ("_skl_callbacks", "_callback", "_parent_callback")


@dataclass(frozen=True)
class TableColumns:
    """Names of the columns a model was fitted with, when the rows came from a table."""

    features: tuple[str, ...]
    target: str


SAVED = (*RECORDS, plain(BatchLog), plain(TableColumns))


class PersistenceMixin:
    """Mixin: `save`."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file that `sparsegp.load` reads: data only, no code, no pickle.

        The file replaces an older one in a single step. It has no training rows unless predictions need them ("exact",
        "sod", "pic", "nystrom", exact or local experts of a committee) or the model forgets them later (`window`).
        """
        save(self, path)


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """`model.save(path)`."""
    check_is_fitted(model)
    model = model.plain()
    encoder = Encoder(SAVED, ENUMS)
    parameters = {name: _portable(name, value) for name, value in model.get_params(deep=False).items()}
    description = {
        "estimator": type(model).__name__,
        "package_version": _version(),
        "parameters": {name: encoder.encode(value) for name, value in parameters.items()},
        "state": {name: encoder.encode(value) for name, value in _state(model, parameters).items()},
    }
    model_file.write(path, description, encoder.tensors)


def _version() -> str:
    from importlib.metadata import version

    return version("sparsegp")


def _portable(name: str, value: Any) -> Any:
    """Parameters as data: scikit-learn kernels become kernels of this package, a random generator is not kept."""
    if name in ("kernel", "noise_kernel") and not isinstance(value, str | Kernel):
        return kernels.as_kernel(value)[0]
    if name in ("inducing", "noise_inducing") and not isinstance(value, str):
        return np.asarray(value, dtype=np.float64)
    return value if name != "random_state" or isinstance(value, int) else None


def _state(model: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """All that fitting has left behind."""
    state = {
        name: value for name, value in vars(model).items() if name not in parameters and not name.startswith(TRANSIENT)
    }
    fitted, kept = state.get("_fitted"), state.get("_fit_rows")
    if kept is not None and isinstance(fitted, Fitted) and isinstance(fitted.posterior, LocalPosterior):
        # the rows kept for updates are those of the posterior, block by block: written once
        state["_fitted"] = replace(fitted, posterior=replace(fitted.posterior, rows=kept))
    return state
