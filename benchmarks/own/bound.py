"""Worker: value and gradient of one row's objective by sparsegp."""

from __future__ import annotations

import sys

import numpy as np
from benchmarks.jobs import read_job, write_result
from benchmarks.measure import PeakMemory, median_seconds
from benchmarks.ours import vfe_value_and_gradient


def main(folder: str) -> None:
    problem, options = read_job(folder)
    block_rows = options.get("block_rows")
    memory = PeakMemory()
    evaluate = vfe_value_and_gradient(
        problem["X"],
        problem["y"],
        problem["Z"],
        problem["lengthscales"],
        float(problem["variance"]),
        float(problem["noise_var"]),
        options["row"],
        None if block_rows is None else np.arange(len(problem["y"])) // block_rows,
    )
    timing = median_seconds(evaluate, options["repeats"])
    value, gradients = evaluate()
    facts = {
        **timing.as_facts(),
        "peak_mb": memory.above_start_mb(),
        "value": value,
        "inducing_gradient_norm": float(np.linalg.norm(gradients["inducing"])),
    }
    write_result(folder, facts)


if __name__ == "__main__":
    main(sys.argv[1])
