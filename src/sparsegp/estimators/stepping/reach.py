"""How many rows a budget can reach before learning starts: arranging rows into blocks and choosing inducing inputs."""

import math
from dataclasses import replace

import numpy as np
import torch

from sparsegp.estimators import families
from sparsegp.estimators.families import Problem
from sparsegp.estimators.stepping.budget import Budget
from sparsegp.estimators.tasks import Task
from sparsegp.partition import Partition, kernel_metric

SHARE_FOR_BLOCKS = 0.4
SHARE_FOR_INDUCING = 0.2
# Work of `neighbourhoods.learn` and `kmeans_partition` in scans of all rows and in assignments to all blocks.
SCOUT_SCANS = 2000
PARTITION_PASSES = 6
SCAN_ROWS = 131_072
ASSIGNED_ROWS = 4096
FEWEST_SCOUT_SECONDS = 4.0


def reachable_rows(task: Task, budget: Budget, fewest: int) -> int:
    """Rows that can be sorted into blocks (and scouted) within a share of the budget; all of them if that fits."""
    n = len(task.block)
    if not (budget.limited and task.row.by_block):
        return n
    scan, pair = _scan_seconds(task, budget), 0.0 if task.labels is not None else _pair_seconds(task, budget)
    scans = SCOUT_SCANS * scan if task.scouts else 0.0
    blocks_per_row = task.wanted_blocks / n
    while (
        n > fewest and n * (scans + PARTITION_PASSES * pair * n * blocks_per_row) > SHARE_FOR_BLOCKS * budget.remaining
    ):
        n //= 2
    return max(n, min(fewest, len(task.block)))


def worth_scouting(budget: Budget) -> bool:
    """Neighbourhoods cost some seconds before they tell anything."""
    return budget.remaining > FEWEST_SCOUT_SECONDS


def _scan_seconds(task: Task, budget: Budget) -> float:
    """Of one row, when the nearest rows to a point are looked for."""
    X = task.block.X[:SCAN_ROWS]
    started = budget.clock()
    (X - X[0]).square_().sum(1).topk(min(500, len(X)), largest=False)
    return (budget.clock() - started) / len(X)


def _pair_seconds(task: Task, budget: Budget) -> float:
    """Of one row and one block, when rows are assigned to blocks."""
    X = task.block.X[:ASSIGNED_ROWS].to(torch.float64) * kernel_metric(task.start.kernel, task.block.X.shape[1])
    centroids = X[torch.arange(task.wanted_blocks) % len(X)]
    started = budget.clock()
    Partition(centroids).assign(X)
    return (budget.clock() - started) / (len(X) * len(centroids))


def select_within(
    problem: Problem, budget: Budget, first: torch.Tensor, first_rows: int, row_seconds: float
) -> torch.Tensor:
    """Inducing inputs from as many rows as a share of the budget allows; the first ones if that is hardly more rows."""
    affordable = math.inf if row_seconds == 0.0 else SHARE_FOR_INDUCING * budget.remaining / row_seconds
    if not budget.limited or not isinstance(problem.inducing, str) or affordable >= len(problem.rows):
        return families.select(problem)
    if affordable < 2 * first_rows:
        return first
    index = problem.rng.choice(len(problem.rows), int(affordable), replace=False)
    return families.select(replace(problem, rows=problem.rows.subset(torch.from_numpy(np.sort(index)))))
