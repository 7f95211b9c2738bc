"""`partial_fit` of rows on workers: the statistics of every share, added to the model exactly."""

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from sparsegp.distributed import worker_tasks
from sparsegp.distributed.connecting import connected, worker_threads
from sparsegp.distributed.messages import PackedPrior
from sparsegp.distributed.rounds import READING_RETRIES, gathered, submit
from sparsegp.distributed.shares import placed
from sparsegp.engines import revision
from sparsegp.errors import InputError
from sparsegp.estimators.incoming import arrivals
from sparsegp.estimators.regressor import DTYPES, SparseGPRegressor
from sparsegp.estimators.updating.stream_state import RowSum
from sparsegp.parallel import packed
from sparsegp.sources import Source, open_source


def partial_fit(
    estimator: SparseGPRegressor,
    X: Any,
    y: Any = None,
    *,
    client: Any,
    noise_var: Any = None,
    sample_weight: Any = None,
    target: str | None = None,
) -> SparseGPRegressor:
    """What `estimator.partial_fit` does, with rows that are read and summed by workers; each is read once.

    For "pitc" and "block-pep" every partition, file or row group is one block.
    """
    _require_sums(estimator)
    features = None if target is None else arrivals.column_names(estimator)
    source = open_source(X, y, target=target, features=features, noise_var=noise_var, sample_weight=sample_weight)
    if source.n_features != estimator.n_features_in_:
        raise InputError(
            f"The data have {source.n_features} features, but the model was fitted with {estimator.n_features_in_}: "
            "give the columns of the first fit."
        )
    with connected(client) as cluster:
        found = _summed(cluster, estimator, source)
    if found.n_rows:
        _require_same_noise(estimator, found)
        _add(estimator, found)
    return estimator


def can_update(estimator: SparseGPRegressor) -> bool:
    """Whether rows need not come to this process: those of local models and of windows are kept in it."""
    return not estimator._row.is_local and estimator.window is None


def _require_sums(estimator: SparseGPRegressor) -> None:
    if not can_update(estimator):
        why = "window" if estimator.window is not None else f"approximation={estimator._row.name!r}"
        raise InputError(f"A model with {why} keeps its rows in this process: call partial_fit without client=.")
    estimator._streamed()


def _summed(client: Any, estimator: SparseGPRegressor, source: Source) -> RowSum:
    """Each share summed where it is read, the shares added in their order."""
    message = packed(PackedPrior.of(estimator._streamed().state.prior))
    homes = tuple(worker_threads(client))
    shares = placed(client, source, homes)
    units, dtype = estimator._standardizer, DTYPES[estimator.dtype]
    answers = gathered(
        client,
        [
            submit(client, worker_tasks.sum_of_share, mine, units, message, dtype, home=home, retries=READING_RETRIES)
            for mine, home in zip(shares, homes, strict=True)
        ],
    )
    for answer in answers:
        if isinstance(answer, InputError):
            raise answer
    parts: list[RowSum] = [answer.unpacked() for answer in answers]
    return reduce(RowSum.__add__, parts)


def _require_same_noise(estimator: SparseGPRegressor, found: RowSum) -> None:
    if (found.noise_total is not None) != estimator._known_noise:
        was = "was given the noise variance of each row" if estimator._known_noise else "learned one noise variance"
        raise InputError(
            f"The first fit {was}, so noise_var= must {'' if estimator._known_noise else 'not '}be given here."
        )


def _add(estimator: SparseGPRegressor, found: RowSum) -> None:
    streamed = estimator._streamed()
    if estimator.half_life is not None:
        factor = float(np.exp2(-found.n_rows / estimator.half_life))
        streamed = replace(streamed, state=revision.decay(streamed.state, factor))
    estimator._commit(streamed.with_sum(found), estimator._blocking, None, found.n_rows + found.n_weightless)
    estimator._warn_when_far()
