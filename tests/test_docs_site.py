"""The site: every page is in the navigation, every entry is a page, and it builds without a warning."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent


def pages(entries):
    """Files named anywhere in a navigation."""
    for entry in entries:
        values = entry.values() if isinstance(entry, dict) else [entry]
        for value in values:
            yield from pages(value) if isinstance(value, list) else [value]


def navigation():
    return list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))


def test_every_page_is_in_the_navigation_once():
    found = sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))
    assert sorted(navigation()) == found


def documented():
    """Names that the page of the API describes."""
    lines = (ROOT / "docs/api.md").read_text().splitlines()
    return [line.removeprefix("::: ") for line in lines if line.startswith("::: ")]


@pytest.mark.parametrize("name", documented())
def test_what_the_api_page_describes_is_there(name):
    """The page is built by an extra, so a module that moves would break it unseen."""
    package, _, last = name.rpartition(".")
    if not (ROOT / "src" / f"{name.replace('.', '/')}.py").exists():
        source = importlib.util.find_spec(package).origin
        # a neighbour that is not installed cannot be imported
        defined = re.search(rf"^(class|def) {last}\b", Path(source).read_text(), re.MULTILINE)
        assert defined or hasattr(importlib.import_module(package), last)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="the site needs its extra: pip install '.[docs]', or `make docs`"
)
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "api" / "index.html").exists()
