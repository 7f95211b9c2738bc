"""Write the tables of the docs from the results files: `python -m benchmarks.render [pages]` (default: all).

A table stands between `<!-- results:NAME -->` and `<!-- end -->`; what is outside the markers is left alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    anytime_tables,
    honesty,
    large_data_tables,
    noise_tables,
    plan_tables,
    product,
    quality_curves,
    spatial,
    srgp_tables,
    tables,
    tables_memory,
)
from benchmarks.datasets import COLUMNS, SCORES
from benchmarks.jobs import ROOT
from benchmarks.markdown import machine_line, markdown_table
from benchmarks.methods import METHODS
from benchmarks.results import number, read_results

DOCS = ROOT / "docs"
MARKED = re.compile(r"(<!-- results:(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

GOALS = {
    "faster peer / vfe": "at least 5",
    "vfe / limit": "at most 1.3",
    "fitc / vfe": "at most 1.6",
    "pep / vfe": "at most 1.6",
    "pitc / vfe": "at most 2.5",
    "ours / products": "at most 1.7",
}


def bound(document: dict[str, Any]) -> str:
    problem, errors = document["problem"], document["relative_errors"]
    heading = f"N = {problem['n_rows']:,}, M = {problem['n_inducing']}, D = {problem['n_features']}, float64; "
    rows = [
        [
            f"{name} {facts['version']}" if "version" in facts else name,
            number(facts.get("seconds")),
            number(facts.get("peak_mb"), 0),
            f"{errors[name]:.0e}" if name in errors else "",
        ]
        for name, facts in document["measured"].items()
    ]
    table = markdown_table(["", "seconds", "peak MB above data", "relative error of the value"], rows)
    return heading + machine_line(document["machine"]) + "\n" + table + "\n" + _ratios(document["ratios"])


def _ratios(ratios: dict[str, float | None]) -> str:
    rows = [[name, number(value, 2), GOALS.get(name, "")] for name, value in ratios.items()]
    return markdown_table(["ratio", "measured", "goal"], rows)


def predict(document: dict[str, Any]) -> str:
    problem, measured = document["problem"], document["measured"]
    ours = measured["ours"]
    heading = f"{problem['n_test']:,} rows, mean and std, M = {problem['n_inducing']}; "
    rows = [
        [name.replace("_", " ") + ", seconds", number(facts.get("seconds")), ""] for name, facts in measured.items()
    ]
    rows += [[name, number(value, 2), GOALS.get(name, "")] for name, value in document["ratios"].items()]
    rows += [
        ["one row, milliseconds", number(ours.get("single_row_ms")), "under 0.3"],
        ["peak MB above data", number(ours.get("peak_mb"), 0), ""],
        ["the same, a tenth of the rows", number(ours.get("peak_mb_tenth_of_rows"), 0), ""],
    ]
    return heading + machine_line(document["machine"]) + "\n" + markdown_table(["", "measured", "goal"], rows)


def a_saved_model(document: dict[str, Any]) -> str:
    heading = f"VFE, M = {document['problem']['n_inducing']}, D = {document['problem']['n_features']}; "
    table = markdown_table(["", "measured", "goal"], product.rows(document))
    return heading + machine_line(document["machine"]) + "\n" + table


def fit_memory(document: dict[str, Any]) -> str:
    problem, measured = document["problem"], document["measured"]
    heading = f"{problem['n_rows']:,} x {problem['n_features']} rows, M = {problem['n_inducing']}, defaults; "
    rows = [
        ["seconds", number(measured.get("seconds"), 1), ""],
        ["peak MB above data", number(measured.get("peak_mb"), 0), "at most 1000"],
        [f"RMSE (noise {problem['noise_std']})", number(measured.get("rmse")), ""],
    ]
    return heading + machine_line(document["machine"]) + "\n" + markdown_table(["", "measured", "goal"], rows)


def datasets(document: dict[str, Any]) -> str:
    parts = []
    for name, by_method in document["cells"].items():
        cells = {m.name: by_method[m.name] for m in METHODS if m.name in by_method}
        first = next(iter(cells.values()))
        rows = [[method, *(_score(cell, score) for score in SCORES)] for method, cell in cells.items()]
        heading = f"**{name}** ({first['n_train']:,} training rows; {machine_line(first['machine']).strip()})\n\n"
        parts.append(heading + markdown_table(["", *COLUMNS], rows))
    return "\n".join(parts)


def _score(cell: dict[str, Any], score: str) -> str:
    return number(cell.get(score), 0 if score == "seconds" else 3)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "bound": bound,
    "predict": predict,
    "product": a_saved_model,
    "fit_memory": fit_memory,
    "datasets": datasets,
    "honesty": honesty.table,
    "honesty_peers": honesty.peers_table,
    "quality_curves": quality_curves.table,
    "spatial": spatial.table,
    "tables": tables.table,
    "tables_memory": tables_memory.table,
    **anytime_tables.TABLES,
    **large_data_tables.TABLES,
    **noise_tables.TABLES,
    **plan_tables.TABLES,
    **srgp_tables.TABLES,
}


def render(text: str) -> str:
    """The text with every marked table replaced; one without results says so."""

    def replaced(match: re.Match[str]) -> str:
        opening, name, closing = match.groups()
        results = read_results(name)
        return opening + (TABLES[name](results) if results else "Not measured yet.\n") + closing

    return MARKED.sub(replaced, text)


def main() -> None:
    for path in [Path(name) for name in sys.argv[1:]] or _documents():
        path.write_text(render(path.read_text()))
        print(f"wrote {path.name}")


def _documents() -> list[Path]:
    """Every page with a marked table."""
    return [path for path in sorted(DOCS.glob("*.md")) if MARKED.search(path.read_text())]


if __name__ == "__main__":
    main()
