"""`sparsegp merge`: several models of different rows into one."""

from pathlib import Path
from typing import Annotated

import typer

from sparsegp.cli import options
from sparsegp.cli.output import show
from sparsegp.errors import InputError


def merge(
    models: Annotated[list[Path], typer.Argument(help="Model files: a model, and those of `update --separate`.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")],
    as_json: options.Json = False,
) -> None:
    """Merge models of different rows, exactly: the result is the model of all rows."""
    if len(models) < 2:
        raise InputError("merge takes at least two model files.")
    import sparsegp
    from sparsegp import SparseGPRegressor, files

    first, *others = (sparsegp.load(path) for path in models)
    if not isinstance(first, SparseGPRegressor):
        raise InputError(f"{models[0]} holds a {type(first).__name__}, which cannot be merged.")
    for other in others:
        first.merge(other)  # models that do not go together at all say so first
        files.require_disjoint(first, other)
        files.record_batches(first, *files.batch_ids(other))
    first.save(output)
    rows = int(first.n_samples_seen_)
    show("Merged", {"model": str(output), "models": len(models), "rows_in_model": rows}, as_json)
