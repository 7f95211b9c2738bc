"""Worker: predictions of every row by a model that has not seen it (cross-validation), with the 95 % interval."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.own.noise import build
from sklearn.model_selection import KFold

NAMES = ("mean", "std", "log_density", "lower", "upper")


def out_of_fold(X: np.ndarray, y: np.ndarray, folds: int, options: dict[str, Any]) -> Arrays:
    found = {name: np.empty(len(y)) for name in NAMES}
    for train, test in KFold(folds, shuffle=True, random_state=0).split(X):
        _, model = build(options, len(train))
        model.fit(X[train], y[train])
        found["mean"][test], found["std"][test] = model.predict(X[test], return_std=True)
        found["log_density"][test] = model.log_density(X[test], y[test])
        found["lower"][test], found["upper"][test] = model.predict_interval(X[test])
    return found


def main(folder: str) -> None:
    problem, options = read_job(folder)
    write_result(folder, {}, out_of_fold(problem["X"], problem["y"], options.pop("folds"), options))


if __name__ == "__main__":
    main(sys.argv[1])
