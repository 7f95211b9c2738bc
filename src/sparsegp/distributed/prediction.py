"""Predictions of many rows on workers."""

from itertools import pairwise
from typing import Any

import numpy as np

from sparsegp.distributed import worker_tasks
from sparsegp.distributed.connecting import connected, worker_threads
from sparsegp.distributed.rounds import gathered, submit
from sparsegp.errors import InputError
from sparsegp.estimators.predicting.predictions import GaussianPredictions
from sparsegp.parallel import packed, unpacked
from sparsegp.sources.tables import library_of

CHUNKS_PER_WORKER = 4


def predict(
    estimator: GaussianPredictions, X: Any, *, client: Any, return_std: bool = False, latent: bool = False
) -> Any:
    """What `estimator.predict` gives, computed on workers: X is an array, a table or a dask collection.

    Partitions of dask collections are predicted where they are; only the predictions come back.
    """
    options = {"return_std": return_std, "latent": latent}
    with connected(client) as cluster:
        model = submit(cluster, unpacked, packed(estimator))
        asked = [submit(cluster, worker_tasks.predictions_of, model, part, options) for part in _parts(cluster, X)]
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
