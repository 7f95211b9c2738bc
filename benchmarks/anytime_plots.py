"""Plots of the anytime benchmarks from their results files: `python -m benchmarks.anytime_plots`."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.jobs import ROOT
from benchmarks.results import read_results

IMAGES = ROOT / "docs" / "images"
DPI = 70
PICTURES = ("rmse-steps", "nlpd-steps", "efficiency", "seconds-steps")


def reproduction(name: str, cell: dict[str, Any]) -> None:
    """RMSE and NLPD against steps, PE against TE, seconds against steps (000 figures 1 to 4), by our own Display."""
    from matplotlib import pyplot

    from sparsegp.display.curves import AnytimeDisplay, Curve

    curves = {
        label: Curve(
            np.array([entry["step"] for entry in entries]),
            np.array([entry["seconds"] for entry in entries]),
            {score: np.array([entry[score] for entry in entries]) for score in ("rmse", "nlpd")},
        )
        for label, entries in cell["curves"].items()
    }
    full = {label: cell["full"][label.split("+")[0].lower()] for label in curves}
    display = AnytimeDisplay(curves, {label: (entry["seconds"], entry["rmse"]) for label, entry in full.items()})
    figure, axes = pyplot.subplots(2, 2, figsize=(9.6, 7.2), layout="constrained")
    display.plot(axes, pictures=PICTURES)
    figure.suptitle(f"{name}, mean of the repetitions")
    figure.savefig(IMAGES / f"anytime_{name}.png", dpi=DPI)
    pyplot.close(figure)


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, cell in read_results("anytime_reproduction").get("cells", {}).items():
        if "curves" in cell:
            reproduction(name, cell)


if __name__ == "__main__":
    main()
