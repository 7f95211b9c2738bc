"""`sparsegp predict` and `sparsegp evaluate`: what a model says of other rows, and how good that is."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsegp.cli import options, table_columns
from sparsegp.cli.output import show
from sparsegp.errors import InputError

Write = Callable[[Any], None]


def predict(
    model: options.Model,
    data: options.Data,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Parquet or CSV file. Default: CSV on standard output.")
    ] = None,
    coverage: Annotated[float, typer.Option(help="Probability that lower to upper holds the target.")] = 0.95,
    chunk_rows: options.ChunkRows = options.READ_ROWS,
    as_json: options.Json = False,
) -> None:
    """Predict each row of a table: mean, std, and the interval from lower to upper."""
    if as_json and output is None:
        raise InputError("--json needs --output: without it the predictions are what is printed.")
    if not 0.0 < coverage < 1.0:
        raise InputError(f"--coverage is a probability between 0 and 1, such as 0.95; got {coverage:g}.")
    fitted = _loaded(model)
    source, n_rows = table_columns.open_for(fitted, data, None, batch_rows=chunk_rows), 0
    with _writer(output) as write, table_columns.named_columns():
        for X, *_ in table_columns.tuples(source):
            forecast = fitted.forecast(X)
            lower, upper = forecast.interval(coverage)
            write({"mean": forecast.mean, "std": forecast.std, "lower": lower, "upper": upper})
            n_rows += len(lower)
    if output is not None:
        show("Predicted", {"rows": n_rows, "coverage": coverage, "output": str(output)}, as_json)


def _loaded(path: Path) -> Any:
    """Without torch where the model can do without it: the command is then done before torch would be imported."""
    from sparsegp import serving

    light = serving.load_if_light(path)
    if light is not None:
        return light
    import sparsegp

    return sparsegp.load(path)


@contextmanager
def _writer(output: Path | None) -> Iterator[Write]:
    """Takes columns, chunk by chunk. A file appears under its name once it is complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv

    from sparsegp.data import files
    from sparsegp.whole_file import replacing

    schema = pa.schema([(name, pa.float64()) for name in ("mean", "std", "lower", "upper")])
    if output is None:
        with csv.CSVWriter(sys.stdout.buffer, schema) as out:
            yield lambda columns: out.write(pa.table(columns, schema))
        return
    if not output.name.endswith((".csv", *files.PARQUET_SUFFIXES)):
        raise InputError(f"--output must end in .csv or {' or '.join(files.PARQUET_SUFFIXES)}; got {output}.")
    kind = csv.CSVWriter if output.name.endswith(".csv") else pq.ParquetWriter
    with replacing(output) as file, kind(file, schema) as out:
        yield lambda columns: out.write(pa.table(columns, schema))


def evaluate(
    model: options.Model, data: options.Data, target: options.KnownTarget = None, as_json: options.Json = False
) -> None:
    """Score a model on rows with known targets: errors, NLPD, CRPS, coverage of its intervals."""
    from sparsegp.report.scores import scores

    fitted = _loaded(model)
    rows = table_columns.read(table_columns.open_for(fitted, data, table_columns.target_of(fitted, target)))
    with table_columns.named_columns():
        result = scores(fitted, rows.X, rows.y)
    show(f"Scores on {data}", {"rows": len(rows), **result}, as_json)
