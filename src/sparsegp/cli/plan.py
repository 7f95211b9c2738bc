"""`sparsegp plan`: what a fit will cost, before anything runs."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsegp.cli import options
from sparsegp.cli.output import print_json
from sparsegp.errors import InputError


def plan(
    data: options.Data,
    target: options.Target,
    features: options.Features = None,
    approximation: Annotated[str, typer.Option("--approximation", "-a", help="vfe, fitc, pic, ...")] = "auto",
    kernel: options.Kernel = "se",
    n_inducing: options.Inducing = 512,
    power: options.Power = 0.5,
    n_blocks: options.Blocks = None,
    optimizer: options.Optimizer = "auto",
    time_budget: options.Budget = None,
    n_rows: Annotated[int | None, typer.Option(help="Number of rows, where the file does not tell.")] = None,
    machines: Annotated[str, typer.Option(help="Number of machines, or several to compare: 1,10,100.")] = "1",
    machine: Annotated[
        Path | None,
        typer.Option(help="JSON file with the constants of a machine (`machine` of --json). Default: this machine."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Predict time, memory, passes and traffic of a fit. Reads no more than the footer of the file."""
    import sparsegp

    found = sparsegp.plan(
        data,
        target=target,
        features=None if features is None else [name.strip() for name in features.split(",")],
        n_rows=n_rows,
        machines=_counts(machines),
        machine=None if machine is None else _constants(machine),
        approximation=approximation,
        kernel=kernel,
        n_inducing=n_inducing,
        power=power,
        n_blocks=n_blocks,
        optimizer=optimizer,
        time_budget=time_budget,
    )
    if as_json:
        print_json(found.to_dict())
    else:
        print(found)


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--machines takes whole numbers with commas between them; got {text!r}.") from None


def _constants(path: Path) -> Any:
    """The fields of a machine, alone or as part of a plan."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}. It holds the fields of a machine.") from error
    return found.get("machine", found) if isinstance(found, dict) else found
