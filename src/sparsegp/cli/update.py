"""`sparsegp update` and `sparsegp merge`: new rows into a saved model, each batch exactly once; models into one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsegp.cli import options, table_columns
from sparsegp.cli.output import note, print_json, show, show_rows
from sparsegp.errors import InputError

if TYPE_CHECKING:
    from sparsegp.data.files import FileSource


def update(
    model: options.Model,
    data: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Files of new rows, each file or folder a batch; - for standard input."),
    ],
    target: options.KnownTarget = None,
    weight: options.Weight = None,
    noise_var: options.NoiseVar = None,
    batch_id: Annotated[
        str | None, typer.Option(help="Name of the batch (one file only). Default: a hash of its rows.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write here instead of replacing the model.")
    ] = None,
    separate: Annotated[
        bool, typer.Option("--separate", help="The new rows alone, to be merged into the model later. Needs -o.")
    ] = False,
    chunk_rows: options.ChunkRows = options.READ_ROWS,
    sep: options.Sep = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    no_header: options.NoHeader = False,
    as_json: options.Json = False,
) -> None:
    """Add rows exactly, without learning again. A batch that is in the model already is not added twice.

    The model is saved after every batch, together with the ids of its batches: a crash loses no batch that was
    reported, and sending all of them again is safe.
    """
    if batch_id is not None and len(data) > 1:
        raise InputError(f"--batch-id names one batch; {len(data)} files were given. Send them one by one.")
    if separate and output is None:
        raise InputError("--separate needs --output: the file for the model of the new rows alone.")
    from sparsegp import files

    destination = output or model
    with files.locked(destination), table_columns.named_columns():
        if output is not None and output.exists():  # within the lock: of two processes, one finds it there
            raise InputError(
                f"{output} exists. To add rows to it: sparsegp update {output} FILES (nothing counts twice)."
            )
        fitted, reports = _opened(model, separate), []
        if noise_var is not None and fitted.model_.learns_noise:
            raise InputError("--noise-var is not for a model with learned noise: it knows the noise of every place.")
        for path in data:
            name, columns = table_columns.target_of(fitted, target), {"weight": weight, "noise_var": noise_var}
            files_of_batch = table_columns.files([path], sep, decimal, encoding, no_header)
            source = table_columns.open_for(fitted, files_of_batch, name, **columns, batch_rows=chunk_rows)
            table_columns.say_unused(fitted, source, name, weight, noise_var)
            reports.append({"file": str(path), **_add_once(fitted, source, batch_id, destination)})
    if as_json:
        print_json({"model": str(destination), "batches": reports, "rows_in_model": int(fitted.n_samples_seen_)})
    else:
        show_rows(f"{destination}: {fitted.n_samples_seen_:,} rows", reports, ("file", "rows", "added", "batch_id"))
        _warn_of_drift(fitted)


def _opened(path: Path, separate: bool) -> Any:
    import sparsegp

    model = sparsegp.load(path)
    fraction = model.info_.get("budget", {}).get("fraction", 1.0)
    if fraction < 1.0 and not separate:
        note(f"{path} is a model of {fraction:.1%} of the rows of its fit. Other rows are added to those.")
    return model.without_rows() if separate else model


def _add_once(model: Any, source: "FileSource", batch_id: str | None, destination: Path) -> dict[str, Any]:
    from sparsegp import files

    name = batch_id or table_columns.content_id(model, source)
    if name in files.batch_ids(model):
        return {"batch_id": name, "added": False, "rows": 0}
    n_rows = 0
    for rows in table_columns.rows_of(model, source):
        known = {} if rows.batch.noise_var is None else {"noise_var": rows.batch.noise_var}
        model.partial_fit(rows.given.X, rows.given.y, sample_weight=rows.batch.weight, **known)
        n_rows += len(rows.given)
    files.record_batches(model, name)
    model.save(destination)
    return {"batch_id": name, "added": True, "rows": n_rows}


def _warn_of_drift(model: Any) -> None:
    recent = model.info_.get("innovations", {})
    if recent.get("drift"):
        note(
            f"Drift: recent squared errors are {recent['mean_square']:.2g} times what the model expects. Look at the "
            "data, or fit again on recent rows."
        )


def merge(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL", help="Model files: a model, and those of `update --separate`.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")],
    as_json: options.Json = False,
) -> None:
    """Merge models of different rows, exactly.

    The result is the model of all rows.
    """
    if len(models) < 2:
        raise InputError("merge takes at least two model files.")
    import sparsegp
    from sparsegp import SparseGPRegressor, files

    with files.locked(output):  # it may be one of the models
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
