"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[Path, typer.Argument(help="Parquet or CSV file, or a folder of Parquet files.")]
Model = Annotated[Path, typer.Argument(help="Model file.")]
Target = Annotated[str, typer.Option("--target", "-t", help="Column to predict.")]
KnownTarget = Annotated[
    str | None, typer.Option("--target", "-t", help="Column of the target. Default: as in the model.")
]
Features = Annotated[
    str | None, typer.Option("--features", "-f", help="Columns to predict from: a,b,c. Default: all others.")
]
Weight = Annotated[str | None, typer.Option(help="Column of weights: a row counts this many times.")]
NoiseVar = Annotated[str | None, typer.Option(help="Column of known noise variances of the target.")]
Kernel = Annotated[str, typer.Option(help="se, matern12, matern32, matern52 or rq.")]
Inducing = Annotated[int, typer.Option("--n-inducing", "-m", help="Number of inducing inputs: more is better, slower.")]
Power = Annotated[float, typer.Option(help="alpha of pep and block-pep, 0 to 1.")]
Blocks = Annotated[int | None, typer.Option(help="Number of blocks of pitc, pic and block-pep.")]
Optimizer = Annotated[str, typer.Option(help="lbfgs or adam.")]
Budget = Annotated[
    float | None, typer.Option(help="Seconds for learning; one pass over the rows follows. Default: until it is done.")
]
Seed = Annotated[int, typer.Option(help="Seed of every random choice.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="A line a second about the fit, with the evidence.")]
ChunkRows = Annotated[int, typer.Option(min=1, help="Rows read at a time.")]
