"""How many rows a budget can afford before learning starts: sorting them into blocks and choosing inducing inputs."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from sparsegp.core.block import MemoryRows, Rows
from sparsegp.core.partition import Partition, kernel_metric
from sparsegp.fit.budget import Budget
from sparsegp.fit.problem import Problem


@dataclass(frozen=True)
class Fractions:
    """Of the remaining budget for blocks and for inducing inputs; and the work of `neighbourhoods.learn` and
    `kmeans_partition`, in scans of all rows and in assignments to all blocks."""

    blocks: float = 0.4
    inducing: float = 0.2
    start_scans: int = 2000
    partition_passes: int = 6
    scan_rows: int = 131_072
    assigned_rows: int = 4096
    fewest_start_seconds: float = 4.0


FRACTIONS = Fractions()


def sampled(problem: Problem, rows: Rows, n_rows: int, rng: np.random.Generator) -> tuple[Problem, MemoryRows]:
    """The same problem on random rows, with as many blocks as suit them."""
    sample = rows.sample
    if n_rows >= len(rows) and len(sample) == len(rows):
        return problem, sample
    n_rows = min(n_rows, len(sample))
    index = torch.from_numpy(np.sort(rng.choice(len(sample), n_rows, replace=False)))
    labels = None if problem.labels is None else np.asarray(problem.labels)[index.numpy()]
    n_blocks = None if problem.n_blocks is None else max(1, round(problem.n_blocks * n_rows / len(rows)))
    return replace(problem, labels=labels, n_blocks=n_blocks, rng=rng), sample.subset(index)


def rows_in_blocks(problem: Problem, rows: Rows, budget: Budget, fewest: int) -> int:
    """Rows that can be sorted into blocks, after a local start, within a fraction of the budget; all if that fits."""
    n = len(rows)
    if not (budget.limited and problem.approx.by_block):
        return n
    scan = _scan_seconds(rows, budget)
    pair = 0.0 if problem.labels is not None else _pair_seconds(problem, rows, budget)
    scans = FRACTIONS.start_scans * scan if problem.starts_locally else 0.0
    pairs = FRACTIONS.partition_passes * pair * problem.wanted_blocks(n) / n
    while n > fewest and n * (scans + pairs * n) > FRACTIONS.blocks * budget.remaining:
        n //= 2
    return max(n, min(fewest, len(rows)))


def worth_a_local_start(budget: Budget) -> bool:
    """Neighbourhoods cost some seconds before they tell anything."""
    return budget.remaining > FRACTIONS.fewest_start_seconds


def rows_to_select_from(budget: Budget, row_seconds: float) -> float:
    """Rows to choose inducing inputs from."""
    return math.inf if row_seconds == 0.0 else FRACTIONS.inducing * budget.remaining / row_seconds


def _scan_seconds(rows: Rows, budget: Budget) -> float:
    """Of one row, when the nearest rows to a point are looked for."""
    X = rows.sample.all.X[: FRACTIONS.scan_rows]
    started = budget.clock()
    (X - X[0]).square_().sum(1).topk(min(500, len(X)), largest=False)
    return (budget.clock() - started) / len(X)


def _pair_seconds(problem: Problem, rows: Rows, budget: Budget) -> float:
    """Of one row and one block, when rows are assigned to blocks."""
    metric = kernel_metric(problem.start.kernel, rows.n_features)
    X = rows.sample.all.X[: FRACTIONS.assigned_rows].to(torch.float64) * metric
    centroids = X[torch.arange(problem.wanted_blocks(len(rows))) % len(X)]
    started = budget.clock()
    Partition(centroids).assign(X)
    return (budget.clock() - started) / (len(X) * len(centroids))
