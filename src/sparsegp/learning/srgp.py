"""Stochastic recursive gradient propagation (003 sec. 4.1): Adam on mini-batches, the posterior eliminated exactly.

An epoch visits all rows once in random batches, carries the posterior and its derivatives forward, and after every
batch k takes one Adam step along d psi_k/d theta. What the state holds of earlier batches belongs to the parameters
they were seen with, so it is carried over no more batches than determine the inducing values (`Settings.horizon`); then
it starts again from the prior. Rows stand for all rows: each counts N/(rows of its stretch) times. The paper carries
the state over a whole epoch. Docs: decisions/0009.
"""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from sparsegp.approximations import Approximation, Family
from sparsegp.data import Block, Rows
from sparsegp.errors import FactorizationError, InputError
from sparsegp.learning.adam_steps import AdamSteps
from sparsegp.learning.deadline import OUT_OF_TIME, Deadline, OutOfTime
from sparsegp.learning.forward_gradient import ForwardGradient
from sparsegp.learning.hyperparameters import Hyperparameters, Limits
from sparsegp.learning.objective import CollapsedObjective, Objective, require_rows
from sparsegp.learning.recorder import LearningResult, Recorder, StepCallback
from sparsegp.learning.sensitivities import Gradient

MOST_BATCH_ROWS = 10_000
FEWEST_BATCH_ROWS = 128
BATCHES_PER_EPOCH = 20
ROWS_PER_INDUCING = 20
ALONE_RATE, CARRIED_RATE = 0.1, 0.03
PATIENCE = 5
NEAR_LAST = 2.0


