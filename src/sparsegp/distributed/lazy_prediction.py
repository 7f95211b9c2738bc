"""Predictions of dask collections as dask arrays: computed when asked for, where the partitions are."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsegp import linalg
from sparsegp.distributed.connecting import dask_package


def lazy_predictions(estimator: Any, X: Any, *, return_std: bool, latent: bool) -> Any:
    """What `estimator.predict` gives of a dask DataFrame or Array, as dask arrays with its partitions."""
    dask = dask_package("dask")
    # one task with the model, however many partitions there are
    model = dask.delayed(estimator, traverse=False)
    parts = [
        dask_package("dask.array").from_delayed(
            dask.delayed(predicted)(model, part, return_std, latent), (n_rows, 1 + return_std), np.float64
        )
        for part, n_rows in _partitions(X)
    ]
    table = dask_package("dask.array").concatenate(parts, axis=0)
    return (table[:, 0], table[:, 1]) if return_std else table[:, 0]


def predicted(model: Any, part: Any, return_std: bool, latent: bool) -> NDArray[np.float64]:
    """Runs where the partition is: one column with the mean, and one with the standard deviation."""
    if len(part) == 0:
        return np.zeros((0, 1 + return_std))
    with linalg.flushed_denormals():
        found = model.predict(part, return_std=return_std, latent=latent)
    return np.column_stack(found if return_std else (found,))


def _partitions(X: Any) -> list[tuple[Any, float]]:
    """Each partition and the number of its rows, NaN where dask does not know it."""
    if type(X).__name__ != "Array":
        return [(part, math.nan) for part in X.to_delayed()]
    X = X.rechunk({1: -1})
    return list(zip(X.to_delayed().ravel(), X.chunks[0], strict=True))
