"""Progressive learning: a small subset first, then warm starts on growing ones, all rows last."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from sparsegp.approximations import Approximation
from sparsegp.data import Rows
from sparsegp.learning import adam, lbfgs
from sparsegp.learning.hyperparameters import Hyperparameters, Limits
from sparsegp.learning.objective import CollapsedObjective
from sparsegp.learning.recorder import LearningResult, StepCallback

OPTIMIZERS = {"lbfgs": lbfgs.maximize, "adam": adam.maximize}


@dataclass(frozen=True)
class Schedule:
    """Iterations with the inducing inputs held, then rows of the first stage, growth, and iterations of each stage.

    Early stages are cheap and may run long; an evaluation on all rows costs as much as dozens on a subset, so the
    last stages only finish what the earlier ones reached.
    """

    warm_up_iterations: int = 30
    first_rows: int = 4096
    growth: int = 4
    first_iterations: int = 200
    last_iterations: int = 50
    tolerance: float = 1e-6

    def stages(self, n_rows: int) -> list[int]:
        sizes = []
        size = self.first_rows
        while size * 2 < n_rows:
            sizes.append(size)
            size *= self.growth
        return [*sizes, n_rows]

    def iterations(self, stage: int, n_stages: int) -> int:
        if n_stages == 1:
            return self.first_iterations
        share = stage / (n_stages - 1)
        return round(math.exp((1 - share) * math.log(self.first_iterations) + share * math.log(self.last_iterations)))


def learn(
    rows: Rows,
    row: Approximation,
    hyper: Hyperparameters,
    limits: Limits,
    *,
    optimizer: str,
    rng: np.random.Generator,
    schedule: Schedule | None = None,
    on_step: StepCallback | None = None,
) -> list[LearningResult]:
    """Learn the hyper-parameters in place; one result a stage."""
    schedule = Schedule() if schedule is None else schedule
    climb = OPTIMIZERS[optimizer]
    stages = list(_subsets(rows, row, schedule, rng))
    with hyper.inducing_held():
        # Learned together from a cold start, inducing inputs can leave for a useless optimum (all noise) before the
        # lengthscales make sense.
        first = CollapsedObjective(stages[0], row)
        results = [climb(first, hyper, limits, max_iterations=schedule.warm_up_iterations, on_step=on_step)]
    for stage, subset in enumerate(stages):
        if results[-1].stopped:
            break
        results.append(
            climb(
                CollapsedObjective(subset, row),
                hyper,
                limits,
                max_iterations=schedule.iterations(stage, len(stages)),
                tolerance=schedule.tolerance,
                on_step=on_step,
            )
        )
    return results


def _subsets(rows: Rows, row: Approximation, schedule: Schedule, rng: np.random.Generator) -> Iterator[Rows]:
    """Nested random subsets of rows, or of whole blocks for rows of the table that are defined by blocks."""
    sizes = schedule.stages(len(rows))
    if len(sizes) == 1:
        yield rows
        return
    n_units = rows.n_blocks if row.by_block else len(rows)
    order = torch.from_numpy(rng.permutation(n_units))
    for size in sizes[:-1]:
        if row.by_block:
            yield rows.subset_of_blocks(order[: max(1, round(size / len(rows) * n_units))])
        else:
            yield rows.subset(order[:size].sort().values)
    yield rows
