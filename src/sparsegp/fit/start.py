"""Where learning starts: kernel and noise in the scaling of the model, from the user, from a quick look at the rows, or
from neighbourhoods."""

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegp import parallel
from sparsegp.core import inducing
from sparsegp.core.approximations import get
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.dense import ExactPosterior
from sparsegp.core.reasons import INTERRUPTED
from sparsegp.core.trend import Trend, detrended
from sparsegp.errors import FactorizationError
from sparsegp.fit.budget import Budget
from sparsegp.fit.learning_options import StartOptions
from sparsegp.fit.problem import Problem, Start
from sparsegp.fit.scaling import Scaling
from sparsegp.kernels import Kernel, Stationary, as_kernel
from sparsegp.kernels import get as kernel_class
from sparsegp.learn import neighbourhoods
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.schedules import Schedule, learn
from sparsegp.learn.trace import Deadline, LearningResult, LearningStep, StepCallback, Terms, is_over

USUAL_LENGTHSCALES = (0.02, 1e4)
SAMPLE_ROWS = 2000
NOISE_RANGE = (0.01, 0.5)


def median_lengthscales(X: Tensor, rng: np.random.Generator, groups: Sequence[int] | None = None) -> Tensor:
    """Per column the median distance of random pairs that differ, times sqrt(D): distances add up over columns.

    With `groups`, the number of a group for every column: per group, whose columns have one distance together.
    """
    n = X.shape[0]
    first, second = (torch.from_numpy(rng.integers(0, n, SAMPLE_ROWS)) for _ in range(2))
    gaps = (X[first] - X[second]).abs().to(torch.float64)
    if groups is not None:
        together = gaps.new_zeros(len(gaps), max(groups) + 1)
        gaps = together.index_add_(1, torch.tensor(groups), gaps.square()).sqrt()
    gaps[gaps == 0.0] = torch.nan
    medians = gaps.nanmedian(dim=0).values
    usual = medians[medians.isfinite()].median() if medians.isfinite().any() else torch.tensor(1.0, dtype=torch.float64)
    found: Tensor = medians.where(medians.isfinite(), usual) * math.sqrt(gaps.shape[1])
    return found


@parallel.single()
def neighbour_noise_var(X: Tensor, y: Tensor, rng: np.random.Generator) -> float:
    """Half the mean squared difference of y between nearest neighbours in a sample, relative to var(y), clipped.

    It counts what varies faster than the sample resolves as noise, hence the upper clip.
    """
    n = X.shape[0]
    variance = float(y.var()) if n > 1 else 0.0
    if n < 8 or variance == 0.0:
        return NOISE_RANGE[0] * (variance or 1.0)
    index = torch.from_numpy(rng.permutation(n)[:SAMPLE_ROWS])
    sample, target = X[index].to(torch.float64), y[index].to(torch.float64)
    sq = torch.cdist(sample, sample).fill_diagonal_(torch.inf)
    ratio = float((target - target[sq.argmin(dim=1)]).square().mean()) / 2.0 / variance
    return min(max(ratio, NOISE_RANGE[0]), NOISE_RANGE[1]) * variance


@dataclass(frozen=True)
class StartRows:
    """What starting values are read from: rows in the scaling of the model, and what the `trend` leaves of them.

    The columns of one of the `groups` have a lengthscale in common; None: each has its own.
    """

    block: Block
    scaling: Scaling
    groups: Sequence[int] | None = None
    trend: Trend | None = None

    @cached_property
    def left(self) -> Block:
        return detrended(self.block, self.trend)

    def kernel_of(self, name: str, variance: float, rng: np.random.Generator) -> Kernel:
        """From median distances."""
        lengthscales = median_lengthscales(self.block.X, rng, self.groups)
        tied = {} if self.groups is None else {"groups": self.groups}
        return kernel_class(name)(variance=variance, lengthscales=lengthscales, **tied)


