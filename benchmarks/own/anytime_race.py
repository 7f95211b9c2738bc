"""Worker: what `fit` has when each of some budgets is used, and how it gets there as `fit_iter` shows it."""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.scores import gaussian_scores

from sparsegp import SparseGPRegressor


def fitted_within(problem: Arrays, settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    gp = SparseGPRegressor(**settings, time_budget=seconds, random_state=0)
    started = time.perf_counter()
    gp.fit(problem["X"], problem["y"])
    used = time.perf_counter() - started
    mean, std = gp.predict(problem["X_test"], return_std=True)
    scores = gaussian_scores(problem["y_test"], {"mean": mean, "std": std})
    budget = gp.info_["budget"]
    return {"asked": seconds, "seconds": used, "fraction": budget["fraction"], "reason": budget["reason"], **scores}


def shown_by_steps(problem: Arrays, settings: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
    gp = SparseGPRegressor(**settings, time_budget=seconds, random_state=0)
    validation = (problem["X_test"], problem["y_test"])
    return [
        {"seconds": p.seconds, "step": p.step, "stage": p.stage, "fraction": p.fraction, **p.scores}
        for p in gp.fit_iter(problem["X"], problem["y"], validation=validation)
    ]


def main(folder: str) -> None:
    problem, options = read_job(folder)
    settings = options["settings"]
    facts: dict[str, Any] = {"fits": [fitted_within(problem, settings, seconds) for seconds in options["budgets"]]}
    if options["watched"]:
        facts["trace"] = shown_by_steps(problem, settings, options["watched"])
    write_result(folder, facts)


if __name__ == "__main__":
    main(sys.argv[1])
