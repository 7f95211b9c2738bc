"""Pictures of the noise experiments: bands and learned noise of the toy, solar irradiance, and all of the comparison.

`python -m benchmarks.noise_plots` draws those of noise_experiments again from its results file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import noise_experiments
from benchmarks.jobs import Arrays
from benchmarks.plotting import panels, save
from benchmarks.results import read_results

COLOURS = {"dvshgp": "tab:blue", "vshgp": "tab:red", "vhgp": "tab:green", "vsgp": "tab:gray"}


def toy(data: Arrays, arrays: dict[str, Arrays], stochastic: dict[str, Any]) -> Path:
    """Mean and interval of DVSHGP, noise of all models against the truth, bound of SVSHGP (figures 2 to 4)."""
    figure, ((left, middle, right),) = panels(1, 3)
    x = data["X_test"][:, 0]
    _band(left, data, arrays["dvshgp"], COLOURS["dvshgp"])
    left.set_title("DVSHGP, five experts", fontsize=9)
    middle.plot(x, data["true_noise_std"], "k--", label="truth")
    for name, found in arrays.items():
        middle.plot(x, found["noise_std"], color=COLOURS[name], label=name)
    middle.set_title("noise std", fontsize=9)
    middle.legend(fontsize=7)
    right.plot(np.arange(1, len(stochastic["trace"]) + 1), stochastic["trace"], label="SVSHGP")
    right.axhline(stochastic["vshgp"], color="k", linestyle="--", label="VSHGP")
    right.set_ylim(bottom=stochastic["vshgp"] - 1000.0)
    right.set_title("bound by iteration", fontsize=9)
    right.legend(fontsize=7)
    return save(figure, "noise_toy")


def solar(data: Arrays, arrays: dict[str, Arrays]) -> Path:
    """DVSHGP and VSHGP on solar irradiance (figure 5)."""
    figure, axes = panels(len(arrays), 1, (7.2, 2.2))
    for axis, (name, found) in zip(axes[:, 0], arrays.items(), strict=True):
        _band(axis, data, found, COLOURS[name])
        axis.set_title(name, fontsize=9)
    return save(figure, "noise_solar")


def _band(axis: Any, data: Arrays, found: Arrays, colour: str) -> None:
    order = np.argsort(data["X_test"][:, 0])
    x, mean, std = data["X_test"][order, 0], found["mean"][order], found["std"][order]
    axis.plot(data["X"][:, 0], data["y"], "k.", markersize=2)
    axis.plot(x, mean, color=colour)
    axis.fill_between(x, mean - 1.96 * std, mean + 1.96 * std, color=colour, alpha=0.25)


Cells = dict[str, dict[str, dict[str, Any]]]
SCORES = {"smse": "SMSE", "msll": "MSLL"}


def scores(cells: Cells) -> Path:
    """SMSE and MSLL of every model on every data set (figures 6 and 8)."""
    figure, axes = panels(len(SCORES), len(cells), (3.0, 2.2))
    for column, (dataset, by_method) in enumerate(cells.items()):
        known = {name: cell for name, cell in by_method.items() if "smse" in cell}
        for axis, (score, title) in zip(axes[:, column], SCORES.items(), strict=True):
            axis.plot(range(len(known)), [cell[score] for cell in known.values()], "o", color="tab:blue")
            axis.set_xticks(range(len(known)), list(known), rotation=60, fontsize=7, ha="right")
            axis.set_ylabel(title, fontsize=8)
        axes[0, column].set_title(dataset, fontsize=9)
    return save(figure, "noise_scores")


def maps(by_method: dict[str, dict[str, Any]], truth: np.ndarray) -> Path:
    """Predictive std of every model over the square beside the true noise (figure 7)."""
    known = {name: np.array(cell["std_map"]) for name, cell in by_method.items() if "std_map" in cell}
    shown = {"true noise": truth, **known}
    figure, axes = panels(-(-len(shown) // 5), min(5, len(shown)), (2.2, 2.2))
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (name, values) in zip(axes.flat, shown.items(), strict=False):
        side = round(len(values) ** 0.5)
        axis.imshow(values.reshape(side, side), origin="lower", vmin=0.0, vmax=float(truth.max()))
        axis.set_title(name, fontsize=8)
    return save(figure, "noise_maps")


def noise_spread(cells: Cells) -> Path:
    """5 to 95 % range, quartiles and median of the log noise variance of every model (figures 9, 12 and 14)."""
    figure, axes = panels(1, len(cells), (3.0, 2.6))
    for axis, (dataset, by_method) in zip(axes[0], cells.items(), strict=True):
        known = {name: c["log_noise_quantiles"] for name, c in by_method.items() if "log_noise_quantiles" in c}
        for place, levels in enumerate(known.values()):
            axis.plot([place, place], [levels[0], levels[4]], color="tab:blue")
            axis.plot([place, place], [levels[1], levels[3]], color="tab:blue", linewidth=6)
            axis.plot(place, levels[2], "w.", markersize=4)
        axis.set_xticks(range(len(known)), list(known), rotation=60, fontsize=7)
        axis.set_title(dataset, fontsize=9)
    return save(figure, "noise_spread")


def main() -> None:
    cells: Cells = read_results("noise_experiments", quick=False).get("cells", {})
    scores(cells)
    noise_spread(cells)
    square = noise_experiments.problem("sinc2d", noise_experiments.SETTINGS["sinc2d"])
    maps(cells.get("sinc2d", {}), np.array(noise_experiments.coarse(square["true_noise_std"])))


if __name__ == "__main__":
    main()
