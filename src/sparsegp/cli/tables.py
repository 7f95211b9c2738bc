"""Rows of Parquet and CSV files as the commands want them: chosen by name, checked, all at once or batch by batch."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsegp.errors import InputError

if TYPE_CHECKING:
    from sparsegp.sources import Batch, Source


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
    from sparsegp import sources

    if target is None:
        return sources.open_inputs(path, features, batch_rows)
    return sources.open_source(
        path, target=target, features=features, noise_var=noise_var, sample_weight=weight, batch_rows=batch_rows
    )


def read(source: "Source") -> "Batch":
    """All rows at once, every number checked."""
    from sparsegp import sources

    return sources.whole_batch(source)


def tuples(source: "Source") -> Iterator[tuple[Any, ...]]:
    """The rows batch by batch, every number checked, as estimators take them: (X, y, noise_var, weight)."""
    from sparsegp.sources.survey import valid_batches

    return ((batch.X, batch.y, batch.noise_var, batch.weight) for batch in valid_batches(source))


def require_rows(source: "Source", path: Path) -> None:
    """At least one row, which is checked."""
    if next(tuples(source), None) is None:
        raise InputError(f"{path} has no rows. Give a table with rows to learn from.")


def content_id(source: "Source") -> str:
    """The name of a batch of rows that was given none."""
    from sparsegp import files

    return files.content_id((X, y, weight, noise) for X, y, noise, weight in tuples(source))
