"""Compare two approximations on real flights: scores on held-out rows, and a plot of what they predict.

Run by `make demo`. The data are a sample of nycflights13 (examples/data/README.md).
"""

import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from sparsegp import SparseGPRegressor, metrics

mpl.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
OUTPUT = HERE.parent / "demo-output"
TEST_SHARE = 0.1
MODELS = {
    "vfe, 200 inducing inputs": SparseGPRegressor(approximation="vfe", n_inducing=200, random_state=1),
    "pic, 200 inducing inputs, blocks of 400": SparseGPRegressor(
        kernel="matern32", approximation="pic", n_inducing=200, n_blocks=135, random_state=1
    ),
}


def load() -> tuple[list[str], np.ndarray, np.ndarray]:
    table = pq.read_table(HERE / "data" / "flights_nyc2013_sample.parquet")
    names = table.column_names[:-1]
    X = np.column_stack([table[name].to_numpy() for name in names]).astype(np.float64)
    return names, X, table["y"].to_numpy().astype(np.float64)


def main() -> None:
    names, X, y = load()
    order = np.random.default_rng(1).permutation(len(y))
    test, train = np.split(order, [round(TEST_SHARE * len(y))])
    console = Console()
    console.print(
        f"Arrival delay of {len(y):,} flights from New York from {len(names)} features; {len(test):,} rows held out."
    )
    table = Table("model", "RMSE, min", "NLPD", "CRPS", "95 % coverage", "fit, s", title="Held-out flights")
    predictions = {}
    for name, model in MODELS.items():
        started = time.perf_counter()
        model.fit(X[train], y[train])
        seconds = time.perf_counter() - started
        mean, std = model.predict(X[test], return_std=True)
        predictions[name] = mean, std
        scores = metrics.summary(y[test], mean, std, y_train=y[train])
        shown = [scores[key] for key in ("rmse", "nlpd", "crps", "coverage_95")]
        table.add_row(name, *(f"{value:.3f}" for value in shown), f"{seconds:.1f}")
    console.print(table)
    console.print(f"Plot: {plot(y[test], predictions)}")


def plot(y: np.ndarray, predictions: dict[str, tuple[np.ndarray, np.ndarray]]) -> Path:
    """Calibration of both models and predictions with intervals for a random hundred flights."""
    OUTPUT.mkdir(exist_ok=True)
    figure, axes = plt.subplots(
        1, 1 + len(predictions), figsize=(5 * (1 + len(predictions)), 4.5), layout="constrained"
    )
    levels = np.linspace(0.02, 0.98, 49)
    axes[0].plot([0, 1], [0, 1], color="0.7")
    for axis, (name, (mean, std)) in zip(axes[1:], predictions.items(), strict=True):
        pit = metrics.pit_values(y, mean, std)
        covered = [np.mean(np.abs(pit - 0.5) <= level / 2) for level in levels]
        axes[0].plot(levels, covered, label=name)
        shown = np.argsort(mean)[:: len(mean) // 100]
        axis.errorbar(np.arange(len(shown)), mean[shown], 1.96 * std[shown], fmt="none", ecolor="C0", alpha=0.5)
        axis.plot(y[shown], "k.", markersize=4)
        axis.set(title=name, xlabel="flights, ordered by prediction", ylabel="arrival delay, min", ylim=(-100, 250))
    axes[0].set(title="Calibration", xlabel="nominal coverage", ylabel="observed coverage")
    axes[0].legend(fontsize=7)
    path = OUTPUT / "flights.png"
    figure.savefig(path, dpi=120)
    return path


if __name__ == "__main__":
    main()
