"""Peer: GPBoost, a Gaussian process with Vecchia's approximation, all hyper-parameters by maximum likelihood.

With `n_inducing` the approximation is VIF: Vecchia's for what the inducing inputs leave over.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import gpboost
import numpy as np
from benchmarks.jobs import Arrays, read_job, write_result


def fit_and_predict(problem: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    start, start_cpu = time.perf_counter(), time.process_time()
    centre, scale = problem["X"].mean(axis=0), problem["X"].std(axis=0)
    scale[scale == 0.0] = 1.0
    X, X_test = ((problem[name] - centre) / scale for name in ("X", "X_test"))
    model = gpboost.GPModel(
        gp_coords=X,
        cov_function=options["cov_function"],
        cov_fct_shape=options["shape"],
        gp_approx="full_scale_vecchia" if "n_inducing" in options else "vecchia",
        num_ind_points=options.get("n_inducing"),
        num_neighbors=options["n_neighbours"],
        likelihood="gaussian",
        num_parallel_threads=options.get("threads", 1),
        seed=0,
    )
    model.fit(y=problem["y"], X=np.ones((len(X), 1)))
    fitted, fitted_cpu = time.perf_counter(), time.process_time()
    found = model.predict(
        gp_coords_pred=X_test, X_pred=np.ones((len(X_test), 1)), predict_var=True, predict_response=True
    )
    facts = {
        "seconds": fitted - start,
        "cpu_seconds": fitted_cpu - start_cpu,
        "predict_seconds": time.perf_counter() - fitted,
        "version": gpboost.__version__,
    }
    return facts, {"mean": np.asarray(found["mu"]), "std": np.sqrt(np.asarray(found["var"]))}


if __name__ == "__main__":
    write_result(sys.argv[1], *fit_and_predict(*read_job(sys.argv[1])))
