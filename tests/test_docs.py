"""Every Python block of the README and the docs runs, top to bottom, in one namespace per page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def with_code():
    return [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", with_code(), ids=lambda page: page.name)
def test_code_blocks_run(page):
    namespace = {"__name__": "docs"}
    for block in BLOCK.findall(page.read_text()):
        exec(compile(block, page.name, "exec"), namespace)


def test_the_pages_with_code_are_found():
    assert {"README.md", "regressor.md", "custom-kernels.md"} <= {page.name for page in with_code()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
