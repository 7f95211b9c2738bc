"""Which batches of rows a model has taken in, so that none is counted twice."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsegp.errors import InputError
from sparsegp.estimators.incoming.standardizer import Standardizer

ATTRIBUTE = "_batch_log"
ID_DIGITS = 32


@dataclass(frozen=True)
class BatchLog:
    """Ids of batches added since the fit that made `fit`: another fit starts another log."""

    fit: Standardizer
    ids: tuple[str, ...] = ()


def content_id(batches: Iterable[Sequence[NDArray[np.float64] | None]]) -> str:
    """A hash of rows in their order, given as batches (X, y, ...): where they are cut makes no difference."""
    digest = hashlib.sha256()
    for columns in batches:
        digest.update(np.column_stack([c for c in columns if c is not None]).astype(np.float64).tobytes())
    return digest.hexdigest()[:ID_DIGITS]


def batch_ids(model: Any) -> tuple[str, ...]:
    """Ids of the batches in a fitted model."""
    log = vars(model).get(ATTRIBUTE)
    return log.ids if isinstance(log, BatchLog) and log.fit is model._standardizer else ()


def record(model: Any, *ids: str) -> None:
    """Note that these batches are in the model now."""
    new = [batch for batch in dict.fromkeys(ids) if batch not in batch_ids(model)]
    setattr(model, ATTRIBUTE, BatchLog(model._standardizer, (*batch_ids(model), *new)))


def require_disjoint(first: Any, second: Any) -> None:
    """Two models that both hold a batch would count it twice together."""
    both = sorted(set(batch_ids(first)) & set(batch_ids(second)))
    if both:
        raise InputError(
            f"Both models hold batch {both[0]!r} ({len(both)} such batches): its rows would count twice. "
            "Merge models that were updated with different batches."
        )
