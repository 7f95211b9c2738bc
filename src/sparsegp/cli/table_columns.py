"""Rows of Parquet and CSV files as the commands want them, and which columns of a table a model wants."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsegp.errors import InputError

if TYPE_CHECKING:
    from sparsegp.data import Batch, Source


def names_in(text: str | None) -> list[str] | None:
    """Names given with commas between them."""
    return None if text is None else [part.strip() for part in text.split(",")]


def open_table(
    path: Path,
    target: str | None,
    features: Sequence[str] | None = None,
    *,
    weight: str | None = None,
    noise_var: str | None = None,
    batch_rows: int | None = None,
) -> "Source":
    """The columns of a file or folder; `features` None: all columns that are nothing else. No target: inputs only."""
    from sparsegp import data

    if target is None:
        return data.open_inputs(path, features, batch_rows)
    return data.open_source(
        path, target=target, features=features, noise_var=noise_var, sample_weight=weight, batch_rows=batch_rows
    )


def read(source: "Source") -> "Batch":
    """All rows at once, every number checked."""
    from sparsegp import data

    return data.whole_batch(source)


def tuples(source: "Source") -> Iterator[tuple[Any, ...]]:
    """The rows batch by batch, every number checked, as estimators take them: (X, y, noise_var, weight)."""
    from sparsegp.data.scan import valid_batches

    return ((batch.X, batch.y, batch.noise_var, batch.weight) for batch in valid_batches(source))


def require_rows(source: "Source", path: Path) -> None:
    """At least one row, which is checked."""
    if next(tuples(source), None) is None:
        raise InputError(f"{path} has no rows. Give a table with rows to learn from.")


def content_id(source: "Source") -> str:
    """The name of a batch of rows that was given none."""
    from sparsegp import files

    return files.content_id((X, y, weight, noise) for X, y, noise, weight in tuples(source))


def name_columns(model: Any, source: "Source", target: str) -> None:
    """A model fitted to arrays learns what the columns of the table were called."""
    model.name_columns(source.feature_names or (), target)


def target_of(model: Any, given: str | None) -> str:
    """The name of the target: as given, or as in the table of the fit."""
    name = given or model.target_name_in_
    if name is None:
        raise InputError("The model does not know the name of its target: give --target.")
    return str(name)


def open_for(model: Any, data: Path, target: str | None, **options: Any) -> "Source":
    """The columns of a table that the model was fitted with, by name; without names, all that are nothing else."""
    names = getattr(model, "feature_names_in_", None)
    source = open_table(data, target, None if names is None else list(map(str, names)), **options)
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
