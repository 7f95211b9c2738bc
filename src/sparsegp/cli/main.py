"""The program `sparsegp`: its commands, and what the caller hears when something goes wrong."""

import sys
import warnings
from typing import Annotated

import typer

from sparsegp.cli.fit import fit
from sparsegp.cli.output import note
from sparsegp.cli.predict import evaluate, predict
from sparsegp.cli.report import compare, plan, report
from sparsegp.cli.update import merge, update
from sparsegp.errors import NEEDS_TORCH, SparseGPError

USER_ERROR = 1

app = typer.Typer(
    name="sparsegp",
    help="Gaussian-process regression from tables: forecasts with intervals you can trust.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (fit, predict, update, evaluate, merge, compare, plan, report):
    app.command()(command)


def _show_version(asked: bool) -> None:
    if asked:
        import sparsegp

        typer.echo(sparsegp.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Gaussian-process regression from tables: forecasts with intervals you can trust."""


def _shown_warning(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
    """What the library warns of is a note to the caller; where in the library it was said is not."""
    note(f"Note: {message}")


def main() -> None:
    """Run the program: exit code 0 if all went well, 1 with a message if not, 2 for wrong usage, 130 after Ctrl-C."""
    warnings.showwarning = _shown_warning
    try:
        app()
    except (SparseGPError, OSError) as error:
        note(f"Error: {error}")
        sys.exit(USER_ERROR)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        note(f"Error: {NEEDS_TORCH}")
        sys.exit(USER_ERROR)
