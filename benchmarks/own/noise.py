"""Worker: fit one of the estimators compared for their noise; moments, density and noise at the test rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.measure import PeakMemory

from papers.ehsod import EmpiricalHeteroscedasticRegressor
from papers.gpvc import VariableCovarianceRegressor
from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, SparseGPRegressor
from sparsegp.kernels import Periodic, SquaredExponential


@dataclass(frozen=True)
class Kind:
    """An estimator, what its number of blocks or experts is called, and whether it tells density and noise."""

    make: Callable[..., Any]
    shares: str | None = None
    has_density: bool = True


KINDS = {
    "heteroscedastic": Kind(HeteroscedasticGPRegressor, "n_blocks"),
    "committee": Kind(CommitteeGPRegressor, "n_experts"),
    "sparse": Kind(SparseGPRegressor, "n_blocks"),
    "ehsod": Kind(EmpiricalHeteroscedasticRegressor, has_density=False),
    "gpvc": Kind(VariableCovarianceRegressor),
}
KERNELS = {
    "trend and seasons": lambda: (
        SquaredExponential(400.0, [30.0]) + SquaredExponential(9.0, [60.0]) * Periodic(1.0, [1.0], period=1.0)
    )
}
COUNTS = ("n_inducing", "n_noise_inducing", "n_subset", "n_basis")


def build(options: dict[str, Any], n_rows: int) -> tuple[Kind, Any]:
    """`rows_each` is the number of rows of a block or an expert; no count is larger than the number of rows.

    `kernel` may be a name of `KERNELS`, here in years and parts per million.
    """
    options = dict(options)
    kind, rows_each = KINDS[options.pop("estimator")], options.pop("rows_each", None)
    if rows_each is not None and kind.shares is not None:
        options[kind.shares] = max(1, round(n_rows / rows_each))
    if options.get("kernel") in KERNELS:
        options["kernel"] = KERNELS[options["kernel"]]()
    options |= {name: min(options[name], n_rows) for name in COUNTS if name in options}
    return kind, kind.make(**options, random_state=0)


def fit_and_predict(problem: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    """`levels`, if there are any, are those of the quantiles given back."""
    levels = options.pop("levels", None)
    kind, model = build(options, len(problem["y"]))
    memory = PeakMemory()
    start, start_cpu = time.perf_counter(), time.process_time()
    model.fit(problem["X"], problem["y"])
    fitted, fitted_cpu = time.perf_counter(), time.process_time()
    arrays = _moments(kind, model, problem["X_test"])
    facts = {
        "seconds": fitted - start,
        "cpu_seconds": fitted_cpu - start_cpu,
        "predict_seconds": time.perf_counter() - fitted,
        "peak_mb": memory.above_start_mb(),
    }
    if kind.has_density:
        arrays["log_density"] = model.log_density(problem["X_test"], problem["y_test"])
    if levels is not None:
        arrays["quantiles"] = model.predict_quantiles(problem["X_test"], levels)
    return facts, arrays


def _moments(kind: Kind, model: Any, X: Any) -> Arrays:
    """Of y, and the std of the noise where a model tells it, in one pass: the two parts of the variance add up."""
    if not kind.has_density:
        mean, std = model.predict(X, return_std=True)
        return {"mean": mean, "std": std}
    mean, latent_std, noise_std = model.predict_components(X)
    return {"mean": mean, "std": np.hypot(latent_std, noise_std), "noise_std": noise_std}


if __name__ == "__main__":
    write_result(sys.argv[1], *fit_and_predict(*read_job(sys.argv[1])))
