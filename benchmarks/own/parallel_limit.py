"""Worker: how often a second one thread does the products and factorisations of an expert's bound, and nothing else."""

from __future__ import annotations

import sys
import time

import torch
from benchmarks.jobs import read_job, write_result


def bound_products(rows: torch.Tensor) -> torch.Tensor:
    """Features of n rows at m inducing inputs, their Gram matrix and its Cholesky factor, and back to the rows."""
    eye = torch.eye(rows.shape[1], dtype=rows.dtype)
    L = torch.linalg.cholesky(rows.T @ rows + rows.shape[1] * eye)
    half = torch.linalg.solve_triangular(L, rows.T, upper=False)
    return (half.T @ half).exp_().sum()


def main(folder: str) -> None:
    problem, options = read_job(folder)
    torch.set_num_threads(1)
    rows, seconds = torch.from_numpy(problem["rows"]), options["seconds"]
    bound_products(rows)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        bound_products(rows)
        done += 1
    write_result(folder, {"a_second": done / (time.perf_counter() - start)})


if __name__ == "__main__":
    main(sys.argv[1])
