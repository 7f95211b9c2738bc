"""Worker: prediction (mean and standard deviation) of many rows and of one row by the public regressor."""

from __future__ import annotations

import sys

import numpy as np
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.measure import PeakMemory, median_seconds

from sparsegp import SparseGPRegressor, kernels


def fitted_model(problem: Arrays) -> SparseGPRegressor:
    kernel = kernels.SquaredExponential(variance=float(problem["variance"]), lengthscales=problem["lengthscales"])
    model = SparseGPRegressor(
        approximation="vfe",
        kernel=kernel,
        optimizer=None,
        inducing=problem["Z"],
        n_inducing=len(problem["Z"]),
        noise_var=float(problem["noise_var"]),
        normalize=False,
    )
    return model.fit(problem["X"], problem["y"])


def peak_of(model: SparseGPRegressor, X: np.ndarray) -> float:
    """Peak megabytes above the fitted model and the test rows, the two result arrays included."""
    memory = PeakMemory()
    model.predict(X, return_std=True)
    return memory.above_start_mb()


def main(folder: str) -> None:
    problem, options = read_job(folder)
    model, X_test = fitted_model(problem), problem["X_test"]
    peak_tenth = peak_of(model, X_test[: len(X_test) // 10])
    peak_all = peak_of(model, X_test)
    many = median_seconds(lambda: model.predict(X_test, return_std=True), options["repeats"])
    one = median_seconds(lambda: model.predict(X_test[:1], return_std=True), options["single_repeats"], 50)
    facts = {
        **many.as_facts(),
        "peak_mb": peak_all,
        "peak_mb_tenth_of_rows": peak_tenth,
        "single_row_ms": 1e3 * one.median,
    }
    write_result(folder, facts)


if __name__ == "__main__":
    main(sys.argv[1])
