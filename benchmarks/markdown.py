"""Tables of results in Markdown, as the docs show them."""

from __future__ import annotations

from typing import Any

GOAL = "goal"


def markdown_table(columns: list[str], rows: list[list[str]]) -> str:
    """A table for readers. Goals are for developers, who see them when they run a benchmark."""
    if GOAL in columns:
        place = columns.index(GOAL)
        columns, *rows = ([*row[:place], *row[place + 1 :]] for row in (columns, *rows))
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def machine_line(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB, torch {machine['torch']}, "
        f"{machine['date']}.\n"
    )
