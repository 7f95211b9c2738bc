"""Anytime learning: natural-gradient steps on q(v) and Adam steps on kernel, noise and inducing inputs.

Both come from the same sampled blocks and the uncollapsed objective J(q) (derivations: T4, T6). With q held in whitened
coordinates its divergence from the prior does not depend on the hyper-parameters, so the gradient of w_s times one
block's term is unbiased for that of J(q), and at q = q* its expectation is the gradient of the evidence itself.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block, BlockSource
from sparsegp.core.evidence import expected_log_likelihood, kl_to_prior
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.errors import FactorizationError, InputError
from sparsegp.infer.anytime import WITHOUT_REPLACEMENT, Draw, blend
from sparsegp.infer.anytime_run import Clock
from sparsegp.learn.adam import AdamSteps
from sparsegp.learn.adjoint import BlockAdjoint, SharedAdjoint, residual_part
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.objective import inducing_through_kernel, through_kernel
from sparsegp.learn.trace import LearningResult, LearningStep, StepCallback


@torch.no_grad()
def accumulate_gradient(
    hyper: Hyperparameters,
    prior: SparsePrior,
    q: InducingPosterior,
    blocks: Sequence[Block],
    parts: Sequence[BlockStatistics],
) -> None:
    """Leave the gradient of the blocks' terms of J(q), q(v) held, in the `.grad` of the hyper-parameters.

    `parts` are the statistics of the blocks under `prior`, the model of the present hyper-parameters.
    """
    hyper.clear_gradient()
    shared = SharedAdjoint.build(prior, q, linalg.inverse_lower(prior.root), direct=False)
    together = sum(parts[1:], start=parts[0])
    adjoints = [through_kernel(hyper, prior, shared, block) for block in blocks]
    inducing_through_kernel(hyper, prior, _inducing_adjoint(prior, shared, q, together, adjoints))
    if hyper.log_noise_var.requires_grad and all(block.noise_var is None for block in blocks):
        noise_bar = _noise_adjoint(prior, q, together, adjoints)
        hyper.log_noise_var.grad = (noise_bar * prior.noise_var).to(hyper.log_noise_var)


def _inducing_adjoint(
    prior: SparsePrior,
    shared: SharedAdjoint,
    q: InducingPosterior,
    together: BlockStatistics,
    adjoints: Sequence[BlockAdjoint],
) -> Tensor:
    """bar Kuu of W = K L^-T at fixed q: -L^-T (P + P^T) L^-1/2, P the lower triangle of bar W^T W, diagonal halved.

    W^T bar W = (sum W^T V^-1 y - F m) m^T - F S - 2 sum W^T bar D W with F = sum W^T V^-1 W; symmetric at q*.
    """
    F, M = together.precision, prior.n_inducing
    grams = [adjoint.residual_gram for adjoint in adjoints if adjoint.residual_gram is not None]
    residual = residual_part(prior, F, torch.stack(grams).sum(0) if grams else None)
    product = torch.outer(together.shift - F @ q.mean, q.mean) - F @ q.covariance
    product = product[:M, :M] - 2.0 * residual
    inner = product.triu(1) + 0.5 * torch.diag(product.diagonal())
    inverse_L = shared.inverse_L[:M, :M]
    return -0.5 * inverse_L.mT @ (inner + inner.mT) @ inverse_L


def _noise_adjoint(
    prior: SparsePrior, q: InducingPosterior, together: BlockStatistics, adjoints: Sequence[BlockAdjoint]
) -> Tensor:
    """Sum of bar noise; of rows without residual ((squared errors + tr(W S W^T))/noise - n)/2 + penalty, over noise."""
    given = [adjoint.noise.sum(dtype=torch.float64) for adjoint in adjoints if adjoint.noise is not None]
    if given:
        return torch.stack(given).sum()
    F, m = together.precision, q.mean
    squared_error = together.target_sq - 2.0 * together.shift @ m + m @ F @ m + (F * q.covariance).sum()
    return (0.5 * (squared_error - together.n_rows) + together.penalty) / prior.noise_var


BLOCK_ROWS = 1024
MOST_FAILURES = 10
MEMORY = (0.9, 0.99)


@dataclass(frozen=True)
class Rates:
    """Adam's step on the (log) parameters and the share of a new estimate in q.

    q starts as the plain average of `warm_up` steps at fixed hyper-parameters, then forgets at `natural`, so that it
    follows them. Over the second half of the run both rates fall linearly to `coldest` of their values.
    """

    adam: float = 0.03
    natural: float = 0.1
    warm_up: int = 10
    coldest: float = 0.05

    def cooled(self, progress: float) -> float:
        return max(self.coldest, min(1.0, 2.0 * (1.0 - progress)))


def learn(
    source: BlockSource,
    approx: Approximation,
    hyper: Hyperparameters,
    limits: Limits,
    *,
    rng: np.random.Generator,
    seconds: float | None = None,
    steps: int | None = None,
    blocks_per_step: int = 1,
    rates: Rates | None = None,
    on_step: StepCallback | None = None,
    clock: Clock = time.perf_counter,
) -> LearningResult:
    """Learn in place from sampled blocks until `seconds` have passed or `steps` were taken (at least one is)."""
    _require_budget(seconds, steps)
    climb = _Climb(approx, hyper, limits, rates or Rates(), round(source.sizes.sum()), source.n_blocks)
    budget = _Budget(seconds, steps, clock)
    stopped = False
    for draw in WITHOUT_REPLACEMENT.draws(source.sizes, blocks_per_step, rng):
        climb.step(draw, [source.block(k) for k in draw.index], budget.progress(climb.steps))
        stopped = on_step is not None and on_step(
            LearningStep(climb.objective, climb.n_rows, climb.steps, budget.elapsed)
        )
        if stopped or climb.failures > MOST_FAILURES or budget.is_used(climb.steps):
            break
    hyper.clear_gradient()
    reason = "stopped by the caller" if stopped else climb.reason
    return LearningResult(climb.objective, climb.n_rows, climb.steps, climb.steps, budget.elapsed, reason, stopped)


def _require_budget(seconds: float | None, steps: int | None) -> None:
    unlimited = seconds is None and steps is None
    if unlimited or (seconds is not None and not seconds > 0.0) or (steps is not None and steps < 1):
        raise InputError(
            "Stochastic learning has no end of its own: give seconds > 0 or steps >= 1 (or both); "
            f"got seconds={seconds!r}, steps={steps!r}."
        )


class _Budget:
    def __init__(self, seconds: float | None, steps: int | None, clock: Clock) -> None:
        self.seconds, self.steps, self.clock, self.started = seconds, steps, clock, clock()

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started

    def is_used(self, steps: int) -> bool:
        """Whether no step is left, or another one as long as those before would end too late."""
        elapsed = self.elapsed
        late = self.seconds is not None and elapsed + elapsed / steps > self.seconds
        return late or self.progress(steps) >= 1.0

    def progress(self, steps: int) -> float:
        """Used share of whichever limit is nearer."""
        return max(steps / (self.steps or math.inf), self.elapsed / (self.seconds or math.inf))


class _Follower:
    """q(v) that follows moving hyper-parameters: the iterate, and the weight that each block has in it.

    Statistics of slightly older hyper-parameters are taken for those of the present ones.
    """

    def __init__(self, n_blocks: int) -> None:
        self.iterate: BlockStatistics | None = None
        self.shares = np.zeros(n_blocks)

    def read(self, prior: SparsePrior, draw: Draw, parts: list[BlockStatistics]) -> InducingPosterior:
        """q with at least the weight 1 that the drawn blocks have in q*.

        Drawn without replacement, a block is the one that the iterate has forgotten most; where it alone knows its
        region, q would take its signal for noise.
        """
        missing = np.maximum(0.0, 1.0 - self.shares[list(draw.index)]).tolist()
        own = sum((m * part for m, part in zip(missing, parts, strict=True)), start=self._present(prior))
        return InducingPosterior.from_statistics(own)

    def step(self, prior: SparsePrior, draw: Draw, parts: list[BlockStatistics], rate: float) -> None:
        self.iterate = blend(self._present(prior), parts, draw.weights, rate)
        self.shares *= 1.0 - rate
        self.shares[list(draw.index)] += rate * np.array(draw.weights)

    def _present(self, prior: SparsePrior) -> BlockStatistics:
        if self.iterate is None:
            return BlockStatistics.zero(prior)
        return replace(self.iterate, fingerprint=prior.fingerprint)


class _Climb:
    """Hyper-parameters on their way: their vector, Adam's memory, q, and the running value of the objective."""

    def __init__(
        self, approx: Approximation, hyper: Hyperparameters, limits: Limits, rates: Rates, n_rows: int, n_blocks: int
    ) -> None:
        self.approx, self.hyper, self.rates, self.n_rows = approx, hyper, rates, n_rows
        self.lower, self.upper = hyper.box(limits)
        self.vector = self.good = hyper.vector()
        self.adam = AdamSteps(MEMORY)
        self.follower = _Follower(n_blocks)
        self.objective, self.jitter, self.steps, self.failures = -math.inf, 0.0, 0, 0

    @property
    def reason(self) -> str:
        return "a matrix could not be factorised" if self.failures > MOST_FAILURES else "budget used"

    def step(self, draw: Draw, blocks: Sequence[Block], progress: float) -> None:
        try:
            self._step(draw, blocks, progress)
        except FactorizationError:
            if self.steps == 0:
                raise
            self._retreat()
        self.steps += 1

    def _step(self, draw: Draw, blocks: Sequence[Block], progress: float) -> None:
        prior = self.hyper.prior(self.approx, self.jitter)
        parts = [BlockStatistics.from_block(prior, block) for block in blocks]
        cooled = self.rates.cooled(progress)
        if self.steps >= self.rates.warm_up:
            q = self.follower.read(prior, draw, parts)
            accumulate_gradient(self.hyper, prior, q, blocks, parts)
            self._record(parts, draw.weights, q)
            self.good = self.vector
            # without replacement all blocks of a draw have one weight
            self._adam_step(draw.weights[0] / self.n_rows, self.rates.adam * cooled)
        self.jitter = prior.Luu.jitter
        rate = max(1.0 / (self.steps + 1), self.rates.natural * cooled)
        self.follower.step(prior, draw, parts, rate)

    def _adam_step(self, scale: float, rate: float) -> None:
        gradient = scale * self.hyper.gradient()
        if not np.isfinite(gradient).all():
            raise FactorizationError("The gradient of a block is not finite.")
        self.vector = np.clip(self.vector + self.adam.step(gradient, rate), self.lower, self.upper)
        self.hyper.load_vector(self.vector)

    def _record(self, parts: list[BlockStatistics], weights: Sequence[float], q: InducingPosterior) -> None:
        """The objective is a running mean of unbiased estimates."""
        likelihood = sum(w * expected_log_likelihood(part, q) for part, w in zip(parts, weights, strict=True))
        value = likelihood - kl_to_prior(q)
        started = math.isfinite(self.objective)
        self.objective = self.objective + self.rates.natural * (value - self.objective) if started else value

    def _retreat(self) -> None:
        """Back to the last parameters that worked, with Adam's memory cleared."""
        self.failures += 1
        self.vector = self.good
        self.hyper.load_vector(self.vector)
        self.adam = AdamSteps(MEMORY)
