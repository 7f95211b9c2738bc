"""SRGP as the paper has it (003 sec. 4.1): the posterior and its derivatives are carried over batches.

An epoch visits all rows once in random batches, and after every batch k takes one Adam step along d psi_k/d theta. What
the state holds of earlier batches belongs to the parameters they were seen with, so it is carried over no more
batches than determine the inducing values (`Settings.horizon`); then it starts again from the prior. Rows of such a
stretch stand for all rows: each counts N/(rows of the stretch) times. The paper's stretch is a whole epoch. Docs:
decisions/0009. The library's optimizer="srgp" has stretches of one batch, which need nothing carried.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from papers.carried_srgp.forward_gradient import ForwardGradient
from papers.carried_srgp.sensitivities import Gradient
from sparsegp.core.block import Block, MemoryRows
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.objective import CollapsedObjective, Objective, require_rows
from sparsegp.learn.srgp import (
    ROWS_PER_INDUCING,
    Climber,
    Decay,
    batch_size,
    counted_for_all,
    gradient_alone,
    random_batches,
    require_points,
    run_epochs,
)
from sparsegp.learn.trace import Deadline, LearningResult, StepCallback

ALONE_RATE, CARRIED_RATE = 0.1, 0.03


@dataclass(frozen=True)
class Settings:
    """How fast, and from what.

    rate, betas: Adam's (None: 0.1 where every batch stands alone, else 0.03). batch_rows: as in the library. horizon:
    batches the state is carried over; None for as few as hold 20 rows an inducing input. seed: of the shuffling. The
    paper's choices: a horizon of all batches, Decay(1.0), betas = (0.9, 0.999).
    """

    rate: float | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    batch_rows: int | None = None
    horizon: int | None = None
    decay: Decay = field(default_factory=Decay)
    seed: int = 0

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
    """Climb the objective, in place; an iteration is an epoch, as `sparsegp.learn.srgp.run_epochs` says."""
    collapsed = require_rows(objective, "srgp")
    require_points(collapsed.approx)
    settings = settings or Settings()
    return run_epochs(
        CarriedEpoch(collapsed, hyper, limits, settings),
        collapsed,
        hyper,
        settings.decay,
        max_iterations=max_iterations,
        tolerance=tolerance,
        on_step=on_step,
        deadline=deadline,
    )


class CarriedEpoch:
    """All rows once, in stretches of batches."""

    def __init__(
        self, objective: CollapsedObjective, hyper: Hyperparameters, limits: Limits, settings: Settings
    ) -> None:
        self.objective, self.hyper, self.settings = objective, hyper, settings
        self.climber = Climber(hyper, limits, settings.betas)
        self.rng = np.random.default_rng(settings.seed)

    def __call__(self, fraction: float) -> None:
        for stretch in self.stretches():
            alone = len(stretch) == 1
            rate = fraction * (self.settings.rate or (ALONE_RATE if alone else CARRIED_RATE))
            for gradient in self.gradients(stretch):
                self.climber.climb(gradient, rate)

    def gradients(self, stretch: list[torch.Tensor]) -> Iterator[NDArray[np.float64]]:
        """One a batch; a batch that stands alone needs nothing carried."""
        rows = counted_for_all(self.objective.rows.sample, torch.cat(stretch))
        if len(stretch) == 1:
            yield gradient_alone(self.objective, self.hyper, rows)
        else:
            yield from self.carried(rows, [len(batch) for batch in stretch])

    def carried(self, rows: Block, sizes: list[int]) -> Iterator[NDArray[np.float64]]:
        """d psi_k by row, one batch after the other; between two of them the hyper-parameters move."""
        learns_noise = rows.noise_var is None
        forward = ForwardGradient(self.hyper, self.objective.approx, learns_noise=learns_noise)
        state = forward.init(self.objective.prior(self.hyper))
        batches = [rows.take(index) for index in torch.arange(len(rows)).split(sizes)]
        for k, batch in enumerate(batches, start=1):
            prior = self.objective.prior(self.hyper)
            state, increment = forward.step(state, prior, batch)
            if k == len(batches) and (missing := forward.deferred(state, prior, MemoryRows(rows))) is not None:
                increment = increment + missing
            yield as_vector(self.hyper, increment) / batch.n_rows

    def stretches(self) -> list[list[torch.Tensor]]:
        """Random batches of rows, in groups of (nearly) equal numbers of them."""
        n, n_inducing = len(self.objective.rows), len(self.hyper.inducing)
        size = batch_size(n, n_inducing, self.settings.batch_rows)
        batches = random_batches(n, size, self.rng)
        n_stretches = max(1, len(batches) // self.settings.stretch(size, n_inducing))
        bounds = np.linspace(0, len(batches), n_stretches + 1).round().astype(int)
        return [list(batches[first:last]) for first, last in pairwise(bounds)]


def as_vector(hyper: Hyperparameters, gradient: Gradient) -> NDArray[np.float64]:
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
