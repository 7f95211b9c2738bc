"""The picture of the README: what a mean with intervals looks like when the noise is learned too.

Run by `make picture`; writes docs/images/intervals.png.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np

from sparsegp import HeteroscedasticGPRegressor, SparseGPRegressor
from sparsegp.display import PredictionDisplay

mpl.use("Agg")
import matplotlib.pyplot as plt

TARGET = Path(__file__).parent.parent / "docs" / "images" / "intervals.png"


def rows(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise that grows from left to right, and a gap without rows."""
    x = np.concatenate([rng.uniform(0, 5.5, n // 2), rng.uniform(7, 10, n - n // 2)])
    y = np.sin(1.6 * x) + 0.3 * x + (0.08 + 0.07 * x) * rng.standard_normal(n)
    return x[:, None], y


def main(path: Path = TARGET, n: int = 1200) -> Path:
    X, y = rows(np.random.default_rng(3), n)
    models = {
        "SparseGPRegressor: one noise for all": SparseGPRegressor(approximation="vfe", n_inducing=15, random_state=0),
        "HeteroscedasticGPRegressor: noise is learned": HeteroscedasticGPRegressor(
            n_inducing=15, n_noise_inducing=8, random_state=0
        ),
    }
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.4), sharey=True, layout="constrained")
    for ax, (title, model) in zip(axes, models.items(), strict=True):
        PredictionDisplay.from_estimator(model.fit(X, y), X, y, ax=ax)
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("x")
        ax.get_legend().remove()
    axes[0].legend(fontsize="small", framealpha=0.0, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
    return path


if __name__ == "__main__":
    print(f"wrote {main()}")
