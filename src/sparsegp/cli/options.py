"""Arguments and options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

# Written out so that completion answers without torch; the tests hold them against the package.
MODELS = ("sparse", "heteroscedastic", "committee")
KERNELS = ("se", "matern12", "matern32", "matern52", "rq", "auto")
OPTIMIZERS = ("auto", "lbfgs", "srgp", "ngd", "adam")
APPROXIMATIONS = (
    "vfe",
    "fitc",
    "pic",
    "pep",
    "pitc",
    "block-pep",
    "fic",
    "dtc",
    "sor",
    "sod",
    "nystrom",
    "exact",
)
TARGET_TRANSFORMS = ("log", "log1p", "sqrt")
READ_ROWS = 65_536
AUTO = "auto"


def beginning(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Completion: the choices that begin with what was typed; after a comma, the next name."""

    def complete(incomplete: str) -> list[str]:
        done, comma, typed = incomplete.rpartition(",")
        return [f"{done}{comma}{name}" for name in choices if name.startswith(typed)]

    return complete


def count_or_auto(text: str) -> int | str:
    if text == AUTO:
        return AUTO
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"expected a whole number or {AUTO!r}; got {text!r}.") from None


Data = Annotated[
    list[Path],
    typer.Argument(
        metavar="DATA",
        help="Parquet, CSV, Feather/Arrow or JSON lines: files, folders, globs; - for standard input.",
    ),
]
Sep = Annotated[str | None, typer.Option("--sep", help="Separator of CSV fields, or tab. Default: found in the file.")]
Decimal = Annotated[str | None, typer.Option("--decimal", help="Decimal mark of CSV: . or , Default: found.")]
Encoding = Annotated[str | None, typer.Option("--encoding", help="Encoding of CSV, such as cp1252. Default: found.")]
NoHeader = Annotated[
    bool, typer.Option("--no-header", help="CSV has no line of names: columns are column1, column2, ...")
]
Categorical = Annotated[
    str | None, typer.Option("--categorical", help="Columns that are categories though they look like numbers: a,b.")
]
Ignore = Annotated[str | None, typer.Option("--ignore", help="Columns to leave out: a,b.")]
Dates = Annotated[str | None, typer.Option("--dates", help="Columns of text that are dates or times: a,b.")]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Model file.")]
Target = Annotated[str, typer.Option("--target", "-t", help="Column to predict.")]
KnownTarget = Annotated[
    str | None, typer.Option("--target", "-t", help="Column of the target. Default: as in the model.")
]
Features = Annotated[
    str | None, typer.Option("--features", "-f", help="Columns to predict from: a,b,c. Default: all others.")
]
Weight = Annotated[str | None, typer.Option(help="Column of weights: a row counts this many times.")]
NoiseVar = Annotated[str | None, typer.Option(help="Column of known noise variances of the target.")]
ModelKind = Annotated[
    str,
    typer.Option(help="sparse, heteroscedastic (noise that varies), committee.", autocompletion=beginning(MODELS)),
]
Approximation = Annotated[
    str | None,
    typer.Option(
        "--approximation",
        "-a",
        help="auto, vfe, fitc, pic, ... Default: auto; heteroscedastic: vfe; committee: exact.",
        autocompletion=beginning((*APPROXIMATIONS, AUTO)),
    ),
]
Approximations = Annotated[
    str,
    typer.Option(
        "--approximations",
        "-a",
        help="Names, with commas between them.",
        autocompletion=beginning(APPROXIMATIONS),
    ),
]
Kernel = Annotated[
    str, typer.Option(help="se, matern12, matern32, matern52, rq or auto.", autocompletion=beginning(KERNELS))
]
Inducing = Annotated[
    Any,
    typer.Option(
        "--n-inducing",
        "-m",
        parser=count_or_auto,
        metavar="INTEGER|auto",
        help="Number of inducing inputs: more is better, slower.",
    ),
]
Power = Annotated[float, typer.Option(help="alpha of pep and block-pep, 0 to 1.")]
Blocks = Annotated[int | None, typer.Option(help="Number of blocks of pitc, pic and block-pep.")]
TargetTransform = Annotated[
    str | None,
    typer.Option(
        "--target-transform",
        help="log, log1p or sqrt, for a target with a natural zero: intervals stay exact and end at zero.",
        autocompletion=beginning(TARGET_TRANSFORMS),
    ),
]
Optimizer = Annotated[str, typer.Option(help="auto, lbfgs, srgp, ngd or adam.", autocompletion=beginning(OPTIMIZERS))]
Budget = Annotated[float | None, typer.Option(help="Seconds for the fit as a whole. Default: until it is done.")]
Seed = Annotated[int, typer.Option(help="Seed of every random choice.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="A line a second about the fit, with the evidence.")]
ChunkRows = Annotated[int, typer.Option(min=1, help="Rows read at a time.")]
