"""Every Python block of the README and the docs runs, top to bottom, in one namespace per page, and imports public
names only."""

import ast
import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparsegp.cli import app

ROOT = Path(__file__).parent.parent
GUIDES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "coming-from").glob("*.md")),
]
PAGES = [*GUIDES, *sorted((ROOT / "docs" / "derivations").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def with_code():
    return [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.fixture
def without_windows(monkeypatch):
    """Pictures are drawn, and closed."""
    plt = pytest.importorskip("matplotlib.pyplot", reason="pictures need the extra: pip install 'sparsegp[plot]'")
    plt.switch_backend("Agg")
    yield
    plt.close("all")


@pytest.mark.usefixtures("brief_learning", "without_windows")
@pytest.mark.parametrize("page", with_code(), ids=lambda page: page.name)
def test_code_blocks_run(page):
    """With a few steps of learning: what it learns is the matter of other tests."""
    namespace = {"__name__": "docs"}
    for block in BLOCK.findall(page.read_text()):
        exec(compile(block, page.name, "exec"), namespace)


COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.usefixtures("brief_learning")
def test_the_commands_of_the_tables_page_run(tmp_path, monkeypatch):
    """As they stand, on the first rows of the sample: a pipe is what its first part gives, a redirection its end."""
    lines = [
        line for block in COMMANDS.findall((ROOT / "docs" / "tables.md").read_text()) for line in block.splitlines()
    ]
    copy, *commands = lines
    sample = ROOT / copy.split()[1]
    (tmp_path / "flights.csv").write_text("".join(sample.read_text().splitlines(keepends=True)[:301]))
    monkeypatch.chdir(tmp_path)
    for line in commands:
        before, pipe, command = line.rpartition(" | ")
        given = subprocess.run(before.split(), capture_output=True, check=True).stdout if pipe else b""
        arguments = command.partition(" > ")[0].split()
        assert arguments[0] == "sparsegp"
        done = CliRunner().invoke(app, arguments[1:], input=given, catch_exceptions=False)
        assert done.exit_code == 0, (line, done.output)
    assert len(commands) == 5
    assert (tmp_path / "forecast.csv").read_text().count("\n") == 301


def imports_of(page):
    """(module, name) of everything a page imports from sparsegp."""
    for block in BLOCK.findall(page.read_text()):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sparsegp":
                yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_guides_import_public_names(page):
    for module, name in imports_of(page):
        found = import_module(module)
        assert module.count(".") <= 1, module
        assert name in found.__all__, (module, name)


def test_the_pages_with_code_are_found():
    assert {"README.md", "regressor.md", "custom-kernels.md"} <= {page.name for page in with_code()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
