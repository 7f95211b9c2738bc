"""Results for people (tables) and for scripts (one JSON object on standard output)."""

import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

UNSHOWN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Categories of characters that steer a terminal, turn the direction of text, or are no text at all."""


def shown(text: Any, keep: str = "") -> str:
    """Text from outside as it may go to a terminal: what would steer it is written as \\x1b, \\u202e and so on."""
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in UNSHOWN and character not in keep
        else character
        for character in str(text)
    )


def show(title: str, result: Mapping[str, Any], as_json: bool) -> None:
    """Names and values; to people nothing is said of what there is none of."""
    if as_json:
        print_json(result)
        return
    from rich.table import Table

    table = Table(title=_cell(title), show_header=False)
    for name, value in result.items():
        if value is None or value == []:
            continue
        table.add_row(_cell(name.replace("_", " ")), _lines(value) if isinstance(value, dict) else _cell(_text(value)))
    _print(table)


def show_rows(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """A table of several results; what a row does not have stays empty."""
    from rich.table import Table

    table = Table(title=_cell(title))
    for k, name in enumerate(columns):
        table.add_column(_cell(name.replace("_", " ")), justify="left" if k == 0 else "right")
    for row in rows:
        table.add_row(*[_cell(_text(row.get(name))) for name in columns])
    _print(table)


def print_json(result: Any) -> None:
    print(json.dumps(result))


def say(text: str) -> None:
    """A sentence of the result, for people."""
    from rich.console import Console

    Console(highlight=False, markup=False, emoji=False).print(shown(text, keep="\n"))


def note(text: str) -> None:
    """Something to know, beside the result."""
    print(shown(text, keep="\n"), file=sys.stderr)


def _print(table: Any) -> None:
    from rich.console import Console

    Console().print(table)


def _cell(text: str) -> Any:
    """Text, not markup: brackets are brackets."""
    from rich.text import Text

    return Text(shown(text))


def _lines(pairs: Mapping[str, Any]) -> Any:
    """One line for each name and its value."""
    from rich.text import Text

    return Text("\n".join(f"{shown(name)}: {shown(_text(value))}" for name, value in pairs.items()))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
