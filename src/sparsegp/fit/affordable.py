"""What a budget can afford before learning starts: how large a model, and how many rows to sort into blocks, to start
from and to choose inducing inputs from. All rows with a smaller model come before a part of them with a larger one."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from sparsegp.core.block import MemoryRows, Rows
from sparsegp.core.partition import Partition, kernel_metric
from sparsegp.fit.budget import Budget
from sparsegp.fit.problem import Problem


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


def for_all_rows(problem: Problem, n_rows: int, budget: Budget) -> Problem:
    """With so few inducing inputs that one pass over all rows is not most of the time, but not fewer than the fewest.

    The cost of a row was measured with those of the problem; the budget is told what it will be.
    """
    wanted, fractions = problem.n_inducing, budget.options.fractions
    if not budget.limited or not isinstance(problem.inducing, str) or budget.row_seconds == 0.0:
        return problem
    share = budget.options.most_for_pass * max(budget.remaining, 0.0) / budget.pass_seconds(n_rows)
    within = math.floor(wanted * min(1.0, share) ** (1.0 / fractions.row_power))
    n_inducing = max(within, min(wanted, fractions.fewest_inducing))
    budget.row_seconds *= (n_inducing / wanted) ** fractions.row_power
    return replace(problem, n_inducing=n_inducing)


def rows_in_blocks(problem: Problem, rows: Rows, budget: Budget, fewest: int) -> int:
    """Rows that can be sorted into blocks within a fraction of the budget; all if that fits."""
    n, fractions = len(rows), budget.options.fractions
    if not (budget.limited and problem.approx.by_block) or problem.labels is not None:
        return n
    pairs = fractions.partition_passes * _pair_seconds(problem, rows, budget) * problem.wanted_blocks(n) / n
    return _halved(n, fewest, lambda n: pairs * n * n > fractions.blocks * budget.remaining)


def rows_to_start_from(rows: Rows, budget: Budget, fewest: int) -> int:
    """Rows among which neighbourhoods can be looked for within a fraction of the budget."""
    n, fractions = len(rows.sample), budget.options.fractions
    if not budget.limited:
        return n
    scans = fractions.start_scans * _scan_seconds(rows, budget)
    return _halved(n, fewest, lambda n: scans * n > fractions.start * budget.remaining)


def _halved(n: int, fewest: int, is_dear: Callable[[int], bool]) -> int:
    fewest = min(n, fewest)
    while n > fewest and is_dear(n):
        n //= 2
    return max(n, fewest)


def worth_a_local_start(budget: Budget) -> bool:
    """Neighbourhoods cost some seconds before they tell anything."""
    return budget.remaining > budget.options.fractions.fewest_start_seconds


def rows_to_select_from(problem: Problem, rows: MemoryRows, budget: Budget, rng: np.random.Generator) -> int:
    """Rows to choose inducing inputs from within a fraction of the budget; 0: too few to be worth it."""
    if not budget.limited or not isinstance(problem.inducing, str):
        return len(rows)
    fractions = budget.options.fractions
    few = max(1, int(fractions.trial * problem.n_inducing))
    tried = min(len(rows), 2 * fractions.rows_per_inducing * few)
    index = torch.from_numpy(np.sort(rng.choice(len(rows), tried, replace=False)))
    started = budget.clock()
    replace(problem, n_inducing=few).select_inducing(rows.subset(index).all, rng)
    row_seconds = (budget.clock() - started) / len(index) * problem.n_inducing / few
    n = len(rows) if row_seconds <= 0.0 else min(len(rows), int(fractions.inducing * budget.remaining / row_seconds))
    return n if n >= min(len(rows), fractions.rows_per_inducing * problem.n_inducing) else 0


def _scan_seconds(rows: Rows, budget: Budget) -> float:
    """Of one row, when the nearest rows to a point are looked for."""
    X = rows.sample.all.X[: budget.options.fractions.scan_rows]
    started = budget.clock()
    (X - X[0]).square_().sum(1).topk(min(500, len(X)), largest=False)
    return (budget.clock() - started) / len(X)


def _pair_seconds(problem: Problem, rows: Rows, budget: Budget) -> float:
    """Of one row and one block, when rows are assigned to blocks."""
    metric = kernel_metric(problem.start.kernel, rows.n_features)
    X = rows.sample.all.X[: budget.options.fractions.assigned_rows].to(torch.float64) * metric
    centroids = X[torch.arange(problem.wanted_blocks(len(rows))) % len(X)]
    started = budget.clock()
    Partition(centroids).assign(X)
    return (budget.clock() - started) / (len(X) * len(centroids))
