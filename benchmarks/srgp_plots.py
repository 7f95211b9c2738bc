"""Plots of the SRGP benchmarks, written to docs/images when asked for (matplotlib, the `plot` extra)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.jobs import ROOT, Arrays

IMAGES = ROOT / "docs" / "images"
DPI = 80
COLOURS = {"srgp": "tab:blue", "vfe": "tab:red", "gpflow-svgp": "tab:green"}

Cells = dict[str, dict[str, dict[str, Any]]]


def _figure(n_rows: int, n_columns: int) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(n_rows, n_columns, figsize=(3.6 * n_columns, 2.6 * n_rows), squeeze=False)


def _save(figure: Any, name: str) -> Path:
    IMAGES.mkdir(parents=True, exist_ok=True)
    path = IMAGES / f"{name}.png"
    figure.tight_layout()
    figure.savefig(path, dpi=DPI)
    return path


def traces(name: str, cells: Cells) -> Path:
    """Test RMSE, bound, first lengthscale and noise by epoch; the batch method as a line (figures 5 to 7)."""
    shown = {"rmse": "test RMSE", "bound": "bound", "lengthscale": "first lengthscale", "noise_var": "noise variance"}
    figure, axes = _figure(len(cells), len(shown))
    for row, (label, entries) in zip(axes, cells.items(), strict=True):
        for axis, (key, title) in zip(row, shown.items(), strict=True):
            for method, entry in entries.items():
                if "trace" in entry:
                    epochs = [epoch["epoch"] for epoch in entry["trace"]]
                    values = [_value(epoch, key) for epoch in entry["trace"]]
                    axis.plot(epochs, values, color=COLOURS[method], label=method)
                elif key == "rmse" and key in entry:
                    axis.axhline(entry[key], color=COLOURS[method], linestyle="--", label=method)
            axis.set_title(f"{label}: {title}", fontsize=9)
            axis.set_xlabel("epoch", fontsize=8)
    axes[0, 0].legend(fontsize=7)
    return _save(figure, name)


def _value(epoch: dict[str, Any], key: str) -> float:
    return float(epoch["lengthscales"][0] if key == "lengthscale" else epoch[key])


def horizons(name: str, cells: Cells) -> Path:
    """RMSE and median error against the training horizon (figure 9)."""
    shown = {"rmse_to_truth": "RMSE to the true response", "median_error_to_truth": "median error"}
    figure, axes = _figure(1, len(shown))
    for axis, (key, title) in zip(axes[0], shown.items(), strict=True):
        for method, colour in COLOURS.items():
            known = {label: e[method][key] for label, e in cells.items() if key in e.get(method, {})}
            axis.loglog([int(label.replace(",", "")) for label in known], list(known.values()), "o-", color=colour)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("training samples", fontsize=8)
    axes[0, 0].legend(list(COLOURS), fontsize=7)
    return _save(figure, name)


def bands(name: str, problem: Arrays, steps: list[dict[str, Any]], arrays: Arrays) -> Path:
    """Posterior after some rows, with cumulative bound and derivative (figures 1 and 3)."""
    figure, axes = _figure(2, (len(steps) + 1) // 2)
    X, X_test = problem["X"][:, 0], problem["X_test"][:, 0]
    for axis, step in zip(axes.ravel(), steps, strict=False):
        k = step["rows"]
        mean, std = arrays[f"mean_{k}"], arrays[f"std_{k}"]
        axis.plot(X[:k], problem["y"][:k], "k.", markersize=3)
        axis.plot(X_test, mean, color=COLOURS["srgp"])
        axis.fill_between(X_test, mean - 2 * std, mean + 2 * std, alpha=0.2)
        axis.set_title(f"{k} rows: {step['bound']:.2f}, slope {step['slope']:.2f}", fontsize=9)
    return _save(figure, f"{name}_online")
