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

from sparsegp.approximations import Approximation
from sparsegp.data import Block, BlockSource
from sparsegp.engines.anytime import blend
from sparsegp.engines.divergence import expected_log_likelihood, kl_to_prior
from sparsegp.engines.pace import Clock
from sparsegp.engines.sampling import WITHOUT_REPLACEMENT, Draw
from sparsegp.errors import FactorizationError, InputError
from sparsegp.learning.adam_steps import AdamSteps
from sparsegp.learning.hyperparameters import Hyperparameters, Limits
from sparsegp.learning.recorder import LearningResult, LearningStep, StepCallback
from sparsegp.learning.uncollapsed_gradient import accumulate_gradient
from sparsegp.posterior import InducingPosterior
from sparsegp.prior import SparsePrior
from sparsegp.statistics import BlockStatistics

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
    row: Approximation,
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
    climb = _Climb(row, hyper, limits, rates or Rates(), round(source.sizes.sum()), source.n_blocks)
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
        self, row: Approximation, hyper: Hyperparameters, limits: Limits, rates: Rates, n_rows: int, n_blocks: int
    ) -> None:
        self.row, self.hyper, self.rates, self.n_rows = row, hyper, rates, n_rows
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
        prior = self.hyper.prior(self.row, self.jitter)
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
