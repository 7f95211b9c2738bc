"""SVSHGP: the factorised bound on mini-batches (001 eq. 18; derivations: H7).

    F = sum_i { log N(y_i; mu_f, R_i) - v_g/4 - v_f/(2 R_i) } - KL(q(f_m)) - KL(q(g_u))

Natural steps on q(f_m) and q(g_u), then one Adam step on everything else with both q held in whitened coordinates,
where neither KL depends on it.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block, Rows
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.reasons import OUT_OF_TIME
from sparsegp.core.trend import Trend
from sparsegp.kernels import Kernel
from sparsegp.learn.hyperparameters import Limits
from sparsegp.learn.trace import LearningResult, LearningStep, Terms, is_over
from sparsegp.noise.joint_hyperparameters import JointHyperparameters
from sparsegp.noise.process import NoiseProcess, limited, natural_step

FIRST_STEP, LAST_STEP, RAMP = 1e-4, 0.1, 5
ADAM_RATE = 0.01
AVERAGED = 0.05


def step_size(t: int) -> float:
    """From 1e-4 log-linearly to 0.1 over the first five iterations, then constant (001 sec. V-B)."""
    progress = min(1.0, t / (RAMP - 1))
    return math.exp((1.0 - progress) * math.log(FIRST_STEP) + progress * math.log(LAST_STEP))


@dataclass(frozen=True)
class Factorised:
    """q(f_m) and q(g_u) with the priors they are whitened by; one state of the stochastic iteration."""

    prior: SparsePrior
    q: InducingPosterior
    process: NoiseProcess

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at the rows: W m, d + |P^-1/2 w|^2."""
        with torch.no_grad():
            W = self.prior.features(X)
            spread = linalg.whiten_rows(W, self.q.LB.factor)
            return W @ self.q.mean, self.prior.residual_diag(X, W) + linalg.row_squares(spread)

    def value(self, block: Block, scale: float = 1.0) -> float:
        """F, with the sum over the rows of the block scaled by (rows of all data)/(rows of the block)."""
        mean, var = self.moments(block.X)
        noise = self.process.moments(block.X)
        terms = _row_terms(block.y, mean, var, noise.R.log(), noise.var)
        divergence = self.process.kl() + replace(self.process, q=self.q).kl()
        return scale * float(block.weights @ terms) - divergence

    def stepped_f(self, block: Block, scale: float, step: float) -> "Factorised":
        """A natural step on q(f_m) towards I + scale W^T R^-1 W and scale W^T R^-1 y."""
        with torch.no_grad():
            W = self.prior.features(block.X)
            A = W * (scale * block.weights / self.process.moments(block.X).R)[:, None]
            precision = A.mT @ W
            precision.diagonal().add_(1.0)
            return replace(self, q=natural_step(self.q, (precision, A.mT @ block.y), step))

    def stepped_g(self, block: Block, scale: float, step: float) -> "Factorised":
        """A natural step on q(g_u) with lambda_i = ((y_i - mu_f)^2 + v_f)/(2 R_i)."""
        mean, var = self.moments(block.X)
        noise, half = self.process.moments(block.X), 0.5 * block.weights
        slope = noise.limit_slope * half * (((block.y - mean).square() + var) / noise.R - 1.0)
        target = self.process.natural_target(block.X, slope, slope + half, scale)
        return replace(self, process=self.process.with_q(natural_step(self.process.q, target, step)))


def _row_terms(y: Tensor, f_mean: Tensor, f_var: Tensor, log_R: Tensor, g_var: Tensor) -> Tensor:
    """log N(y; mu_f, R) - v_g/4 - v_f/(2 R) of each row."""
    square = ((y - f_mean).square() + f_var) * torch.exp(-log_R)
    return -0.5 * (math.log(2.0 * math.pi) + log_R + square) - 0.25 * g_var


def _moments_with_graph(
    kernel: Kernel, inducing: Tensor, q: InducingPosterior, X: Tensor, jitter: float, trend: Trend | None = None
) -> tuple[Tensor, Tensor]:
    Kuu = linalg.add_jitter(kernel(inducing), jitter)
    L = linalg.cholesky(Kuu, name="covariance of the inducing inputs").factor
    W = linalg.whiten_rows(kernel(X, inducing), L)
    d = (kernel.diagonal(X) - W.square().sum(1)).clamp_min(0.0)
    W = W if trend is None else torch.cat([W, trend.features(X)], dim=1)
    return W @ q.mean, d + linalg.whiten_rows(W, q.LB.factor).square().sum(1)


