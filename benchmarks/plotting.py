"""Small multi-panel pictures for the docs, written to docs/images (matplotlib, the `plot` extra)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.jobs import ROOT

IMAGES = ROOT / "docs" / "images"
DPI = 80


def panels(n_rows: int, n_columns: int, size: tuple[float, float] = (3.6, 2.6)) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(n_rows, n_columns, figsize=(size[0] * n_columns, size[1] * n_rows), squeeze=False)


def save(figure: Any, name: str) -> Path:
    IMAGES.mkdir(parents=True, exist_ok=True)
    path = IMAGES / f"{name}.png"
    figure.tight_layout()
    figure.savefig(path, dpi=DPI, bbox_inches="tight")
    return path
