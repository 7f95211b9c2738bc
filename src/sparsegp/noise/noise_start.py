"""Starting values of the noise process, from the residuals of a homoscedastic fit."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparsegp import parallel
from sparsegp.core import approximations, inducing
from sparsegp.core.block import Block, MemoryRows, Rows
from sparsegp.core.prior import SparsePrior
from sparsegp.core.trend import Trend
from sparsegp.infer import batch
from sparsegp.kernels import Kernel, Stationary
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.schedules import Schedule, learn
from sparsegp.learn.trace import Terms

# log r^2 = g + log chi^2 with one degree of freedom: its mean and variance.
LOG_CHI_SQUARED_MEAN = -1.2703628454614782
LOG_CHI_SQUARED_VAR = math.pi**2 / 2.0
SAMPLE_ROWS = 4096
RESIDUAL_INDUCING = 128
NOISE_KERNEL_INDUCING = 64
NOISE_KERNEL_VARIANCES = (0.1, 4.0)
SMALLEST_REMAINDER = 0.1  # of a squared residual, after its leverage
ABOVE_FLOOR = 100.0  # at the floor itself the noise does not react to g
SCHEDULE = Schedule(warm_up_iterations=0, first_rows=SAMPLE_ROWS, first_iterations=30, tolerance=1e-5)


@dataclass(frozen=True)
class NoiseStart:
    """Kernel and mean of g to start from."""

    kernel: Kernel
    mean: float


@parallel.single()
def noise_start(
    rows: Rows,
    kernel: Kernel,
    noise_var: float,
    noise_kernel: Kernel,
    limits: Limits,
    rng: np.random.Generator,
    trend: Trend | None = None,
    *,
    local: bool,
) -> NoiseStart:
    """From the residuals of VFE with few inducing inputs on random rows, for f that varies slowly.

    `local`: from those of PIC in some whole blocks, because random rows would not resolve an f that varies quickly.
    """
    sample = _whole_blocks(rows, rng) if local else _random_rows(rows.sample.all, rng)
    squares = _squared_residuals(sample, "pic" if local else "vfe", kernel, noise_var, rng, trend)
    return _from_residuals(sample.all, squares, noise_kernel, limits, rng)


def _random_rows(block: Block, rng: np.random.Generator) -> MemoryRows:
    return MemoryRows(block.take(torch.from_numpy(np.sort(rng.permutation(len(block))[:SAMPLE_ROWS]))))


def _whole_blocks(rows: Rows, rng: np.random.Generator) -> MemoryRows:
    """Random blocks with about `SAMPLE_ROWS` rows, in the memory of this process."""
    source = rows.draws(SAMPLE_ROWS, rng, by_block=True)
    blocks: list[Block] = []
    for k in rng.permutation(source.n_blocks).tolist():
        blocks.append(source.block(k))
        if sum(map(len, blocks)) >= SAMPLE_ROWS:
            break
    return MemoryRows(Block.concat(blocks), torch.tensor([0, *map(len, blocks)]).cumsum(0))


def _from_residuals(
    sample: Block, squares: Tensor, noise_kernel: Kernel, limits: Limits, rng: np.random.Generator
) -> NoiseStart:
    """g seen through log r^2 + 1.27 = g + (noise of known variance pi^2/2): its mean, and its kernel by VFE."""
    target = squares.clamp(*limits.noise_var).log() - LOG_CHI_SQUARED_MEAN
    weight = sample.weights
    mean = float((weight @ target) / weight.sum())
    observed = Block(sample.X, target - mean, torch.full_like(target, LOG_CHI_SQUARED_VAR), sample.weight)
    lowest = math.log(ABOVE_FLOOR * limits.noise_var[0])
    return NoiseStart(_fitted_kernel(observed, noise_kernel, limits, rng), max(mean, lowest))


def _squared_residuals(
    rows: MemoryRows,
    approximation: str,
    kernel: Kernel,
    noise_var: float,
    rng: np.random.Generator,
    trend: Trend | None,
) -> Tensor:
    """r^2 = e^2 / (1 - leverage): residuals of rows that the fit has seen are too small by their leverage."""
    block = rows.all
    chosen = inducing.kmeans_inducing(block.X, RESIDUAL_INDUCING, rng, block.weight)
    prior = SparsePrior.build(kernel, chosen, noise_var, approximations.get(approximation), trend=trend)
    _, posterior, _ = batch.infer(prior, rows)
    labels = None
    if rows.offsets is not None:
        labels = torch.repeat_interleave(torch.arange(rows.n_blocks), rows.offsets.diff())
    mean, var = posterior.marginals(block.X, labels)
    return (block.y - mean).square() / (1.0 - var / noise_var).clamp_min(SMALLEST_REMAINDER)


def _fitted_kernel(observed: Block, kernel: Kernel, limits: Limits, rng: np.random.Generator) -> Kernel:
    chosen = inducing.kmeans_inducing(observed.X, NOISE_KERNEL_INDUCING, rng, observed.weight)
    hyper = Hyperparameters(kernel, LOG_CHI_SQUARED_VAR, chosen, learn_noise=False, learn_inducing=False)
    learn(MemoryRows(observed), approximations.get("vfe"), hyper, Terms(limits, rng), SCHEDULE)
    hyper.clear_gradient()
    fitted = hyper.kernel
    if isinstance(fitted, Stationary):
        lowest, highest = (math.log(value) for value in NOISE_KERNEL_VARIANCES)
        if float(fitted.log_variance.detach()) < lowest and isinstance(kernel, Stationary):
            # log r^2 did not show it, the likelihood of y still may: start again from where it was
            fitted = kernel
        with torch.no_grad():
            fitted.log_variance.clamp_(lowest, highest)
    return fitted