def expected_log_likelihood(hyper: JointHyperparameters, state: Factorised, block: Block, scale: float) -> Tensor:
    """The part of F that depends on the hyper-parameters when both q are held in whitened coordinates."""
    f_jitter, g_jitter = state.prior.Luu.jitter, state.process.prior.Luu.jitter
    f_mean, f_var = _moments_with_graph(hyper.kernel, hyper.inducing, state.q, block.X, f_jitter, hyper.trend)
    g_mean, g_var = _moments_with_graph(hyper.noise_kernel, hyper.noise_inducing, state.process.q, block.X, g_jitter)
    log_R = limited(hyper.noise_mean + g_mean - 0.5 * g_var, state.process.limits)
    return scale * block.weights @ _row_terms(block.y, f_mean, f_var, log_R, g_var)


def initial(hyper: JointHyperparameters, approx: Approximation, limits: Limits) -> Factorised:
    """Both q at their priors."""
    prior = hyper.prior(approx)
    process = NoiseProcess.at_prior(hyper.noise_kernel, hyper.noise_inducing, hyper.noise_mean, limits.noise_var)
    eye = torch.eye(prior.n_features, dtype=torch.float64)
    q = InducingPosterior(torch.zeros(prior.n_features, dtype=torch.float64), linalg.Cholesky(eye, 0.0))
    return Factorised(prior, q, process)


def _with_trend_found(state: Factorised, block: Block) -> Factorised:
    """q(f_m) of one batch at once: short steps from the broad prior of a trend would call its width noise."""
    return state.stepped_f(block, 1.0, 1.0)


def _rebuilt(state: Factorised, hyper: JointHyperparameters, approx: Approximation, limits: Limits) -> Factorised:
    """The same whitened q at new hyper-parameters."""
    fresh = initial(hyper, approx, limits)
    return Factorised(fresh.prior, state.q, fresh.process.with_q(state.process.q))


def learn(
    rows: Rows,
    approx: Approximation,
    hyper: JointHyperparameters,
    terms: Terms,
    batch_size: int,
    n_steps: int,
) -> tuple[InducingPosterior, LearningResult]:
    """Run the stochastic iteration; hyper-parameters are learned in place, q(g_u) is returned.

    Mini-batches are drawn from the sample of the rows, which is random, and count for all of them: the steps of a run
    visit about as many rows as a sample has, and none of them has to be fetched.
    """
    started, limits, rng, on_step = time.perf_counter(), terms.limits, terms.rng, terms.on_step
    state, smoothed, reason, stopped, t = initial(hyper, approx, limits), math.nan, "iteration limit", False, 0
    learned = [p for p in hyper.parameters() if p.requires_grad]
    adam = torch.optim.Adam(learned, lr=ADAM_RATE, maximize=True) if learned else None
    box = hyper.box(limits)
    sample = rows.sample.all
    if hyper.trend is not None:
        state = _with_trend_found(state, sample.take(next(_batches(len(sample), min(batch_size, len(sample)), 1, rng))))
    for t, index in enumerate(_batches(len(sample), min(batch_size, len(sample)), n_steps, rng), start=1):
        block = sample.take(index)
        scale = len(rows) / len(block)
        state = state.stepped_f(block, scale, step_size(t - 1)).stepped_g(block, scale, step_size(t - 1))
        value = state.value(block, scale)
        smoothed = value if math.isnan(smoothed) else (1.0 - AVERAGED) * smoothed + AVERAGED * value
        if adam is not None:
            adam.zero_grad()
            expected_log_likelihood(hyper, state, block, scale).backward()
            adam.step()
            hyper.load_vector(np.clip(hyper.vector(), *box))
            state = _rebuilt(state, hyper, approx, limits)
        if on_step is not None and on_step(LearningStep(smoothed, len(rows), t, time.perf_counter() - started)):
            reason, stopped = "stopped by the caller", True
            break
        if is_over(terms.deadline):
            reason = OUT_OF_TIME
            break
    seconds = time.perf_counter() - started
    return state.process.q, LearningResult(smoothed, len(rows), t, t, seconds, reason, stopped)


def _batches(n_rows: int, size: int, n_steps: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Mini-batches of one size from reshuffled epochs."""
    order, start = rng.permutation(n_rows), 0
    for _ in range(n_steps):
        if start + size > n_rows:
            order, start = rng.permutation(n_rows), 0
        yield torch.from_numpy(order[start : start + size])
        start += size
