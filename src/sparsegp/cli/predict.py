"""`sparsegp predict` and `sparsegp evaluate`: what a model says of other rows, and how good that is."""

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsegp.cli import options, table_columns
from sparsegp.cli.output import note, show
from sparsegp.errors import InputError

if TYPE_CHECKING:
    from sparsegp.data.files import FileSource

Write = Callable[[Any], None]
FORECAST = ("mean", "std", "lower", "upper")
EVERY = "all"
STDOUT = Path("-")
SEEN = "The model has learned from these rows"
SEEN_TRY = "Scores of rows that a model knows are too good. Judge it by rows that it has not seen."


def predict(
    model: options.Model,
    data: options.Data,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Parquet, CSV, Feather or JSON lines. Default, and -: CSV on stdout."),
    ] = None,
    keep: Annotated[
        str | None, typer.Option("--keep", help="Columns of the table to write beside the forecasts: id,date or all.")
    ] = None,
    coverage: Annotated[float, typer.Option(help="Probability that lower to upper holds the target.")] = 0.95,
    chunk_rows: options.ChunkRows = options.READ_ROWS,
    sep: options.Sep = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    no_header: options.NoHeader = False,
    as_json: options.Json = False,
) -> None:
    """Forecast each row of a table, with an interval.

    Writes mean, std, and the interval from lower to upper.
    """
    output = None if output == STDOUT else output
    if as_json and output is None:
        raise InputError("--json needs --output: without it the predictions are what is printed.")
    if not 0.0 < coverage < 1.0:
        raise InputError(f"--coverage is a probability between 0 and 1, such as 0.95; got {coverage:g}.")
    table_columns.require_other(output, data)
    fitted = _loaded(model)
    files = table_columns.files(data, sep, decimal, encoding, no_header)
    source = table_columns.open_for(fitted, files, None, batch_rows=chunk_rows)
    source, kept = _with_kept(source, keep)
    if not kept:
        table_columns.say_unused(fitted, source)
    met = _Met()
    with _writer(output) as write, table_columns.named_columns():
        for table in _forecasts(fitted, source, kept, coverage, met):
            write(table)
    met.say()
    if output is not None:
        facts = {"rows": met.rows, "rows_without_forecast": met.without_forecast, "coverage": coverage}
        show("Predicted", {**facts, "output": str(output)}, as_json)


@dataclass
class _Met:
    """Rows so far, those without a forecast, and in how many a column has a value that the fit has not met."""

    rows: int = 0
    without_forecast: int = 0
    unmet: Counter[str] = field(default_factory=Counter)

    def say(self) -> None:
        if self.without_forecast:
            note(
                f"{self.without_forecast:,} of {self.rows:,} rows have missing values, of which the model has met "
                "none: their forecasts are empty."
            )
        if self.unmet:
            from sparsegp.data.encoding import unmet_words

            note(unmet_words(self.unmet, self.rows))


def _with_kept(source: "FileSource", keep: str | None) -> tuple["FileSource", list[str]]:
    """The source that reads the columns to keep, too, and their names."""
    if keep is None:
        return source, []
    names = table_columns.names_in(keep) or []
    names = list(source.names) if names == [EVERY] and EVERY not in source.names else names
    clash = [name for name in names if name in FORECAST]
    if clash:
        raise InputError(f"--keep cannot keep {clash[0]!r}, a name of the forecasts. Rename that column first.")
    return source.keeping(names), names


