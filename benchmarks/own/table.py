"""Worker: the default estimator on a table as it comes."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.own.default import measured
from benchmarks.table_data import load_split


def fit_and_predict(options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    split = load_split(options["target"], options["max_rows"])
    return measured(split.train, split.y, split.test, split.y_test, options)


if __name__ == "__main__":
    write_result(sys.argv[1], *fit_and_predict(read_job(sys.argv[1])[1]))
