"""`sparsegp report`: one HTML page about a model, judged by rows with known targets."""

from pathlib import Path
from typing import Annotated

import typer

from sparsegp.cli import options, saved, tables
from sparsegp.cli.output import show


def report(
    model: options.Model,
    data: options.Data,
    target: options.KnownTarget = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Heading of the page. Default: the name of the model file.")] = None,
    as_json: options.Json = False,
) -> None:
    """Write a page with scores, warnings, pictures and assumptions. Give rows that the model has not seen."""
    options.require_folder(output)
    import sparsegp
    from sparsegp import report as pages

    fitted = sparsegp.load(model)
    name = saved.target_of(fitted, target)
    rows = tables.read(saved.open_for(fitted, data, name))
    with saved.named_columns():
        found = pages.judge(fitted, rows.X, rows.y)
        pages.write(fitted, rows.X, rows.y, output, title=title or model.stem, target_name=name, judgement=found)
    warnings = [finding.what for finding in found.findings if finding.severity == "warning"]
    show("Report", {"report": str(output), "rows": len(rows), **found.scores, "warnings": warnings}, as_json)