def _forecasts(model: Any, source: "FileSource", kept: Sequence[str], coverage: float, met: _Met) -> Iterator[Any]:
    """Tables of the kept columns and the forecasts, which are empty where a model of numbers finds none."""
    import numpy as np
    import pyarrow as pa

    from sparsegp.data.inputs import missing_in
    from sparsegp.data.scan import require_no_infinity

    encoding, takes_missing = table_columns.encoding_of(model), table_columns.takes_missing(model)
    for piece in source.pieces():
        table = piece.table.select(list(source.columns.inputs))
        found = np.full((len(FORECAST), table.num_rows), np.nan)
        if encoding is None:
            batch = source.columns.batch(piece)
            require_no_infinity(batch, source.feature_names)
            X = batch.X
            known = np.full(len(X), True) if takes_missing else ~np.isnan(X).any(axis=1)
            if takes_missing:
                met.unmet.update(missing_in(X, source.feature_names))
            if known.any():
                found[:, known] = _answers(model, X[known], coverage)
        else:
            met.unmet.update(encoding.unmet(encoding.encode(table)))
            found[:] = _answers(model, table, coverage)
        met.rows, met.without_forecast = met.rows + table.num_rows, met.without_forecast + int(np.isnan(found[0]).sum())
        columns = {name: piece.table.column(name) for name in kept}
        columns |= {name: pa.array(values, from_pandas=True) for name, values in zip(FORECAST, found, strict=True)}
        yield pa.table(columns)


def _answers(model: Any, X: Any, coverage: float) -> tuple[Any, ...]:
    """Mean, std and both ends of the interval; values that the fit has not met are counted for all rows at once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Values that the fit has not met")
        forecast = model.forecast(X)
        return (forecast.mean, forecast.std, *forecast.interval(coverage))


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
    """Takes tables, one after another. A file appears under its name once it is complete."""
    from sparsegp.whole_file import replacing

    kind = ".csv" if output is None else output.suffix.lower()
    if kind not in _makers():
        raise InputError(f"--output must end in {', '.join(_makers())}; got {output}.")
    opened: list[Any] = []
    with nullcontext(sys.stdout.buffer) if output is None else replacing(output) as file:

        def write(table: Any) -> None:
            if not opened:
                opened.extend((_makers()[kind](file, table.schema), table.schema))
            writer, schema = opened
            writer.write(table if table.schema == schema else table.cast(schema))

        yield write
        if not opened:
            write(_no_rows())
        opened[0].close()


def _no_rows() -> Any:
    import pyarrow as pa

    return pa.table({name: pa.array([], pa.float64()) for name in FORECAST})


def _makers() -> dict[str, Callable[[Any, Any], Any]]:
    """What writes tables of a schema to a file, by the end of its name."""
    import pyarrow.parquet as pq
    from pyarrow import csv, ipc

    from sparsegp.data import files

    makers: dict[str, Callable[[Any, Any], Any]] = {".csv": csv.CSVWriter, ".jsonl": _JsonLines}
    makers |= dict.fromkeys(files.PARQUET_SUFFIXES, pq.ParquetWriter)
    return makers | dict.fromkeys((".feather", ".arrow"), ipc.new_file)


class _JsonLines:
    """One object a line; dates as text."""

    def __init__(self, file: Any, schema: Any) -> None:
        self.file = file

    def write(self, table: Any) -> None:
        for row in table.to_pylist():
            self.file.write((json.dumps(row, default=str) + "\n").encode())

    def close(self) -> None:
        """The file is closed by those who opened it."""


def evaluate(
    model: options.Model,
    data: options.Data,
    target: options.KnownTarget = None,
    sep: options.Sep = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    no_header: options.NoHeader = False,
    as_json: options.Json = False,
) -> None:
    """Score a model on rows with known targets.

    Errors, NLPD, CRPS, and the coverage of its intervals. Give rows that the model has not seen.
    """
    from sparsegp.report.headline import scores

    fitted = _loaded(model)
    files, name = table_columns.files(data, sep, decimal, encoding, no_header), table_columns.target_of(fitted, target)
    source = table_columns.open_for(fitted, files, name)
    table_columns.say_unused(fitted, source, name)
    rows, are_seen = table_columns.read_all(fitted, source, may_miss=table_columns.takes_missing(fitted))
    if are_seen:
        note(f"{SEEN}. {SEEN_TRY}")
    with table_columns.named_columns():
        result = scores(fitted, rows.X, rows.y)
    show(f"Scores on {files}", {"rows": len(rows), **result}, as_json)
