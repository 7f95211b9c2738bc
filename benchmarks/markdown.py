"""Tables of results in Markdown, as the docs show them."""

from __future__ import annotations

from typing import Any


def markdown_table(columns: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def machine_line(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB, torch {machine['torch']}, "
        f"{machine['date']}.\n"
    )
