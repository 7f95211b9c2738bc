"""Stochastic recursive gradient propagation (003 sec. 4.1): Adam on mini-batches, the posterior eliminated exactly.

An epoch visits all rows once in random batches, and after every batch takes one Adam step along the gradient of its own
collapsed objective. Its rows stand for all rows: each counts N/(rows of the batch) times. Batches hold 20 rows an
inducing input, enough to determine the inducing values, so that nothing has to be carried from one to the next. The
paper carries the state over a whole epoch. Docs: decisions/0009.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from sparsegp.core.approximations import Approximation, Family
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.reasons import OUT_OF_TIME
from sparsegp.errors import FactorizationError, InputError
from sparsegp.learn.adam import AdamSteps
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.objective import CollapsedObjective, Objective, require_rows
from sparsegp.learn.trace import Deadline, LearningResult, OutOfTime, Recorder, StepCallback

MOST_BATCH_ROWS = 10_000
FEWEST_BATCH_ROWS = 128
BATCHES_PER_EPOCH = 20
ROWS_PER_INDUCING = 20
PATIENCE = 5
NEAR_LAST = 2.0

Epoch = Callable[[float], None]
"""Climb over all rows once, at this fraction of the first rate."""


@dataclass(frozen=True)
class Decay:
    """How the rate falls: geometrically over the last two thirds of the epochs, to `last_fraction` of the first.

    Batches differ, so the end must be slow. The paper's choice is 1.
    """

    last_fraction: float = 0.03

    def at(self, epoch: int, n_epochs: int) -> float:
        """The rate of an epoch as a fraction of the first one's."""
        return float(self.last_fraction ** max(0.0, 1.5 * epoch / n_epochs - 0.5))

    def is_slow(self, epoch: int, n_epochs: int) -> bool:
        """Whether the rate is near its last value."""
        return self.at(epoch, n_epochs) <= NEAR_LAST * self.at(n_epochs, n_epochs)


@dataclass(frozen=True)
class Settings:
    """How fast, and from what.

    rate, betas: Adam's; its memory of squared gradients is short, because they shrink by orders of magnitude.
    batch_rows: None for a twentieth of all rows, 10,000 at the most, but 20 an inducing input. seed: of the shuffling.
    """

    rate: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    batch_rows: int | None = None
    decay: Decay = field(default_factory=Decay)
    seed: int = 0


