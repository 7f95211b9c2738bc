"""Model files to fitted estimators."""

import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsegp.errors import ModelFileError
from sparsegp.estimators import records
from sparsegp.estimators.committee_regressor import CommitteeGPRegressor
from sparsegp.estimators.heteroscedastic_regressor import HeteroscedasticGPRegressor
from sparsegp.estimators.sparse import SparseGPRegressor
from sparsegp.files import model_file
from sparsegp.kernels import Kernel

ESTIMATORS: Mapping[str, type[Any]] = {
    cls.kind: cls for cls in (SparseGPRegressor, HeteroscedasticGPRegressor, CommitteeGPRegressor)
}


def load(path: str | os.PathLike[str], *, kernels: Mapping[str, type[Kernel]] | None = None) -> Any:
    """The model that `save` wrote to a file, on the CPU. It predicts and takes updates as before.

    No code in the file is run: there is none. `kernels` gives the classes of kernels of your own, by name.
    """
    record = model_file.read(path)
    try:
        model = records.restore(record, ESTIMATORS, kernels or {})
        _try_out(model, record.scaling.input_mean)
    except Exception as error:
        # whatever a strange file provokes, the reader learns that it is the file
        raise model_file.unusable(path, error) from error
    return model


def _try_out(model: Any, row: np.ndarray[Any, Any]) -> None:
    """A file that loads predicts: one row, so that parts that do not fit together are found here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forecast = model.of_numbers().forecast(row[None])
    mean, var = forecast.mean, forecast.var  # a variance of Nystrom may be negative
    if not (mean.shape == var.shape == (1,)) or not (np.isfinite(mean).all() and np.isfinite(var).all()):
        raise ModelFileError(f"the prediction of one row came out as {mean} with variance {var}")
