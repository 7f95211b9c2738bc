"""Model files to fitted estimators."""

import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsegp import memory
from sparsegp.calibration.transform import before_carried
from sparsegp.errors import ModelFileError
from sparsegp.estimators import records
from sparsegp.estimators.committee_regressor import CommitteeGPRegressor
from sparsegp.estimators.heteroscedastic_regressor import HeteroscedasticGPRegressor
from sparsegp.estimators.sparse import SparseGPRegressor
from sparsegp.files import model_file
from sparsegp.files.schema import Model
from sparsegp.kernels import Kernel

ESTIMATORS: Mapping[str, type[Any]] = {
    cls.kind: cls for cls in (SparseGPRegressor, HeteroscedasticGPRegressor, CommitteeGPRegressor)
}


@memory.explained
def load(path: str | os.PathLike[str], *, kernels: Mapping[str, type[Kernel]] | None = None) -> Any:
    """Read a model that `save` wrote.

    The model is on the CPU. It predicts and takes updates as before. No code in the file is run, because there is
    none.

    Parameters
    ----------
    path : path
        The model file.
    kernels : mapping of str to Kernel class, default=None
        The classes of your own kernels, by name.

    Returns
    -------
    SparseGPRegressor, HeteroscedasticGPRegressor or CommitteeGPRegressor
        The fitted estimator.

    Raises
    ------
    ModelFileError
        If the file is not a model file, is damaged, or was written by a newer version.
    """
    record = model_file.read(path)
    try:
        model = records.restore(record, ESTIMATORS, kernels or {})
        _try_out(model, record)
    except MemoryError:
        raise
    except Exception as error:
        # whatever a strange file provokes, the reader learns that it is the file
        raise model_file.unusable(path, error) from error
    return model


def _try_out(model: Any, record: Model) -> None:
    """A file that loads predicts: rows of its own, so that parts that do not fit together are found here."""
    rows = model_file.own_rows(record)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forecast = before_carried(model.of_numbers().forecast(rows))
        mean, var = forecast.mean, forecast.var  # a variance of Nystrom may be negative
    if mean.shape != var.shape or len(mean) != len(rows) or not (np.isfinite(mean) & np.isfinite(var)).all():
        raise ModelFileError(f"the prediction of rows of its own came out as {mean} with variances {var}")
