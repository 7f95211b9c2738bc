"""Predictions of dask collections as dask arrays: computed when asked for, where the partitions are."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsegp import linalg
from sparsegp.distributed.connecting import dask_package
from sparsegp.estimators.predictive import Predictive

Ask = Callable[[Predictive], tuple[NDArray[np.float64], ...]]


def lazy_predictions(estimator: Any, X: Any, latent: bool, n_columns: int, ask: Ask) -> Any:
    """Answers of the estimator's forecast of a dask DataFrame or Array, as a dask array with its partitions."""
    dask = dask_package("dask")
    # one task with the model, however many partitions there are
    model = dask.delayed(estimator, traverse=False)
    parts = [
        dask_package("dask.array").from_delayed(
            dask.delayed(predicted)(model, part, latent, n_columns, ask), (n_rows, n_columns), np.float64
        )
        for part, n_rows in _partitions(X)
    ]
    return dask_package("dask.array").concatenate(parts, axis=0)


def predicted(model: Any, part: Any, latent: bool, n_columns: int, ask: Ask) -> NDArray[np.float64]:
    """Runs where the partition is: the answers side by side, a line for each row."""
    if len(part) == 0:
        return np.zeros((0, n_columns))
    with linalg.flushed_denormals():
        return np.column_stack(ask(model.forecast(part, latent)))


def _partitions(X: Any) -> list[tuple[Any, float]]:
    """Each partition and the number of its rows, NaN where dask does not know it."""
    if type(X).__name__ != "Array":
        return [(part, math.nan) for part in X.to_delayed()]
    X = X.rechunk({1: -1})
    return list(zip(X.to_delayed().ravel(), X.chunks[0], strict=True))
