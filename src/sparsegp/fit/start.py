"""Where learning starts: kernel and noise in the scaling of the model, from the user, from a quick look at the rows, or
from neighbourhoods."""

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch

from sparsegp import parallel
from sparsegp.core import inducing
from sparsegp.core.approximations import get
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.dense import ExactPosterior
from sparsegp.core.reasons import INTERRUPTED
from sparsegp.core.trend import Trend, detrended
from sparsegp.errors import FactorizationError
from sparsegp.fit.learning_options import LearningOptions, StartOptions
from sparsegp.fit.problem import Start
from sparsegp.fit.scaling import Scaling
from sparsegp.kernels import Kernel, Stationary, as_kernel
from sparsegp.kernels import get as kernel_class
from sparsegp.learn import neighbourhoods
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.schedules import Schedule, learn
from sparsegp.learn.start_values import median_lengthscales, neighbour_noise_var
from sparsegp.learn.trace import Deadline, LearningResult, StepCallback

USUAL_LENGTHSCALES = (0.02, 1e4)


def starting_point(
    kernel: Any,
    noise_var: float | None,
    scaling: Scaling,
    block: Block,
    left: Block,
    rng: np.random.Generator,
    options: StartOptions,
    *,
    warns: bool,
    trend: Trend | None = None,
    groups: Sequence[int] | None = None,
) -> Start:
    """From the user's kernel and noise variance. A kernel's name starts from median distances, with one lengthscale for
    each of the `groups` of columns; noise that is not given, from the differences between neighbours. Both start from
    what the trend has `left`. `warns` of lengthscales that learning may not recover from."""
    least = options.noise_floor * block.target_variance
    given_noise = None if noise_var is None else scaling.standardized_noise(noise_var)
    if isinstance(kernel, str):
        variance, lengthscales = max(left.target_variance, least), median_lengthscales(block.X, rng, groups)
        started: Kernel = kernel_class(kernel)(variance=variance, lengthscales=lengthscales, **_tied(groups))
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
    if trend is not None and isinstance(kernel, str):
        if not found_noise or block.noise_var is not None:
            options = replace(options, quieter=(1.0,))
        return _best_start(started.to(block.X.device), given_noise, block, trend, options, rng)
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


def starting_noise_kernel(
    kernel: Any, scaling: Scaling, block: Block, rng: np.random.Generator, groups: Sequence[int] | None = None
) -> Kernel:
    """The kernel of g = log noise variance, which has no units of y."""
    if isinstance(kernel, str):
        lengthscales = median_lengthscales(block.X, rng, groups)
        return kernel_class(kernel)(variance=1.0, lengthscales=lengthscales, **_tied(groups))
    return scaling.standardized_noise_kernel(as_kernel(kernel)[0])


def _tied(groups: Sequence[int] | None) -> dict[str, Any]:
    """The argument of a kernel whose columns share lengthscales; none where each has its own."""
    return {} if groups is None else {"groups": groups}


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


def local_start(
    block: Block,
    start: Start,
    optimizer: str,
    rng: np.random.Generator,
    options: LearningOptions,
    on_step: StepCallback | None = None,
    deadline: Deadline | None = None,
    trend: Trend | None = None,
) -> Start:
    """Kernel and noise learned from a few neighbourhoods, before there are blocks; from what a trend of all rows leaves
    there, for a neighbourhood cannot tell a plane from a long wave.

    They are the start of models by blocks, and their lengthscales the metric in which blocks are compact. Exact GPs
    have nothing for "ngd" to sample.
    """
    optimizer = "lbfgs" if optimizer == "ngd" else optimizer
    learn_noise = block.noise_var is None
    hyper = Hyperparameters(start.kernel, start.noise_var, block.X[:1], learn_noise=learn_noise, learn_inducing=False)
    limits, left = options.start.limits(block, start.noise_var), detrended(block, trend)
    watched: dict[str, Any] = {"rounds": options.rounds, "on_step": on_step, "deadline": deadline}
    results = until_interrupted(
        lambda: neighbourhoods.learn(left, hyper, limits, optimizer=optimizer, rng=rng, **watched)
    )
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
    limits = options.limits(block, start.noise_var)
    results = learn(
        MemoryRows(block),
        get("vfe"),
        hyper,
        limits,
        optimizer=optimizer,
        rng=rng,
        schedule=schedule or options.quick,
        on_step=on_step,
    )
    hyper.clear_gradient()
    return Start(hyper.kernel, float(hyper.noise_var), tuple(results))


def learned_noise_start(
    block: Block,
    start: Start,
    optimizer: str,
    rng: np.random.Generator,
    options: LearningOptions,
    on_step: StepCallback | None,
    *,
    local: bool,
    on_global_step: StepCallback | None = None,
    trend: Trend | None = None,
) -> Start:
    """A start with constant noise for noise that varies; `local`: from neighbourhoods, unless they call everything
    signal.

    Noise is nowhere below a fraction of what a smooth model leaves unexplained: else a rough f passes through every
    row, the noise falls to its floor, and a repeated input with another target is called impossible.
    """
    own_start = Start(deepcopy(start.kernel), start.noise_var)
    own = options.start
    watched = (on_global_step or on_step, own.quick) if local else (on_step, own.thorough)
    smooth = global_start(block, own_start, optimizer, rng, own, *watched, trend)
    least = own.least_noise_fraction * smooth.noise_var
    found = local_start(block, start, optimizer, rng, options, on_step, trend=trend) if local else smooth
    if found.noise_var <= own.suspicious_noise * block.target_variance:
        found = smooth
    stages = smooth.stages if found is smooth else (*smooth.stages, *found.stages)
    return Start(found.kernel, max(found.noise_var, least), stages, least)