def starting_point(
    kernel: Any,
    noise_var: float | None,
    rows: StartRows,
    rng: np.random.Generator,
    options: StartOptions,
    *,
    warns: bool,
) -> Start:
    """From the user's kernel and noise variance. A kernel's name starts from median distances, and noise that is not
    given from the differences between neighbours, both from what the trend has left. `warns` of lengthscales that
    learning may not recover from."""
    block, left, scaling = rows.block, rows.left, rows.scaling
    least = options.noise_floor * block.target_variance
    given_noise = None if noise_var is None else scaling.standardized_noise(noise_var)
    if isinstance(kernel, str):
        started = rows.kernel_of(kernel, max(left.target_variance, least), rng)
    else:
        given, white = as_kernel(kernel)
        started = scaling.standardized_kernel(given)
        if given_noise is None and white is not None:
            given_noise = scaling.standardized_noise(white)
        if warns:
            _warn_of_odd_lengthscales(started)
    found_noise = given_noise is None
    if given_noise is None:
        given_noise = max(neighbour_noise_var(block.X, left.y, rng), least)
    if rows.trend is not None and isinstance(kernel, str):
        if not found_noise or block.noise_var is not None:
            options = replace(options, quieter=(1.0,))
        return _best_start(started.to(block.X.device), given_noise, block, rows.trend, options, rng)
    return Start(started.to(block.X.device), given_noise)


@torch.no_grad()
def _best_start(
    kernel: Kernel, noise_var: float, block: Block, trend: Trend, options: StartOptions, rng: np.random.Generator
) -> Start:
    """The start with the highest evidence on some rows, the trend integrated out.

    Median distances suit what varies over the whole of the data. A trend has taken that, and from lengthscales far too
    long learning ends where all the rest is noise.
    """
    assert isinstance(kernel, Stationary)
    rows = block.take(torch.from_numpy(rng.permutation(len(block))[: options.tried_rows]))
    tried: list[tuple[float, Start]] = []
    for shorter, less in product(options.shorter, options.quieter):
        scaled = deepcopy(kernel)
        scaled.log_lengthscales.add_(math.log(shorter))
        noise = torch.tensor(less * noise_var, dtype=torch.float64, device=block.X.device)
        with suppress(FactorizationError):
            evidence = ExactPosterior.build(scaled, rows, noise, trend).log_evidence
            tried.append((evidence, Start(scaled, less * noise_var)))
    return max(tried, key=lambda one: one[0])[1] if tried else Start(kernel, noise_var)


def starting_noise_kernel(kernel: Any, rows: StartRows, rng: np.random.Generator) -> Kernel:
    """The kernel of g = log noise variance, which has no units of y."""
    if isinstance(kernel, str):
        return rows.kernel_of(kernel, 1.0, rng)
    return rows.scaling.standardized_noise_kernel(as_kernel(kernel)[0])


def start_from_data(hyper: Hyperparameters, block: Block, rng: np.random.Generator) -> None:
    """Values of a kernel that was given by its name, from the rows as they are."""
    kernel = hyper.kernel
    if not isinstance(kernel, Stationary) or not kernel.log_lengthscales.requires_grad:
        return
    lengthscales = torch.as_tensor(median_lengthscales(block.X, rng, kernel.groups), dtype=torch.float64)
    if lengthscales.shape == kernel.log_lengthscales.shape:
        kernel.log_lengthscales.data = lengthscales.log() - kernel.units.log()
        kernel.log_variance.data = torch.full_like(kernel.log_variance, math.log(block.target_variance))
        if hyper.log_noise_var.requires_grad:
            noise_var = neighbour_noise_var(block.X, block.y, rng)
            hyper.log_noise_var.data = torch.full_like(hyper.log_noise_var, math.log(noise_var))


def _warn_of_odd_lengthscales(kernel: Kernel) -> None:
    """A start so short or long, in standard deviations of a column, that learning is unlikely to recover from it."""
    parts = [part for part in kernel.modules() if isinstance(part, Stationary)]
    found = [value for part in parts for value in part.lengthscales.detach().tolist()]
    if found and (min(found) < USUAL_LENGTHSCALES[0] or max(found) > USUAL_LENGTHSCALES[1]):
        warnings.warn(
            f"The kernel starts from lengthscales between {min(found):.2g} and {max(found):.2g} standard deviations of "
            "their columns, from where learning may not recover. Kernel parameters are in the units of the data: give "
            "lengthscales that suit them, or a name such as kernel='matern32' to start from the data.",
            stacklevel=4,
        )


def until_interrupted(learning: Callable[[], list[LearningResult]]) -> list[LearningResult]:
    """What learning gives, or after Ctrl-C a result that says so."""
    try:
        return learning()
    except KeyboardInterrupt:
        warnings.warn("Learning was interrupted: the model is that of the best hyper-parameters found.", stacklevel=2)
        return [LearningResult(float("nan"), 0, 0, 0, 0.0, INTERRUPTED, stopped=True)]


