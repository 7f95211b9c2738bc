"""The pictures of docs/gallery.md: runs the code of the page and keeps what each block has drawn.

Run by `make pictures`; writes docs/images/gallery-*.png, one for each heading.
"""

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).parent.parent / "docs"
SECTION = re.compile(r"^## (.+?)$(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def slug(heading: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def main(folder: Path = DOCS / "images", page: Path = DOCS / "gallery.md") -> list[Path]:
    """Draw every picture; returns their paths."""
    text = page.read_text()
    namespace: dict[str, Any] = {"__name__": "gallery"}
    for block in BLOCK.findall(text[: text.index("\n## ")]):
        exec(compile(block, page.name, "exec"), namespace)
    written = []
    for heading, body in SECTION.findall(text):
        for block in BLOCK.findall(body):
            exec(compile(block, page.name, "exec"), namespace)
        path = folder / f"gallery-{slug(heading)}.png"
        plt.gcf().savefig(path, dpi=80)
        plt.close("all")
        written.append(path)
    return written


if __name__ == "__main__":
    for drawn in main():
        print(f"wrote {drawn}")
