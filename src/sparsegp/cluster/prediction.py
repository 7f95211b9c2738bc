"""Predictions where the rows are: of dask collections as dask arrays, and of many rows on workers at once."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsegp import linalg
from sparsegp.cluster.client import connected, dask_package, gathered, submit, worker_threads
from sparsegp.cluster.executor import all_threads
from sparsegp.cluster.shares import reading_explained
from sparsegp.core.predictive import Predictive
from sparsegp.data.tables import library_of
from sparsegp.errors import InputError
from sparsegp.parallel import packed, unpacked

Ask = Callable[[Predictive], tuple[NDArray[np.float64], ...]]


def lazy_predictions(estimator: Any, X: Any, latent: bool, n_columns: int, ask: Ask) -> Any:
    """Answers of the estimator's forecast of a dask DataFrame or Array, as a dask array with its partitions."""
    dask = dask_package()
    # one task with the model, however many partitions there are
    model = dask.delayed(estimator, traverse=False)
    parts = [
        dask.array.from_delayed(
            dask.delayed(predicted)(model, part, latent, n_columns, ask), (n_rows, n_columns), np.float64
        )
        for part, n_rows in _partitions(X)
    ]
    return dask.array.concatenate(parts, axis=0)


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


CHUNKS_PER_WORKER = 4


def predict(estimator: Any, X: Any, *, client: Any, return_std: bool = False, latent: bool = False) -> Any:
    """Predict on the workers of a cluster.

    Partitions of dask collections are predicted where they are. Only the predictions come back.

    Parameters
    ----------
    estimator : estimator
        A fitted model.
    X : array, table or dask collection
        The rows.
    client : dask Client, cluster or address
        Whose workers predict.
    return_std : bool, default=False
        Also return the standard deviation of each row.
    latent : bool, default=False
        Predict the noise-free function f instead of y.

    Returns
    -------
    mean : ndarray of shape (n_rows,)
        The predicted means.
    std : ndarray of shape (n_rows,)
        Only if `return_std` is True.

    Raises
    ------
    InputError
        If X cannot be used, or the cluster does not answer.
    """
    options = {"return_std": return_std, "latent": latent}
    with connected(client) as cluster:
        model = submit(cluster, unpacked, packed(estimator))
        asked = [submit(cluster, predictions_of, model, part, options) for part in _parts(cluster, X)]
        with reading_explained():
            answers = [answer for answer in gathered(cluster, asked) if answer is not None]
    if not answers:
        raise InputError("There are no rows to predict: every partition is empty.")
    if not return_std:
        return np.concatenate(answers)
    return tuple(np.concatenate(values) for values in zip(*answers, strict=True))


def _parts(client: Any, X: Any) -> list[Any]:
    """Futures of the partitions of a dask collection, or slices of what is in memory."""
    if library_of(X) == "dask":
        X = X.rechunk({1: -1}) if type(X).__name__ == "Array" else X
        return list(client.compute(list(np.ravel(X.to_delayed()))))
    n_chunks = CHUNKS_PER_WORKER * len(worker_threads(client))
    n_rows = len(X)
    cuts = [round(n_rows * k / n_chunks) for k in range(n_chunks + 1)]
    return [X[a:b] for a, b in pairwise(cuts) if b > a]


def predictions_of(model: Any, X: Any, options: dict[str, Any]) -> Any:
    """Runs on a worker: what the model's own `predict` gives; None for no rows."""
    with all_threads():
        return model.predict(X, **options) if len(X) else None
