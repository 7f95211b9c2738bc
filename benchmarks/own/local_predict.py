"""Worker: predictions of one local model (pic, or a committee of exact experts) against the products they need.

The limit has, for each row, the covariances with the inducing inputs and with the rows of its block, the two products
between these, and the three with triangular inverses, each as a product of half the size: all in memory allocated
before, in chunks, one thread for each core. Committees have those of the experts that are asked.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.measure import PeakMemory, median_seconds, seconds_of

import sparsegp
from sparsegp import CommitteeGPRegressor, SparseGPRegressor, kernels, parallel, serving

CHUNK_ROWS = 1024


def fitted_model(problem: Arrays, options: dict[str, Any]) -> Any:
    """At given hyper-parameters."""
    kernel = kernels.SquaredExponential(variance=float(problem["variance"]), lengthscales=problem["lengthscales"])
    given = {"kernel": kernel, "optimizer": None, "noise_var": float(problem["noise_var"]), "random_state": 0}
    n_parts = options["n_parts"]
    if options["model"] == "pic":
        model = SparseGPRegressor(approximation="pic", n_inducing=options["n_inducing"], n_blocks=n_parts, **given)
    else:
        model = CommitteeGPRegressor(aggregation=options["model"], n_experts=n_parts, **given)
    return model.fit(problem["X"], problem["y"])


class Products:
    """Scratch arrays of one chunk and one thread, and the products of it."""

    def __init__(self, n_features: int, factors: list[tuple[int, int]], n_exps: list[int]) -> None:
        self.rows = torch.full((CHUNK_ROWS, n_features), 0.1, dtype=torch.float64)
        self.columns = [torch.full((n_features, m), 0.1, dtype=torch.float64) for m in n_exps]
        self.K = [torch.empty(CHUNK_ROWS, m, dtype=torch.float64) for m in n_exps]
        widest = max(inner for inner, _ in factors)
        self.left = torch.full((CHUNK_ROWS, widest), 0.1, dtype=torch.float64)
        self.factors = [torch.full(shape, 0.1, dtype=torch.float64) for shape in factors]
        self.out = [torch.empty(CHUNK_ROWS, outer, dtype=torch.float64) for _, outer in factors]

    def __call__(self, n_chunks: int) -> None:
        for _ in range(n_chunks):
            for columns, K in zip(self.columns, self.K, strict=True):
                torch.mm(self.rows, columns, out=K).exp_()
            for factor, out in zip(self.factors, self.out, strict=True):
                torch.mm(self.left[:, : len(factor)], factor, out=out)


def limit_seconds(
    n_rows: int, n_features: int, factors: list[tuple[int, int]], n_exps: list[int], repeats: int
) -> float:
    n_threads = parallel.available()
    works = [Products(n_features, factors, n_exps) for _ in range(n_threads)]
    n_chunks = -(-n_rows // (CHUNK_ROWS * n_threads))
    timing = median_seconds(lambda: parallel.run([partial(work, n_chunks) for work in works]), repeats)
    return timing.median * n_rows / (n_chunks * CHUNK_ROWS * n_threads)


def needed(options: dict[str, Any], n_train: int) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Shapes of the products for the variance, and numbers of covariances for it and for the mean alone."""
    b = n_train // options["n_parts"]
    if options["model"] == "pic":
        m = options["n_inducing"]
        return [(m, m // 2), (m, b), (b, b // 2), (b, m), (m, m // 2)], [m, b], [m, b]
    asked = min(options["asked"], options["n_parts"])
    if options["model"] == "grbcm":
        return [(b, b // 2), *[(b, b), (b, b // 2)] * asked], [b] * (asked + 1), [b] * (asked + 1)
    return [(b, b // 2)] * asked, [b] * asked, [b] * asked


def single_row_ms(predict: Callable[[np.ndarray], object], X: np.ndarray, n_single: int) -> float:
    """Median over different rows, each of which finds its block ready."""
    rows = iter(np.arange(10 * n_single + 100) % min(len(X), n_single))
    return 1e3 * median_seconds(lambda: predict(X[[next(rows)]]), n_single, min(n_single, 50)).median


def main(folder: str) -> None:
    problem, options = read_job(folder)
    X_test, repeats = problem["X_test"], options["repeats"]
    model = fitted_model(problem, options)
    memory = PeakMemory()
    first = seconds_of(lambda: model.predict(X_test, return_std=True))
    peak_mb = memory.above_start_mb()
    factors, exps, mean_exps = needed(options, len(problem["X"]))
    n_features = X_test.shape[1]
    one_column = [(m, 1) for m in mean_exps]
    facts = {
        "first_seconds": first,
        "peak_mb": peak_mb,
        "seconds": median_seconds(lambda: model.predict(X_test, return_std=True), repeats).median,
        "mean_seconds": median_seconds(lambda: model.predict(X_test), repeats).median,
        "limit_seconds": limit_seconds(len(X_test), n_features, factors, exps, repeats),
        "mean_limit_seconds": limit_seconds(len(X_test), n_features, one_column, mean_exps, repeats),
        "single_row_ms": single_row_ms(lambda x: model.predict(x, return_std=True), X_test, options["n_single"]),
        "single_row_mean_ms": single_row_ms(model.predict, X_test, options["n_single"]),
    }
    write_result(folder, {**facts, **served(model, X_test, options)})


def served(model: Any, X_test: np.ndarray, options: dict[str, Any]) -> dict[str, float]:
    """The same from the model file without torch, where that can be."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.sgp"
        model.save(path)
        light = serving.load_if_light(path)
        size = path.stat().st_size / 2**20
        load_seconds = seconds_of(lambda: sparsegp.load(path))
    facts = {"file_mb": size, "load_seconds": load_seconds}
    if light is None:
        return facts
    light.predict(X_test, return_std=True)
    return {
        **facts,
        "served_seconds": median_seconds(lambda: light.predict(X_test, return_std=True), options["repeats"]).median,
        "served_mean_seconds": median_seconds(lambda: light.predict(X_test), options["repeats"]).median,
        "served_single_row_ms": single_row_ms(lambda x: light.predict(x, return_std=True), X_test, options["n_single"]),
    }


if __name__ == "__main__":
    main(sys.argv[1])
