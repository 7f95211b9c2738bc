"""Model files as the commands see them: which columns of a table they want, and calls without column names."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsegp.cli import tables
from sparsegp.errors import InputError

if TYPE_CHECKING:
    from sparsegp.sources import Source


def name_columns(model: Any, source: "Source", target: str) -> None:
    """A model fitted to arrays learns what the columns of the table were called."""
    import numpy as np

    model.feature_names_in_ = np.array(source.feature_names or (), dtype=object)
    model.target_name_in_ = target


def target_of(model: Any, given: str | None) -> str:
    """The name of the target: as given, or as in the table of the fit."""
    name = given or getattr(model, "target_name_in_", None)
    if name is None:
        raise InputError("The model does not know the name of its target: give --target.")
    return str(name)


def open_for(model: Any, data: Path, target: str | None, **options: Any) -> "Source":
    """The columns of a table that the model was fitted with, by name; without names, all that are nothing else."""
    names = getattr(model, "feature_names_in_", None)
    source = tables.open_table(data, target, None if names is None else list(map(str, names)), **options)
    if source.n_features != model.n_features_in_:
        raise InputError(
            f"The model was fitted with {model.n_features_in_} columns without names; {data} has {source.n_features}: "
            f"{', '.join(source.feature_names or ())}. Give a table with the same columns."
        )
    return source


@contextmanager
def named_columns() -> Iterator[None]:
    """Within, arrays whose columns were chosen by name are as good as tables."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        yield
