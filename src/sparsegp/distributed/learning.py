"""Progressive learning with rows on workers: the driver's sample first, then growing parts, all rows last."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

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
from sparsegp.learning.progressive import (
    Schedule,
    Stage,
    a_few_blocks,
    choose_lengthscales,
    choose_noise,
    climb,
    schedule_of,
    staged,
)
from sparsegp.learning.recorder import LearningResult


@dataclass(frozen=True)
class Resumption:
    """Where the state of learning is kept, under which name and seed, and what an earlier driver left there."""

    checkpoint: Checkpoint
    task: str
    seed: int
    left: LearningState | None

    def watched(self, stages: Iterable[Stage]) -> Iterator[Stage]:
        """The stages that are left, each of which writes down how far it came."""
        for number, stage in enumerate(stages):
            if self.left is None or number >= self.left.stage:
                kept = CheckpointedObjective(stage.objective, self.checkpoint, self.task, self.seed, number)
                yield replace(stage, objective=kept)


def learn(
    problem: Problem, rows: DistributedRows, hyper: Hyperparameters, seed: int, resumption: Resumption | None
) -> list[LearningResult]:
    """Learn the hyper-parameters in place; one result a stage, those of the start included.

    `problem.rows` is the driver's sample. With the whole data in the sample and up to two stages, this is `learn` of
    one machine, evaluation by evaluation.
    """
    before = list(problem.start.stages)
    if problem.optimizer is None or problem.start.stopped:
        return before
    schedule = schedule_of(problem.row, problem.optimizer)
    order = problem.rng.permutation(rows.n_blocks if problem.row.by_block else len(problem.rows))
    left = None if resumption is None else resumption.left
    if schedule.warm_up_iterations and left is None:
        first = _sampled(problem, order, schedule.stages(len(rows))[0])
        choose_lengthscales(CollapsedObjective(first, problem.row), hyper)
    if problem.row.by_block and left is None:
        choose_noise(DaskObjective(rows.some_blocks(a_few_blocks(rows.n_blocks)), problem.row), hyper)
    if left is not None:
        left.restore(hyper)
    sizes = schedule.stages(len(rows))

    def objective(k: int) -> Objective:
        return _objective(problem, rows, schedule, order, sizes[k], seed)

    stages = staged(objective, sizes, len(rows), schedule, problem.row)
    if resumption is not None:
        stages = resumption.watched(stages)
    limits = families.limits_of(problem.rows.all, problem.start.noise_var)
    return before + climb(
        stages, hyper, limits, problem.optimizer, schedule.tolerance, problem.on_step, problem.deadline
    )


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
