"""The program in this process, which saves the seconds in which a new one imports torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsegp.cli import main

Program = Callable[..., tuple[int, str, str]]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """Runs the program in a folder: its exit code, output and errors."""

    def run(folder: Path, *arguments: object, **variables: str) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["sparsegp", *map(str, arguments)])
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run
