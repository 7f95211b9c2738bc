"""The picture of the README and the home page: intervals of one noise level beside calibrated ones.

Run by `make pictures`; writes docs/images/intervals.png.
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from sparsegp import SparseGPRegressor
from sparsegp.display import PredictionDisplay
from sparsegp.metrics import interval_coverage

mpl.use("Agg")
import matplotlib.pyplot as plt

TARGET = Path(__file__).parent.parent / "docs" / "images" / "intervals.png"
PARTS = {"quiet rows": (0.0, 3.0), "loud rows": (7.0, 10.0)}


def rows(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise that grows from left to right, and a gap without rows."""
    x = np.concatenate([rng.uniform(0, 5.5, n // 2), rng.uniform(7, 10, n - n // 2)])
    y = np.sin(1.6 * x) + 0.3 * x + (0.08 + 0.07 * x) * rng.standard_normal(n)
    return x[:, None], y


def inside(model: Any, X: np.ndarray, y: np.ndarray) -> str:
    """Share of new rows inside their interval, where they are quiet and where they are loud."""
    lower, upper = model.predict_interval(X, coverage=0.95)
    lines = []
    for name, (start, end) in PARTS.items():
        part = (X[:, 0] >= start) & (X[:, 0] < end)
        lines.append(f"{name}: {interval_coverage(y[part], lower[part], upper[part]):.0%}")
    return "new rows inside 95 % intervals\n" + "\n".join(lines)


def main(path: Path = TARGET, n: int = 1200) -> Path:
    rng = np.random.default_rng(3)
    X, y = rows(rng, n)
    given: dict[str, Any] = {"approximation": "vfe", "n_inducing": 15, "random_state": 0}
    models = {
        "One noise level for all rows": SparseGPRegressor(calibration=None, **given),
        "Calibrated on rows left out: the default": SparseGPRegressor(**given),
    }
    X_new, y_new = rows(rng, 20_000)
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.6), sharey=True, layout="constrained")
    for ax, (title, model) in zip(axes, models.items(), strict=True):
        PredictionDisplay.from_estimator(model.fit(X, y), X, y, ax=ax)
        ax.set_title(title, fontsize=11)
        ax.set_xlabel("x")
        ax.get_legend().remove()
        ax.text(0.98, 0.03, inside(model, X_new, y_new), transform=ax.transAxes, ha="right", va="bottom", fontsize=9)
        ax.set_ylim(-3.2, 7.0)
    axes[0].legend(fontsize="small", framealpha=0.0, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
    return path


if __name__ == "__main__":
    print(f"wrote {main()}")