@dataclass(frozen=True)
class Settings:
    """How fast, and from what.

    rate, betas: Adam's (None: 0.1 where every batch stands alone, else 0.03). batch_rows: None for a twentieth of all
    rows, 10,000 at the most, but 20 an inducing input. horizon: batches the state is carried over; None for as few as
    hold 20 rows an inducing input. seed: of the shuffling.

    Steps make carried sums stale and batches differ, so the end must be slow: over the last two thirds of the epochs
    that are allowed the rate falls geometrically to `last_share` of itself. Adam's memory of squared gradients is
    short, because they shrink by orders of magnitude. The paper's choices: a horizon of all batches, last_share = 1,
    betas = (0.9, 0.999).
    """

    rate: float | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    batch_rows: int | None = None
    horizon: int | None = None
    last_share: float = 0.03
    seed: int = 0

    def share_at(self, epoch: int, n_epochs: int) -> float:
        """The rate of an epoch as a share of the first one's."""
        return math.pow(self.last_share, max(0.0, 1.5 * epoch / n_epochs - 0.5))

    def is_slow(self, epoch: int, n_epochs: int) -> bool:
        """Whether the rate is near its last value."""
        return self.share_at(epoch, n_epochs) <= NEAR_LAST * self.share_at(n_epochs, n_epochs)

    def batch_size(self, n_rows: int, n_inducing: int) -> int:
        enough = max(ROWS_PER_INDUCING * n_inducing, FEWEST_BATCH_ROWS)
        usual = max(enough, min(n_rows // BATCHES_PER_EPOCH, MOST_BATCH_ROWS))
        return min(self.batch_rows or usual, n_rows)

    def stretch(self, batch_rows: int, n_inducing: int) -> int:
        """Batches from one start of the state to the next."""
        return self.horizon or math.ceil(ROWS_PER_INDUCING * n_inducing / batch_rows)


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
    """Climb the objective, in place; an iteration is an epoch, judged by the exact objective at its end.

    The hyper-parameters end at the best epoch. Learning has converged when the rate is near its last value and PATIENCE
    epochs together gain less than that many times `tolerance` times max(|objective per row|, 1) per row.
    """
    collapsed = require_rows(objective, "srgp")
    require_points(collapsed.row)
    recorder = Recorder(collapsed, hyper, on_step)
    settings = settings or Settings()
    climber = _Climber(collapsed, hyper, limits, settings)
    _record(recorder, collapsed.value(hyper))
    values = [recorder.best_value]
    for epoch in range(1, max_iterations + 1):
        try:
            with nullcontext() if deadline is None else deadline.evaluation(collapsed.n_rows), recorder.keeping_best():
                climber.run_epoch(settings.share_at(epoch, max_iterations))
                _record(recorder, collapsed.value(hyper))
        except OutOfTime:
            return recorder.finish(epoch - 1, OUT_OF_TIME)
        except FactorizationError:
            recorder.failures += 1
            hyper.load_vector(recorder.best_vector)
        values.append(recorder.best_value)
        if recorder.wants_stop():
            return recorder.finish(epoch, "stopped by the caller", stopped=True)
        least = PATIENCE * tolerance * max(abs(values[-1]), float(collapsed.n_rows))
        if settings.is_slow(epoch, max_iterations) and epoch > PATIENCE and values[-1] - values[-1 - PATIENCE] < least:
            return recorder.finish(epoch, "converged")
    return recorder.finish(max_iterations, "iteration limit")


def require_points(row: Approximation) -> None:
    """An error for approximations that mini-batches cannot learn, before anything is computed."""
    if not row.by_block and row.family not in (Family.EXACT, Family.SUBSET):
        return
    raise InputError(
        "optimizer='srgp' learns from mini-batches of rows that are independent given the inducing values: vfe, dtc, "
        f"fitc, pep, sor and fic. Got {row.name!r}, which must see its rows together; use optimizer='lbfgs'."
    )


def _record(recorder: Recorder, value: float) -> None:
    """Remember the point if it is the best so far."""
    recorder.evaluations += 1
    if value > recorder.best_value:
        recorder.best_value, recorder.best_vector = value, recorder.hyper.vector()


class _Climber:
    """The hyper-parameters as a vector that Adam moves inside its box."""

    def __init__(
        self, objective: CollapsedObjective, hyper: Hyperparameters, limits: Limits, settings: Settings
    ) -> None:
        self.objective, self.hyper, self.settings = objective, hyper, settings
        self.rows: Rows = objective.rows
        box = np.array(hyper.bounds(limits), dtype=np.float64).reshape(-1, 2)
        self.lower, self.upper = np.nan_to_num(box[:, 0], nan=-np.inf), np.nan_to_num(box[:, 1], nan=np.inf)
        self.adam = AdamSteps(settings.betas)
        self.rng = np.random.default_rng(settings.seed)

    def run_epoch(self, share: float) -> None:
        """All rows once; `share`: of the first rate."""
        for stretch in self._stretches():
            alone = len(stretch) == 1
            rate = share * (self.settings.rate or (ALONE_RATE if alone else CARRIED_RATE))
            index = torch.cat(stretch)
            rows = _counted(self.rows.all.take(index), len(self.rows) / len(index))
            for gradient in self._alone(rows) if alone else self._carried(rows, [len(batch) for batch in stretch]):
                self._climb(gradient, rate)

    def _alone(self, rows: Block) -> Iterator[NDArray[np.float64]]:
        """d J of a batch from the prior by row, in reverse mode: what the recursion gives, no derivatives carried."""
        objective = replace(self.objective, rows=Rows(rows))
        objective.value_and_gradient(self.hyper)
        self.objective.jitter = objective.jitter
        yield self.hyper.gradient() / rows.n_rows

    def _carried(self, rows: Block, sizes: list[int]) -> Iterator[NDArray[np.float64]]:
        """d psi_k by row, one batch after the other; between two of them the hyper-parameters move."""
        learns_noise = rows.noise_var is None
        forward = ForwardGradient(self.hyper, self.objective.row, learns_noise=learns_noise)
        state = forward.init(self.objective.prior(self.hyper))
        batches = [rows.take(index) for index in torch.arange(len(rows)).split(sizes)]
        for k, batch in enumerate(batches, start=1):
            prior = self.objective.prior(self.hyper)
            state, increment = forward.step(state, prior, batch)
            if k == len(batches) and (missing := forward.deferred(state, prior, Rows(rows))) is not None:
                increment = increment + missing
            yield _as_vector(self.hyper, increment) / batch.n_rows

    def _stretches(self) -> list[list[torch.Tensor]]:
        """Random batches of rows, in groups of (nearly) equal numbers of them."""
        n, n_inducing = len(self.rows), len(self.hyper.inducing)
        size = self.settings.batch_size(n, n_inducing)
        batches = torch.from_numpy(self.rng.permutation(n)).tensor_split(round(n / size))
        n_stretches = max(1, len(batches) // self.settings.stretch(size, n_inducing))
        bounds = np.linspace(0, len(batches), n_stretches + 1).round().astype(int)
        return [list(batches[first:last]) for first, last in pairwise(bounds)]

    def _climb(self, gradient: NDArray[np.float64], rate: float) -> None:
        """One Adam step; a gradient that is not finite (parameters beyond all reason) ends the epoch."""
        if not np.isfinite(gradient).all():
            raise FactorizationError("The gradient of a mini-batch is not finite.")
        moved = self.hyper.vector() + self.adam.step(gradient, rate)
        self.hyper.load_vector(np.clip(moved, self.lower, self.upper))


def _counted(block: Block, times: float) -> Block:
    """Every row counted so many times."""
    if times == 1.0:
        return block
    weight = torch.ones_like(block.y) if block.weight is None else block.weight
    return replace(block, weight=times * weight)


def _as_vector(hyper: Hyperparameters, gradient: Gradient) -> NDArray[np.float64]:
    """The gradient in the order of `Hyperparameters.vector`."""
    hyper.clear_gradient()
    with torch.no_grad():
        hyper.log_noise_var.grad = gradient.shared[0].to(hyper.log_noise_var)
        hyper.inducing.grad = gradient.inducing.to(hyper.inducing)
        start = 1
        for parameter in hyper.kernel.parameters():
            values = gradient.shared[start : start + parameter.numel()]
            parameter.grad = values.reshape(parameter.shape).to(parameter)
            start += parameter.numel()
    return hyper.gradient()
