"""Progressive learning: a small subset first, then warm starts on growing ones, all rows last."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Rows
from sparsegp.errors import FactorizationError
from sparsegp.kernels import Stationary
from sparsegp.learn import adam, lbfgs, natural, srgp, stochastic
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.objective import CollapsedObjective, Objective, objective_of
from sparsegp.learn.trace import Deadline, LearningResult, StepCallback, Terms, is_over


class Optimizer(Protocol):
    """Climbs an objective from the given hyper-parameters, in place; they end at the best point found."""

    def __call__(
        self,
        objective: Objective,
        hyper: Hyperparameters,
        limits: Limits,
        *,
        max_iterations: int = ...,
        tolerance: float = ...,
        on_step: StepCallback | None = ...,
        deadline: Deadline | None = ...,
    ) -> LearningResult: ...


AUTO = "auto"
OPTIMIZERS: dict[str, Optimizer] = {
    AUTO: lbfgs.maximize,
    "lbfgs": lbfgs.maximize,
    "adam": adam.maximize,
    "srgp": srgp.maximize,
    "ngd": natural.maximize,
}

SAMPLING = ("srgp", "ngd")
"""Those that draw rows from the objective."""

WORTHWHILE_EVALUATIONS = 5
GOOD_START_EVALUATIONS = 20


@dataclass(frozen=True)
class Climb:
    """One climb of a schedule: on which of its subsets, of how many rows, and for how many iterations."""

    subset: int
    n_rows: int
    iterations: int
    is_warm_up: bool = False


@dataclass(frozen=True)
class Schedule:
    """Rows of the first stage, growth from stage to stage, and the iterations each of them may use.

    Early stages are cheap and may run long; an evaluation on all rows costs as much as dozens on a subset, so the
    last stage only finishes what the earlier ones reached: about `last_row_visits` rows times iterations. Learning
    sees `most_rows` rows at the most (None: all of them); inference always sees all. `by_steps`: what learning
    costs does not depend on the rows, so it goes on with all of them after warming up on the first subset.
    """

    warm_up_iterations: int = 30
    first_rows: int = 8192
    growth: int = 8
    most_rows: int | None = None
    first_iterations: int = 120
    last_row_visits: float = 2e6
    fewest_iterations: int = 10
    tolerance: float = 1e-6
    by_steps: bool = False
    least_first_rows: int = 1024

    def stages(self, n_rows: int, sample_rows: int | None = None) -> list[int]:
        """Sizes of the growing subsets, all rows last; the others are at most `sample_rows` where only so many rows are
        at hand."""
        sizes = []
        size = self.first_rows
        last = min(n_rows, self.most_rows or n_rows)
        while size * 2 < last:
            sizes.append(size)
            size *= self.growth
        if sample_rows is not None:
            sizes = [size for size in sizes if size < sample_rows] or [min(self.first_rows, sample_rows)]
        return [*sizes, last]

    def climbs(self, sizes: Sequence[int], n_rows: int) -> Iterator[Climb]:
        """The climbs on subsets of these sizes, out of so many rows, in their order."""
        if self.warm_up_iterations:
            yield Climb(0, sizes[0], self.warm_up_iterations, is_warm_up=True)
        for k, size in enumerate(sizes):
            if not self.skips(k, len(sizes)):
                yield Climb(k, size, self.iterations(k, len(sizes), n_rows))

    def iterations(self, stage: int, n_stages: int, n_rows: int) -> int:
        """Geometric from the first stage's iterations to the last one's."""
        last = min(self.first_iterations, max(self.fewest_iterations, round(self.last_row_visits / n_rows)))
        fraction = stage / (n_stages - 1) if n_stages > 1 else 0.0
        return round(math.exp((1 - fraction) * math.log(self.first_iterations) + fraction * math.log(last)))

    def skips(self, stage: int, n_stages: int) -> bool:
        return self.by_steps and stage == 0 and n_stages > 1

    def visited(self, size: int) -> int:
        """Rows that the shortest piece of work of a stage visits."""
        return min(size, stochastic.BLOCK_ROWS) if self.by_steps else size

    def within(self, deadline: Deadline) -> "Schedule":
        """With a first stage so small, but of `least_first_rows` rows, that a fair number of evaluations fit before the
        deadline."""
        size = self.first_rows
        while size > self.least_first_rows and not deadline.allows(size, GOOD_START_EVALUATIONS):
            size //= 2
        return self if size == self.first_rows else replace(self, first_rows=size)

    def row_visits(self, n_rows: int) -> float:
        """Rows times evaluations of all climbs, if none ends early."""
        climbs = self.climbs(self.stages(n_rows), n_rows)
        return float(sum(climb.iterations * self.visited(climb.n_rows) for climb in climbs))


START_FACTORS = (1.0, 0.5, 0.25, 2.0)
NOISE_FACTORS, NOISE_BLOCKS = (10.0, 100.0, 1000.0), 12
POINTS = Schedule()
# An evaluation by blocks costs several times one by points and its kernel parameters need few rows; inducing inputs
# matter less, because the blocks carry what is local.
BLOCKS = Schedule(
    warm_up_iterations=0,
    first_rows=20_000,
    most_rows=20_000,
    first_iterations=10,
    last_row_visits=2e5,
    fewest_iterations=3,
    tolerance=1e-5,
)
# A single block is the exact model of few rows: nothing but the evidence of all rows tells what is right for it.
ONE_BLOCK = replace(BLOCKS, first_iterations=40)
# Mini-batches see all rows from the start and an iteration is an epoch; very many rows wait until the rest is learned.
STOCHASTIC = Schedule(
    warm_up_iterations=2,
    first_rows=65_536,
    growth=64,
    first_iterations=40,
    last_row_visits=5e6,
    fewest_iterations=5,
)
# Steps from sampled blocks cost the same however many rows there are: all of them from the start.
NATURAL_POINTS = replace(STOCHASTIC, first_rows=8192, growth=2**40, fewest_iterations=2, by_steps=True)
NATURAL_BLOCKS = replace(BLOCKS, growth=2**40, most_rows=None, last_row_visits=4e5, fewest_iterations=1, by_steps=True)


@dataclass(frozen=True)
class Stage:
    """One climb: its objective, rows an evaluation or a step visits, iterations, and whether inducing inputs stay."""

    objective: Objective
    n_rows: int
    iterations: int
    holds_inducing: bool


@dataclass(frozen=True)
class Schedules:
    """Those of approximations by points, by blocks and with one block, of mini-batches, and of steps from sampled
    blocks."""

    points: Schedule = POINTS
    blocks: Schedule = BLOCKS
    one_block: Schedule = ONE_BLOCK
    stochastic: Schedule = STOCHASTIC
    natural_points: Schedule = NATURAL_POINTS
    natural_blocks: Schedule = NATURAL_BLOCKS

    def of(self, approx: Approximation, optimizer: str, n_blocks: int | None = None) -> Schedule:
        """Of a number of blocks (None: not known yet, many)."""
        if optimizer == "ngd":
            return self.natural_blocks if approx.by_block else self.natural_points
        if approx.by_block:
            return self.one_block if n_blocks == 1 else self.blocks
        return self.stochastic if optimizer == "srgp" else self.points


class StageKeeper(Protocol):
    """Remembers how far learning has come, for a process that continues after this one was killed."""

    def resumed(self, hyper: Hyperparameters) -> bool:
        """Put what an earlier run has reached into the hyper-parameters; False where there is nothing."""

    def watched(self, stages: "Iterator[Stage]") -> "Iterator[Stage]":
        """The stages that are left, each of which writes down how far it came."""


def learn(
    rows: Rows,
    approx: Approximation,
    hyper: Hyperparameters,
    terms: Terms,
    schedule: Schedule | None = None,
    checkpoint: StageKeeper | None = None,
) -> list[LearningResult]:
    """Learn the hyper-parameters in place; one result a stage. With a deadline, stages that hardly fit are left out.

    `checkpoint` may know hyper-parameters of an earlier run to go on from, and keeps those of this one.
    """
    deadline, schedule = terms.deadline, schedule or Schedules().of(approx, terms.optimizer)
    schedule = schedule if deadline is None else schedule.within(deadline)
    of_rows = CollapsedObjective if terms.optimizer in SAMPLING else objective_of
    objectives = [of_rows(part, approx) for part in nested_subsets(rows, approx, schedule, terms.rng)]
    if checkpoint is None or not checkpoint.resumed(hyper):
        if schedule.warm_up_iterations:
            choose_lengthscales(objectives[0], hyper, deadline)
        if approx.by_block:
            few = rows.subset_of_blocks(torch.from_numpy(a_few_blocks(rows.n_blocks)))
            choose_noise(objective_of(few, approx), hyper, deadline)
    stages = staged(objectives.__getitem__, [part.n_rows for part in objectives], len(rows), schedule, approx)
    stages = stages if checkpoint is None else checkpoint.watched(stages)
    return climb(stages, hyper, terms, schedule.tolerance)


def staged(
    objective: Callable[[int], Objective], sizes: Sequence[int], n_rows: int, schedule: Schedule, approx: Approximation
) -> Iterator[Stage]:
    """Stages of growing sizes; the objective of each is made when it is reached.

    Learned together from a cold start, inducing inputs can leave for a useless optimum (all noise) before the
    lengthscales make sense: they are held at first. So they are where a stage sees a few blocks, which do not cover
    the input space: inducing inputs learned from those would desert the rest.
    """
    for planned in schedule.climbs(sizes, n_rows):
        holds_inducing = planned.is_warm_up or (approx.by_block and planned.n_rows < n_rows)
        visited = schedule.visited(planned.n_rows)
        yield Stage(objective(planned.subset), visited, planned.iterations, holds_inducing)


def climb(stages: Iterable[Stage], hyper: Hyperparameters, terms: Terms, tolerance: float) -> list[LearningResult]:
    """One stage after another, from where the last one ended."""
    results: list[LearningResult] = []
    for stage in stages:
        if terms.deadline is not None and not terms.deadline.allows(stage.n_rows, WORTHWHILE_EVALUATIONS):
            break
        with hyper.inducing_held() if stage.holds_inducing else nullcontext():
            result = OPTIMIZERS[terms.optimizer](
                stage.objective,
                hyper,
                terms.limits,
                max_iterations=stage.iterations,
                tolerance=tolerance,
                on_step=terms.on_step,
                deadline=terms.deadline,
            )
        results.append(result)
        if result.stopped:
            break
    return results


def nested_subsets(rows: Rows, approx: Approximation, schedule: Schedule, rng: np.random.Generator) -> Iterator[Rows]:
    """Nested random parts of the rows, of whole blocks where the approximation is defined by blocks.

    Rows that are read from elsewhere give parts as large as their sample; then come all of them.
    """
    *sizes, last = schedule.stages(len(rows))
    within = [size for size in sizes if size <= rows.largest_part]
    if last > rows.largest_part and not within:
        within = [min(schedule.first_rows, rows.largest_part)]
    return rows.parts([*within, last], rng, by_block=approx.by_block)


def a_few_blocks(n_blocks: int) -> NDArray[np.int64]:
    """Numbers of blocks spread over all of them."""
    return np.linspace(0, n_blocks - 1, min(NOISE_BLOCKS, n_blocks)).astype(np.int64)


class Valued(Protocol):
    """An objective whose value can be had without its gradient."""

    def value(self, hyper: Hyperparameters) -> float: ...


def choose_noise(objective: Valued, hyper: Hyperparameters, deadline: Deadline | None = None) -> None:
    """Start from more noise while the objective grows with it and there is time.

    Neighbourhoods can call everything signal; rows that repeat an input with another target then have next to no
    density, and learning may have no time to mend it.
    """
    if not hyper.log_noise_var.requires_grad:
        return
    best, given = _value(objective, hyper), hyper.log_noise_var.detach().clone()
    for factor in NOISE_FACTORS:
        if is_over(deadline):
            return
        before = hyper.log_noise_var.detach().clone()
        hyper.log_noise_var.data = given + math.log(factor)
        value = _value(objective, hyper)
        if value < best or value == best > -math.inf:
            hyper.log_noise_var.data = before
            return
        best = value


def _value(objective: Valued, hyper: Hyperparameters) -> float:
    """Of the objective; minus infinity where so little noise leaves a matrix that cannot be factored."""
    try:
        return objective.value(hyper)
    except FactorizationError:
        return -math.inf


def choose_lengthscales(objective: Valued, hyper: Hyperparameters, deadline: Deadline | None = None) -> None:
    """Start from the multiple of the given lengthscales with the best objective, of those there is time for.

    A poor one can end in the optimum that calls everything noise.
    """
    kernel = hyper.kernel
    if not isinstance(kernel, Stationary) or not kernel.log_lengthscales.requires_grad:
        return
    given = kernel.log_lengthscales.detach().clone()
    values: dict[float, float] = {}
    for factor in START_FACTORS:
        if values and is_over(deadline):
            break
        kernel.log_lengthscales.data = given + math.log(factor)
        values[factor] = _value(objective, hyper)
    kernel.log_lengthscales.data = given + math.log(max(values, key=lambda factor: values[factor]))
