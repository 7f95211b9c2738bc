"""A model without its rows: the same hyper-parameters, inducing inputs, units and blocks, ready for other rows."""

from copy import copy
from typing import Any

from sparsegp.engines import recursive
from sparsegp.errors import InputError
from sparsegp.estimators.updating.kept_rows import KeptRows
from sparsegp.estimators.updating.stream_state import Streamed
from sparsegp.estimators.updating.streaming import StreamingMixin
from sparsegp.files.seen_batches import forget_batches


def emptied(model: Any) -> Any:
    """A copy that has seen no rows. What it learns from other rows can be merged into the model, exactly."""
    if not isinstance(model, StreamingMixin) or model.window is not None:
        raise InputError(
            "Only a SparseGPRegressor without a window can be filled with rows of its own and merged later; this is a "
            f"{type(model).__name__}."
        )
    held = model._streamed()
    kept = None if held.kept is None else KeptRows(tuple(group.take(slice(0, 0)) for group in held.kept.groups))
    fresh = copy(model)
    fresh._fitted = Streamed(held.kernel, held.noise_var, held.inducing, recursive.init(held.state.prior), kept)
    fresh._fit_rows, fresh._n_fit_rows, fresh.n_samples_seen_ = None, 0, 0
    forget_batches(fresh)
    return fresh
