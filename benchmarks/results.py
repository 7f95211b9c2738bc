"""Results files: small JSON documents with the facts of the machine and no names or paths of it."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent / "results"

console = Console()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


@cache
def machine_facts() -> dict[str, Any]:
    """What a reader needs to place the numbers: processor, cores, library versions, day."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "torch": metadata.version("torch"),
        "numpy": metadata.version("numpy"),
        "date": datetime.now(UTC).date().isoformat(),
    }


def results_path(name: str, quick: bool = False) -> Path:
    """Quick runs exercise the harness and never overwrite real results."""
    return (RESULTS / "quick" if quick else RESULTS) / f"{name}.json"


def read_results(name: str, quick: bool = False) -> dict[str, Any]:
    path = results_path(name, quick)
    if not path.exists():
        return {}
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def write_results(name: str, document: dict[str, Any], quick: bool = False) -> None:
    path = results_path(name, quick)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1) + "\n")
    partial.replace(path)


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """numerator / denominator, or None when either was not measured."""
    if numerator is None or denominator is None:
        return None
    return numerator / denominator


def number(value: float | None, digits: int = 3) -> str:
    """A figure for a table; a dash when it was not measured."""
    return "-" if value is None else f"{value:.{digits}f}"


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    table = Table(title=title)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
