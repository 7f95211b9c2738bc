"""Worker: the default estimator on a table as it comes."""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.own.default import measured
from benchmarks.table_data import load_split

from sparsegp.data import Asked, open_source, read_encoded, whole_batch


def fit_and_predict(options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    split = load_split(options["target"], options["max_rows"])
    facts, arrays = measured(split.train, split.y, split.test, split.y_test, options)
    started = time.perf_counter()
    source, _ = read_encoded(open_source(split.train, split.y), Asked(), whole_batch)
    encoding = {"encoding_seconds": time.perf_counter() - started, "n_numbers": source.n_features}
    return {**facts, **encoding}, arrays


if __name__ == "__main__":
    write_result(sys.argv[1], *fit_and_predict(read_job(sys.argv[1])[1]))
