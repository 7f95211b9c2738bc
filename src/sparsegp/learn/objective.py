"""Value and exact gradient of the collapsed objective in two passes over rows: O(N M^2) time, O(chunk x M) memory."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from sparsegp import linalg, memory, parallel
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block, MemoryRows, Rows
from sparsegp.core.dense import ExactPosterior, row_noise
from sparsegp.core.posterior import InducingPosterior, log_evidence
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.errors import InputError
from sparsegp.infer import batch
from sparsegp.learn import direct
from sparsegp.learn.adjoint import BlockAdjoint, SharedAdjoint, block_adjoint, inducing_adjoint, push_back
from sparsegp.learn.hyperparameters import Gradient, Hyperparameters, added


class Objective(Protocol):
    """A function of the hyper-parameters that learning climbs."""

    @property
    def n_rows(self) -> int:
        """Rows behind one evaluation."""

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        """The value; its gradient is left in the `.grad` of the hyper-parameters."""


@dataclass
class CollapsedObjective:
    """The log evidence or bound J of `row` on `rows` (M3), the posterior of u eliminated: two passes over the rows.

    `jitter` is the largest relative jitter met so far; later evaluations use at least as much, so that the
    objective does not jump between evaluations of one optimisation.
    """

    rows: Rows
    approx: Approximation
    jitter: float = 0.0

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    def prior(self, hyper: Hyperparameters) -> SparsePrior:
        prior = hyper.prior(self.approx, self.jitter)
        self.jitter = prior.Luu.jitter
        return prior

    @torch.no_grad()
    def value(self, hyper: Hyperparameters) -> float:
        statistics = batch.statistics_of(self.prior(hyper), self.rows)
        return log_evidence(statistics, InducingPosterior.from_statistics(statistics))

    @torch.no_grad()
    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        memory.keep_freed()
        hyper.clear_gradient()
        with parallel.single(len(hyper.inducing)):
            prior = self.prior(hyper)
            inverse_L = linalg.inverse_lower(prior.root)
            is_direct = direct.is_safe(prior, inverse_L, self.rows)
        statistics = self.rows.sum(direct.DirectStatistics(prior) if is_direct else batch.StatisticsOfRows(prior))
        with parallel.single(len(hyper.inducing)):
            q = InducingPosterior.from_statistics(statistics)
            shared = SharedAdjoint.build(prior, q, inverse_L, direct=is_direct)
        adjoints = self.rows.sum(AdjointsOfRows(hyper, prior, q, shared))
        hyper.add_gradient(adjoints.gradient)
        learns_noise = hyper.log_noise_var.requires_grad and self.rows.least_noise_var is None
        with parallel.single(len(hyper.inducing)):
            close_gradient(hyper, prior, shared, statistics, q, adjoints, learns_noise=learns_noise)
            return log_evidence(statistics, q)


def objective_of(rows: Rows, approx: Approximation) -> "CollapsedObjective | ExactObjective":
    """The objective of an approximation. A single block with all of its residual is the exact model, whatever the
    inducing inputs: one factorisation instead of two passes."""
    if approx.is_exact_in_blocks and isinstance(rows, MemoryRows) and rows.n_blocks == 1:
        return ExactObjective(rows.all)
    return CollapsedObjective(rows, approx)


def require_rows(objective: Objective, optimizer: str) -> CollapsedObjective:
    """The objective of rows in memory, from which an optimiser can sample; an error for any other."""
    if isinstance(objective, CollapsedObjective) and isinstance(objective.rows, MemoryRows):
        return objective
    raise InputError(
        f"optimizer={optimizer!r} learns from samples of the rows, which an exact model or a source of batches does "
        "not give; use optimizer='lbfgs'."
    )


@dataclass(frozen=True)
class Adjoints:
    """What the second pass adds up: the gradient of every parameter through the rows (None: it has none), the adjoint
    of the noise, and sum W^T bar D W (None: no residual)."""

    gradient: Gradient
    noise: Tensor
    residual_gram: Tensor | None

    def __add__(self, other: "Adjoints") -> "Adjoints":
        gram = None
        if self.residual_gram is not None and other.residual_gram is not None:
            gram = self.residual_gram + other.residual_gram
        return Adjoints(added(self.gradient, other.gradient), self.noise + other.noise, gram)

    def __reduce__(self) -> tuple[Any, ...]:
        """Half of the symmetric matrix travels."""
        gram = None if self.residual_gram is None else linalg.packed_lower(self.residual_gram)
        return _unpacked_adjoints, (self.gradient, self.noise, gram)


def _unpacked_adjoints(gradient: Gradient, noise: Tensor, gram: Tensor | None) -> Adjoints:
    return Adjoints(gradient, noise, None if gram is None else linalg.unpacked_symmetric(gram))


@dataclass(frozen=True)
class AdjointsOfRows:
    """Task of the second pass. Groups of rows are shared out among threads in a fixed way.

    `shared` follows from the rest, so it does not travel.
    """

    hyper: Hyperparameters
    prior: SparsePrior
    q: InducingPosterior
    shared: SharedAdjoint

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt_task, (self.hyper, self.prior, self.q, self.shared.direct)

    def __call__(self, rows: MemoryRows) -> Adjoints:
        parts = parallel.shared_out(list(rows.groups(self.prior.approx.by_block)))
        # Torch gathers gradients in the parameters, so every thread has its own. The first one has those of the caller,
        # whose kernel keeps its buffers from pass to pass.
        owned = [self.hyper, *(copy.deepcopy(self.hyper) for _ in parts[1:])]
        work = zip(owned, parts, strict=True)
        first, *others = parallel.run(
            [partial(_push_adjoints, own, self.prior, self.shared, part) for own, part in work]
        )
        self.hyper.clear_gradient()
        return sum(others, start=first)


def _rebuilt_task(hyper: Hyperparameters, prior: SparsePrior, q: InducingPosterior, is_direct: bool) -> AdjointsOfRows:
    inverse_L = linalg.inverse_lower(prior.root)
    return AdjointsOfRows(hyper, prior, q, SharedAdjoint.build(prior, q, inverse_L, direct=is_direct))


def close_gradient(
    hyper: Hyperparameters,
    prior: SparsePrior,
    shared: SharedAdjoint,
    statistics: BlockStatistics,
    q: InducingPosterior,
    totals: Adjoints,
    *,
    learns_noise: bool,
) -> None:
    """After the second pass over all rows: what flows through Kuu and the noise variance, added to the gradient."""
    Kuu_bar = inducing_adjoint(prior, shared, statistics.precision, totals.residual_gram)
    inducing_through_kernel(hyper, prior, Kuu_bar)
    if learns_noise:
        noise_bar = totals.noise if prior.approx.keeps_residual else noise_adjoint(prior, statistics, q)
        hyper.log_noise_var.grad = (noise_bar * prior.noise_var).to(hyper.log_noise_var)


def _push_adjoints(
    own: Hyperparameters, prior: SparsePrior, shared: SharedAdjoint, blocks: Sequence[Block]
) -> Adjoints:
    """The second pass over some blocks; `own` are parameters in which nobody else gathers gradients."""
    own.clear_gradient()
    noise_bar = torch.zeros((), dtype=torch.float64)
    residual_gram = torch.zeros_like(prior.Luu.factor) if prior.approx.keeps_residual else None
    with torch.no_grad():
        for block in blocks:
            adjoint = through_kernel(own, prior, shared, block)
            if residual_gram is not None and adjoint.residual_gram is not None:
                residual_gram += adjoint.residual_gram
            if adjoint.noise is not None:
                noise_bar += adjoint.noise.sum(dtype=torch.float64)
    return Adjoints(own.gradients(), noise_bar, residual_gram)


def through_kernel(hyper: Hyperparameters, prior: SparsePrior, shared: SharedAdjoint, block: Block) -> BlockAdjoint:
    """Recompute the covariances of a block with a graph and push the adjoints through it into the parameters."""
    with torch.enable_grad():
        K = hyper.kernel(block.X, hyper.inducing.to(block.X.dtype))
        own = hyper.kernel(block.X) if prior.approx.by_block else hyper.kernel.diagonal(block.X)
    adjoint = block_adjoint(prior, shared, block, K.detach(), own.detach())
    push_back(K, adjoint.K_ku)
    if adjoint.K_kk is not None:
        push_back(own, adjoint.K_kk.to(own.dtype))
    return adjoint


def inducing_through_kernel(hyper: Hyperparameters, prior: SparsePrior, Kuu_bar: Tensor) -> None:
    with torch.enable_grad():
        Kuu = linalg.add_jitter(hyper.kernel(hyper.inducing), prior.Luu.jitter)
    push_back(Kuu, Kuu_bar)


def noise_adjoint(prior: SparsePrior, statistics: BlockStatistics, q: InducingPosterior) -> Tensor:
    """dJ/d(noise variance) of a row without residual, from its statistics alone.

    -n/2 + (sum of squared errors/noise + tr(I - B^-1))/2 + penalty, all divided by the noise variance.
    """
    squared_error = statistics.target_sq - 2.0 * statistics.shift @ q.mean + q.mean @ statistics.precision @ q.mean
    effective = len(q.mean) - q.covariance.diagonal().sum()
    return (0.5 * (squared_error + effective - statistics.n_rows) + statistics.penalty) / prior.noise_var


@dataclass(frozen=True)
class ExactObjective:
    """The exact log evidence; bar K = (alpha alpha^T - (K + noise)^-1)/2."""

    block: Block

    @property
    def n_rows(self) -> int:
        return len(self.block)

    def value(self, hyper: Hyperparameters) -> float:
        with parallel.single(len(self.block)):
            return ExactPosterior.build(hyper.kernel, self.block, hyper.noise_var, hyper.trend).log_evidence

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        memory.keep_freed()
        with parallel.single(len(self.block)):
            return self._value_and_gradient(hyper)

    def _value_and_gradient(self, hyper: Hyperparameters) -> float:
        hyper.clear_gradient()
        with torch.enable_grad():
            K = hyper.kernel(self.block.X.to(torch.float64))
        posterior = ExactPosterior.build(hyper.kernel, self.block, hyper.noise_var, hyper.trend, K.detach())
        K_bar = posterior.precision().neg_().addr_(posterior.alpha, posterior.alpha).mul_(0.5)
        # jitter is relative to the mean variance of K + noise
        share = posterior.C.jitter / len(K) * float(K_bar.diagonal().sum())
        K_bar.diagonal().add_(share)
        push_back(K, K_bar)
        if hyper.log_noise_var.requires_grad and self.block.noise_var is None:
            _, weight, single = row_noise(self.block, hyper.noise_var)
            noise_bar = K_bar.diagonal() / weight - 0.5 * (weight - 1.0) / single
            hyper.log_noise_var.grad = noise_bar.sum() * hyper.noise_var
        return posterior.log_evidence
