"""Which batches of rows a model has taken in, so that none is counted twice."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsegp.errors import InputError

ID_DIGITS = 32


def content_id(batches: Iterable[Sequence[NDArray[np.float64] | None]]) -> str:
    """An id for a batch that has no name of its own: a hash of its rows.

    Parameters
    ----------
    batches : the rows in their order, in one or more parts (X, y, ...). Where they are cut makes no difference.
    """
    digest = hashlib.sha256()
    for columns in batches:
        digest.update(np.column_stack([c for c in columns if c is not None]).astype(np.float64).tobytes())
    return digest.hexdigest()[:ID_DIGITS]


def batch_ids(model: Any) -> tuple[str, ...]:
    """Ids of the batches in a fitted model, in the order they were recorded; none after a new fit."""
    ids: tuple[str, ...] = model.fitted_.batches
    return ids


def record_batches(model: Any, *ids: str) -> None:
    """Note that these batches are in the model now. `save` writes the ids with the rows, in one step."""
    model.note_batches(*ids)


def require_disjoint(first: Any, second: Any) -> None:
    """Refuse two models that both hold a batch: together they would count it twice."""
    both = sorted(set(batch_ids(first)) & set(batch_ids(second)))
    if both:
        raise InputError(
            f"Both models hold batch {both[0]!r} ({len(both)} such batches): its rows would count twice. "
            "Merge models that were updated with different batches."
        )
