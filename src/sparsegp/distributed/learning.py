"""Progressive learning with rows on workers: the driver's sample first, then growing parts, all rows last."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sparsegp.data import Rows
from sparsegp.distributed.checkpoint import Checkpoint, CheckpointedObjective, LearningState
from sparsegp.distributed.objective import DaskObjective
from sparsegp.distributed.rows import DistributedRows
from sparsegp.estimators import families
from sparsegp.estimators.families import Problem
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.objective import CollapsedObjective, Objective
from sparsegp.learning.progressive import BLOCKS, OPTIMIZERS, POINTS, Schedule, choose_lengthscales
from sparsegp.learning.recorder import LearningResult


@dataclass(frozen=True)
class Stage:
    """One climb: its objective, its iterations, and whether the inducing inputs are held."""

    objective: Objective
    iterations: int
    held: bool


@dataclass(frozen=True)
class Resumption:
    """Where the state of learning is kept, under which name and seed, and what an earlier driver left there."""

    checkpoint: Checkpoint
    task: str
    seed: int
    left: LearningState | None

    def watching(self, objective: Objective, stage: int) -> Objective:
        return CheckpointedObjective(objective, self.checkpoint, self.task, self.seed, stage)


def learn(
    problem: Problem, rows: DistributedRows, hyper: Hyperparameters, seed: int, resumption: Resumption | None
) -> list[LearningResult]:
    """Learn the hyper-parameters in place; one result a stage, those of the start included.

    `problem.rows` is the driver's sample. With the whole data in the sample and up to two stages, this is `learn` of
    one machine, evaluation by evaluation.
    """
    results = list(problem.start.stages)
    if problem.optimizer is None or problem.start.stopped:
        return results
    schedule = BLOCKS if problem.row.by_block else POINTS
    climb, limits = OPTIMIZERS[problem.optimizer], families.limits_of(problem.rows.all, problem.start.noise_var)
    order = problem.rng.permutation(rows.n_blocks if problem.row.by_block else len(problem.rows))
    left = None if resumption is None else resumption.left
    if schedule.warm_up_iterations and left is None:
        first = _sampled(problem, order, schedule.stages(len(rows))[0])
        choose_lengthscales(CollapsedObjective(first, problem.row), hyper)
    for number, stage in enumerate(stages(problem, rows, schedule, order, seed)):
        if left is not None and number < left.stage:
            continue
        if left is not None and number == left.stage:
            left.restore(hyper)
        objective = stage.objective if resumption is None else resumption.watching(stage.objective, number)
        with hyper.inducing_held() if stage.held else nullcontext():
            result = climb(
                objective,
                hyper,
                limits,
                max_iterations=stage.iterations,
                tolerance=schedule.tolerance,
                on_step=problem.on_step,
            )
        results.append(result)
        if result.stopped:
            break
    return results


def stages(
    problem: Problem, rows: DistributedRows, schedule: Schedule, order: NDArray[np.int64], seed: int
) -> Iterator[Stage]:
    """Warm-up with inducing inputs held, then the sizes of the schedule; each stage is prepared when it is reached."""
    sizes = schedule.stages(len(rows))
    plan = [(size, schedule.iterations(k, len(sizes), len(rows)), False) for k, size in enumerate(sizes)]
    if schedule.warm_up_iterations:
        plan.insert(0, (sizes[0], schedule.warm_up_iterations, True))
    for size, iterations, held in plan:
        # A few blocks do not cover the input space: inducing inputs learned from them would desert the rest.
        hold = held or (problem.row.by_block and size < len(rows))
        yield Stage(_objective(problem, rows, schedule, order, size, seed), iterations, hold)


def _objective(
    problem: Problem, rows: DistributedRows, schedule: Schedule, order: NDArray[np.int64], size: int, seed: int
) -> Objective:
    """All rows or a part of them on workers; the few rows of a first stage here."""
    if size >= len(rows):
        return DaskObjective(rows, problem.row)
    if problem.row.by_block:
        n_chosen = max(1, round(size / len(rows) * len(order)))
        return DaskObjective(rows.some_blocks(order[:n_chosen]), problem.row)
    if size <= min(schedule.first_rows, len(problem.rows)):
        return CollapsedObjective(_sampled(problem, order, size), problem.row)
    return DaskObjective(rows.random_part(size / len(rows), seed), problem.row)


def _sampled(problem: Problem, order: NDArray[np.int64], size: int) -> Rows:
    """That many rows of the driver's sample, in its order."""
    return Rows(problem.rows.all.take(torch.from_numpy(np.sort(order[:size]))))
