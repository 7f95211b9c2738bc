"""A model file as a record, whatever the version it was written in; and which batches of rows a model has taken in, so
that none is counted twice."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsegp.errors import InputError, ModelFileError
from sparsegp.files import container, read_v1, typed_json
from sparsegp.files.schema import Model

ID_DIGITS = 32
OWN_ROWS = 3
# Trees of version 2 from description and arrays of each version.
_TREES: Mapping[int, Callable[[dict[str, Any], container.Arrays], Any]] = {
    1: read_v1.translated,
    2: typed_json.with_arrays,
}


def read(path: str | os.PathLike[str]) -> Model:
    """The record of a file that is complete, unaltered, of a known version and of the right types."""
    description, arrays = container.read(path)
    tree = _TREES[description.pop("schema_version")]
    description.pop("package_version", None)
    try:
        return typed_json.build(Model, tree(description, arrays))
    except MemoryError:
        raise
    except Exception as error:
        # whatever a strange file provokes, the reader learns that it is the file
        raise unusable(path, error) from error


def write(path: str | os.PathLike[str], model: Model) -> None:
    description, arrays = typed_json.to_json(model)
    try:
        typed_json.from_json(Model, description, arrays)
    except ModelFileError as error:
        raise ModelFileError(
            f"The model would be refused when loaded: {error}. Look at info_ and fit again; the file was not written."
        ) from error
    container.write(path, {"package_version": _version(), **description}, arrays)


def own_rows(model: Model) -> NDArray[np.float64]:
    """Some rows among those that the model was made from, in the user's units: every honest model predicts there."""
    posteriors = [model.posterior] if model.committee is None else [e.posterior for e in model.committee.experts]
    scaling = model.scaling
    for posterior in posteriors:
        parts = () if posterior is None else (posterior.inducing, posterior.dense)
        for part in parts:
            if part is not None and len(part.inputs):
                rows: NDArray[np.float64] = scaling.input_mean + scaling.input_scale * part.inputs[:OWN_ROWS]
                return rows
    return scaling.input_mean[None]


def unusable(path: str | os.PathLike[str], error: Exception) -> ModelFileError:
    """What is said of a file whose content is not that of a model."""
    text = str(error).rstrip(".")
    reason = text if isinstance(error, ModelFileError) else f"its content is not that of a model ({text!r})"
    return ModelFileError(f"{path} cannot be used: {reason}.")


def _version() -> str:
    from importlib.metadata import version

    return version("sparsegp")


def content_id(batches: Iterable[Sequence[NDArray[np.float64] | None]]) -> str:
    """An id for a batch that has no name of its own: a hash of its rows.

    Parameters
    ----------
    batches : iterable of tuples of arrays
        The rows in their order, in one or more parts (X, y, ...). Where they are cut makes no difference.

    Returns
    -------
    str
        The id.

    Examples
    --------
    >>> import numpy as np
    >>> from sparsegp import files
    >>> X, y = np.zeros((4, 2)), np.ones(4)
    >>> files.content_id([(X, y)]) == files.content_id([(X[:1], y[:1]), (X[1:], y[1:])])
    True
    """
    digest = hashlib.sha256()
    for columns in batches:
        digest.update(np.column_stack([c for c in columns if c is not None]).astype(np.float64).tobytes())
    return digest.hexdigest()[:ID_DIGITS]


def batch_ids(model: Any) -> tuple[str, ...]:
    """Ids of the batches in a fitted model, in the order in which they were recorded.

    Parameters
    ----------
    model : estimator
        A fitted model.

    Returns
    -------
    tuple of str
        The ids. Empty after a new fit.
    """
    ids: tuple[str, ...] = model.fitted_.batches
    return ids


def record_batches(model: Any, *ids: str) -> None:
    """Note that batches are in the model now. `save` writes the ids together with the rows, in one step.

    Parameters
    ----------
    model : estimator
        A fitted model.
    *ids : str
        Ids of the batches.
    """
    model.note_batches(*ids)


def require_disjoint(first: Any, second: Any) -> None:
    """Refuse two models that both hold a batch: together they would count it twice.

    Parameters
    ----------
    first : estimator
        A fitted model.
    second : estimator
        Another one.

    Raises
    ------
    InputError
        If a batch is in both of them.
    """
    both = sorted(set(batch_ids(first)) & set(batch_ids(second)))
    if both:
        others = f" and {len(both) - 1} more" if len(both) > 1 else ""
        raise InputError(
            f"Both models hold the batch {both[0]!r}{others}: these rows would count twice. "
            "Merge a model with models of other rows, as `sparsegp update --separate` makes them."
        )
