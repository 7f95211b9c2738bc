"""Stochastic recursive gradient propagation (003 sec. 4.1): Adam on mini-batches, the posterior eliminated exactly.

An epoch starts from the prior, visits all rows once in random batches, carries the posterior and its derivatives
forward, and after every batch k takes one Adam step along d psi_k/d theta. What the state holds of earlier batches
belongs to the parameters they were seen with.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sparsegp.approximations import Approximation, Family
from sparsegp.data import Rows
from sparsegp.errors import FactorizationError, InputError
from sparsegp.learning.adam_steps import AdamSteps
from sparsegp.learning.deadline import OUT_OF_TIME, Deadline, OutOfTime
from sparsegp.learning.forward_gradient import ForwardGradient
from sparsegp.learning.hyperparameters import Hyperparameters, Limits
from sparsegp.learning.objective import CollapsedObjective, Objective
from sparsegp.learning.recorder import LearningResult, Recorder, StepCallback
from sparsegp.learning.sensitivities import Gradient

MOST_BATCH_ROWS = 10_000
FEWEST_BATCH_ROWS = 128
BATCHES_PER_EPOCH = 20
PATIENCE = 5
NEAR_LAST = 2.0


@dataclass(frozen=True)
class Settings:
    """Adam's rate and decay rates, rows a batch (None: a twentieth of all, 10,000 at the most), seed of the shuffling.

    What an epoch moves makes its sums stale, so the end must be slow: over the last two thirds of the epochs that
    are allowed the rate falls geometrically to `last_share` of itself. Adam's memory of squared gradients is short,
    because they shrink by orders of magnitude. The paper keeps the rate: last_share = 1, betas = (0.9, 0.999).
    """

    rate: float = 0.03
    betas: tuple[float, float] = (0.9, 0.95)
    batch_rows: int | None = None
    last_share: float = 0.03
    seed: int = 0

    def rate_at(self, epoch: int, n_epochs: int) -> float:
        return self.rate * math.pow(self.last_share, max(0.0, 1.5 * epoch / n_epochs - 0.5))

    def is_slow(self, epoch: int, n_epochs: int) -> bool:
        """Whether the rate is near its last value."""
        return self.rate_at(epoch, n_epochs) <= NEAR_LAST * self.rate_at(n_epochs, n_epochs)

    def batch_size(self, n_rows: int, n_inducing: int) -> int:
        usual = max(n_rows // BATCHES_PER_EPOCH, 2 * n_inducing, FEWEST_BATCH_ROWS)
        return min(self.batch_rows or min(usual, MOST_BATCH_ROWS), n_rows)


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
    collapsed = _collapsed(objective)
    recorder = Recorder(collapsed, hyper, on_step)
    settings = settings or Settings()
    climber = _Climber(collapsed, hyper, limits, settings)
    _record(recorder, collapsed.value(hyper))
    values = [recorder.best_value]
    for epoch in range(1, max_iterations + 1):
        try:
            with nullcontext() if deadline is None else deadline.evaluation(collapsed.n_rows), recorder.keeping_best():
                climber.run_epoch(settings.rate_at(epoch, max_iterations))
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


def _collapsed(objective: Objective) -> CollapsedObjective:
    if not isinstance(objective, CollapsedObjective):
        raise InputError(
            "optimizer='srgp' learns from mini-batches of rows, which an exact model or a source of batches does not "
            "give; use optimizer='lbfgs'."
        )
    require_points(objective.row)
    return objective


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

    def run_epoch(self, rate: float) -> None:
        learns_noise = self.rows.all.noise_var is None
        forward = ForwardGradient(self.hyper, self.objective.row, learns_noise=learns_noise)
        state = forward.init(self.objective.prior(self.hyper))
        batches = self._batches()
        for k, index in enumerate(batches):
            prior = self.objective.prior(self.hyper)
            batch = self.rows.all.take(index)
            state, increment = forward.step(state, prior, batch)
            if k == len(batches) - 1 and (missing := forward.deferred(state, prior, self.rows)) is not None:
                increment = increment + missing
            self._climb(_as_vector(self.hyper, increment) / len(index), rate)

    def _batches(self) -> list[torch.Tensor]:
        n = len(self.rows)
        size = self.settings.batch_size(n, len(self.hyper.inducing))
        return list(torch.from_numpy(self.rng.permutation(n)).tensor_split(round(n / size)))

    def _climb(self, gradient: NDArray[np.float64], rate: float) -> None:
        """One Adam step; a gradient that is not finite (parameters beyond all reason) ends the epoch."""
        if not np.isfinite(gradient).all():
            raise FactorizationError("The gradient of a mini-batch is not finite.")
        moved = self.hyper.vector() + self.adam.step(gradient, rate)
        self.hyper.load_vector(np.clip(moved, self.lower, self.upper))


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