def propagate_interrupt(learning: Sequence[LearningResult], problem: Problem) -> None:
    """A reader who pressed Ctrl-C wants to hear of it; `fit` keeps the model."""
    if problem.steps.watched and learning and learning[-1].reason == INTERRUPTED:
        raise KeyboardInterrupt


class StopRequest:
    """Asks the caller after every step whether to stop, and remembers the answer."""

    def __init__(self, on_step: StepCallback | None) -> None:
        self.on_step, self.made = on_step, False

    def __call__(self, step: LearningStep) -> bool:
        self.made = self.made or (self.on_step is not None and self.on_step(step))
        return self.made

    def or_late(self, deadline: Deadline | None) -> StepCallback:
        """Stops at a deadline, too, which is no request of the caller."""
        return lambda step: self(step) or is_over(deadline)


def local_start(
    problem: Problem, block: Block, on_step: StepCallback | None = None, deadline: Deadline | None = None
) -> Start:
    """Kernel and noise learned from a few neighbourhoods, before there are blocks; from what a trend of all rows leaves
    there, for a neighbourhood cannot tell a plane from a long wave.

    They are the start of models by blocks, and their lengthscales the metric in which blocks are compact. Exact GPs
    have nothing for "ngd" to sample.
    """
    start, options, learn_noise = problem.start, problem.learning, block.noise_var is None
    assert problem.optimizer is not None
    optimizer = "lbfgs" if problem.optimizer == "ngd" else problem.optimizer
    hyper = Hyperparameters(start.kernel, start.noise_var, block.X[:1], learn_noise=learn_noise, learn_inducing=False)
    limits, left = options.start.limits(block, start.noise_var), detrended(block, problem.trend)
    terms = Terms(limits, problem.rng, optimizer, on_step, deadline)
    results = until_interrupted(lambda: neighbourhoods.learn(left, hyper, terms, options.rounds))
    hyper.clear_gradient()
    # neighbours that are nearly equal can do without noise; whole blocks of rows cannot be factored without any
    with torch.no_grad():
        signal = float(hyper.kernel.diagonal(block.X[:1].to(torch.float64)))
    noise_var = max(float(hyper.noise_var), options.start.least_of_signal * signal) if learn_noise else start.noise_var
    return Start(hyper.kernel, noise_var, tuple(results))


@parallel.single()
def global_start(
    block: Block,
    start: Start,
    optimizer: str,
    rng: np.random.Generator,
    options: StartOptions,
    on_step: StepCallback | None = None,
    schedule: Schedule | None = None,
    trend: Trend | None = None,
) -> Start:
    """Kernel and noise learned by VFE with few inducing inputs from a random subset: what varies slowly."""
    X = block.X.to(torch.float64)
    chosen = inducing.select_inducing("kmeans", start.kernel, X, options.global_inducing, rng, block.weight)
    hyper = Hyperparameters(start.kernel, start.noise_var, chosen, learn_noise=block.noise_var is None, trend=trend)
    terms = Terms(options.limits(block, start.noise_var), rng, optimizer, on_step)
    results = learn(MemoryRows(block), get("vfe"), hyper, terms, schedule or options.quick)
    hyper.clear_gradient()
    return Start(hyper.kernel, float(hyper.noise_var), tuple(results))


def learned_noise_start(problem: Problem, block: Block, budget: Budget, asked: StopRequest, *, local: bool) -> Start:
    """A start with constant noise for noise that varies; `local`: from neighbourhoods, unless they call everything
    signal.

    Noise is nowhere below a fraction of what a smooth model leaves unexplained: else a rough f passes through every
    row, the noise falls to its floor, and a repeated input with another target is called impossible.
    """
    assert problem.optimizer is not None
    start, own, fractions = problem.start, problem.learning.start, problem.learning.noise_fractions
    in_time, early = (asked.or_late(budget.deadline(part)) for part in (fractions.start, fractions.global_start))
    own_start = Start(deepcopy(start.kernel), start.noise_var)
    watched = (early, own.quick) if local else (in_time, own.thorough)
    smooth = global_start(block, own_start, problem.optimizer, problem.rng, own, *watched, problem.trend)
    least = own.least_noise_fraction * smooth.noise_var
    found = local_start(problem, block, in_time) if local else smooth
    if found.noise_var <= own.suspicious_noise * block.target_variance:
        found = smooth
    stages = smooth.stages if found is smooth else (*smooth.stages, *found.stages)
    return Start(found.kernel, max(found.noise_var, least), stages, least)