def batch_size(n_rows: int, n_inducing: int, asked: int | None = None) -> int:
    """Rows of a mini-batch."""
    enough = max(ROWS_PER_INDUCING * n_inducing, FEWEST_BATCH_ROWS)
    usual = max(enough, min(n_rows // BATCHES_PER_EPOCH, MOST_BATCH_ROWS))
    return min(asked or usual, n_rows)


def random_batches(n_rows: int, size: int, rng: np.random.Generator) -> list[torch.Tensor]:
    """All rows, shuffled, in batches of about `size`."""
    return list(torch.from_numpy(rng.permutation(n_rows)).tensor_split(round(n_rows / size)))


def maximize(
    objective: Objective,
    hyper: Hyperparameters,
    limits: Limits,
    *,
    max_iterations: int = 50,
    tolerance: float = 1e-6,
    on_step: StepCallback | None = None,
    deadline: Deadline | None = None,
    settings: Settings | None = None,
) -> LearningResult:
    """Climb the objective, in place; an iteration is an epoch, judged by the exact objective at its end."""
    collapsed = require_rows(objective, "srgp")
    require_points(collapsed.approx)
    settings = settings or Settings()
    climber = Climber(hyper, limits, settings.betas)
    rng = np.random.default_rng(settings.seed)
    size = batch_size(len(collapsed.rows), len(hyper.inducing), settings.batch_rows)

    def epoch(fraction: float) -> None:
        for index in random_batches(len(collapsed.rows), size, rng):
            gradient = gradient_alone(collapsed, hyper, counted_for_all(collapsed.rows.sample, index))
            climber.climb(gradient, fraction * settings.rate)

    return run_epochs(
        epoch,
        collapsed,
        hyper,
        settings.decay,
        max_iterations=max_iterations,
        tolerance=tolerance,
        on_step=on_step,
        deadline=deadline,
    )


def run_epochs(
    epoch: Epoch,
    objective: CollapsedObjective,
    hyper: Hyperparameters,
    decay: Decay,
    *,
    max_iterations: int,
    tolerance: float,
    on_step: StepCallback | None = None,
    deadline: Deadline | None = None,
) -> LearningResult:
    """Epoch after epoch, each judged by the exact objective; the hyper-parameters end at the best one.

    Learning has converged when the rate is near its last value and PATIENCE epochs together gain less than that many
    times `tolerance` times max(|objective per row|, 1) per row.
    """
    recorder = Recorder(objective, hyper, on_step)
    _record(recorder, objective.value(hyper))
    values = [recorder.best_value]
    for k in range(1, max_iterations + 1):
        try:
            with nullcontext() if deadline is None else deadline.evaluation(objective.n_rows), recorder.keeping_best():
                epoch(decay.at(k, max_iterations))
                _record(recorder, objective.value(hyper))
        except OutOfTime:
            return recorder.finish(k - 1, OUT_OF_TIME)
        except FactorizationError:
            recorder.failures += 1
            hyper.load_vector(recorder.best_vector)
        values.append(recorder.best_value)
        if recorder.wants_stop():
            return recorder.finish(k, "stopped by the caller", stopped=True)
        least = PATIENCE * tolerance * max(abs(values[-1]), float(objective.n_rows))
        if decay.is_slow(k, max_iterations) and k > PATIENCE and values[-1] - values[-1 - PATIENCE] < least:
            return recorder.finish(k, "converged")
    return recorder.finish(max_iterations, "iteration limit")


def require_points(approx: Approximation) -> None:
    """An error for approximations that mini-batches cannot learn, before anything is computed."""
    if not approx.by_block and approx.family not in (Family.EXACT, Family.SUBSET):
        return
    raise InputError(
        "optimizer='srgp' learns from mini-batches of rows that are independent given the inducing values: vfe, dtc, "
        f"fitc, pep, sor and fic. Got {approx.name!r}, which must see its rows together; use optimizer='lbfgs'."
    )


def _record(recorder: Recorder, value: float) -> None:
    """Remember the point if it is the best so far."""
    recorder.evaluations += 1
    if value > recorder.best_value:
        recorder.best_value, recorder.best_vector = value, recorder.hyper.vector()


class Climber:
    """The hyper-parameters as a vector that Adam moves inside its box."""

    def __init__(self, hyper: Hyperparameters, limits: Limits, betas: tuple[float, float]) -> None:
        self.hyper, self.adam = hyper, AdamSteps(betas)
        self.lower, self.upper = hyper.box(limits)

    def climb(self, gradient: NDArray[np.float64], rate: float) -> None:
        """One Adam step; a gradient that is not finite (parameters beyond all reason) ends the epoch."""
        if not np.isfinite(gradient).all():
            raise FactorizationError("The gradient of a mini-batch is not finite.")
        moved = self.hyper.vector() + self.adam.step(gradient, rate)
        self.hyper.load_vector(np.clip(moved, self.lower, self.upper))


def gradient_alone(objective: CollapsedObjective, hyper: Hyperparameters, batch: Block) -> NDArray[np.float64]:
    """d J of a batch from the prior, by row."""
    alone = replace(objective, rows=MemoryRows(batch))
    alone.value_and_gradient(hyper)
    objective.jitter = alone.jitter
    return hyper.gradient() / batch.n_rows


def counted_for_all(rows: MemoryRows, index: torch.Tensor) -> Block:
    """The rows of `index`, each counted so many times that they stand for all rows."""
    block, times = rows.all.take(index), len(rows) / len(index)
    if times == 1.0:
        return block
    return replace(block, weight=times * block.weights)
