"""Model files as the commands see them: which columns of a table they want, and calls without column names."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparsegp.cli import tables
from sparsegp.cli.tables import Columns
from sparsegp.errors import InputError


def columns_of(model: Any, data: Path, target: str | None, *, needs_target: bool, **others: str | None) -> Columns:
    """The columns of a table that the model was fitted with, by name; without names, all that are nothing else."""
    saved = vars(model).get("_table_columns")
    target = target or (None if saved is None else saved.target)
    if needs_target and target is None:
        raise InputError("The model does not know the name of its target: give --target.")
    names = getattr(model, "feature_names_in_", None) if saved is None else saved.features
    rest = (target, *others.values())
    if needs_target:
        features = tables.select(data, None if names is None else list(names), rest)
    else:
        chosen = names if names is not None else [name for name in tables.column_names(data) if name != target]
        features = tables.select(data, list(chosen), ())
    if len(features) != model.n_features_in_:
        raise InputError(
            f"The model was fitted with {model.n_features_in_} columns without names; {data} has {len(features)}: "
            f"{', '.join(features)}. Give a table with the same columns."
        )
    return Columns(features, target if needs_target else None, **others)


@contextmanager
def named_columns() -> Iterator[None]:
    """Within, arrays whose columns were chosen by name are as good as tables."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        yield
