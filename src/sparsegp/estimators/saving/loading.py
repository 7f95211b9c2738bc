"""Model files to fitted estimators."""

import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsegp.errors import ModelFileError
from sparsegp.estimators.committee import CommitteeGPRegressor
from sparsegp.estimators.heteroscedastic import HeteroscedasticGPRegressor
from sparsegp.estimators.regressor import SparseGPRegressor
from sparsegp.estimators.saving.persistence import SAVED
from sparsegp.estimators.saving.saved_types import ENUMS
from sparsegp.io import model_file
from sparsegp.io.records import Decoder
from sparsegp.kernels import Kernel

ESTIMATORS: Mapping[str, type[Any]] = {
    cls.__name__: cls for cls in (SparseGPRegressor, HeteroscedasticGPRegressor, CommitteeGPRegressor)
}


def load(path: str | os.PathLike[str], *, kernels: Mapping[str, type[Kernel]] | None = None) -> Any:
    """The model that `save` wrote to a file, on the CPU. It predicts and takes updates as before.

    No code in the file is run: there is none. `kernels` gives the classes of kernels of your own, by name.
    """
    description, tensors = model_file.read(path)
    try:
        model = _rebuilt(description, Decoder(SAVED, ENUMS, tensors, kernels or {}))
        _try_out(model)
    except Exception as error:
        # whatever a strange file provokes, the reader learns that it is the file
        raise ModelFileError(f"{path} cannot be used: {_reason(error)}.") from error
    return model


def _reason(error: Exception) -> str:
    text = str(error).rstrip(".")
    return text if isinstance(error, ModelFileError) else f"its content is not that of a model ({text!r})"


def _rebuilt(description: Mapping[str, Any], decoder: Decoder) -> Any:
    name = description["estimator"]
    if name not in ESTIMATORS:
        raise ModelFileError(f"it holds a {name!r}, which this version does not know; upgrade sparsegp")
    parameters = {key: decoder.decode(value) for key, value in description["parameters"].items()}
    if "device" in parameters:
        parameters["device"] = "cpu"
    model = ESTIMATORS[name](**parameters)
    for key, value in description["state"].items():
        if not key.isidentifier() or key.startswith("__") or key in vars(model) or callable(getattr(model, key, None)):
            raise ModelFileError(f"a model cannot have a value called {key!r}")
        setattr(model, key, decoder.decode(value))
    return model


def _try_out(model: Any) -> None:
    """A file that loads predicts: one row, so that parts that do not fit together are found here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mean = model.predict(np.array(model._standardizer.x_mean)[None])
    if mean.shape != (1,) or not np.isfinite(mean).all():
        raise ModelFileError(f"the prediction of one row came out as {mean}")
