"""Models that need their rows themselves and have no statistics to add: exact, a subset of the data, Nystrom."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sparsegp.core.approximations import Approximation, Family
from sparsegp.core.block import Block, MemoryRows, Rows
from sparsegp.core.dense import ExactPosterior, NystromPosterior, require_dense_size
from sparsegp.core.posterior import LatentPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.errors import InputError
from sparsegp.fit.budget import Budget
from sparsegp.fit.model import Found, Model
from sparsegp.fit.problem import Problem
from sparsegp.fit.progress import learning_report
from sparsegp.fit.start import until_interrupted
from sparsegp.infer import batch
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import ExactObjective
from sparsegp.learn.schedules import OPTIMIZERS, learn
from sparsegp.learn.trace import Deadline, LearningResult, Terms

LEAST_NOISE_OF_NYSTROM = 2.0**-104
"""Of the variance of f: the square of the rounding of double precision."""

Fit = tuple[Hyperparameters, list[LearningResult], LatentPosterior, float, float]
"""Hyper-parameters, stages of learning, posterior, log evidence and jitter."""


def in_memory(approx: Approximation, rows: Rows) -> MemoryRows:
    if isinstance(rows, MemoryRows):
        return rows
    raise InputError(
        f"approximation={approx.name!r} needs all of its rows in the memory of one process: its statistics are no sum "
        "over rows. Use 'vfe', 'fitc', 'pic' or another approximation with inducing inputs."
    )


def fit(problem: Problem, rows: Rows, budget: Budget) -> tuple[Model, dict[str, Any]]:
    """Learning ends early enough for the posterior."""
    deadline = budget.learning_deadline(0, (1.0 - problem.steps.dense_fraction) * budget.remaining)
    held, started = in_memory(problem.approx, rows), time.perf_counter()
    hyper, learning, posterior, evidence, jitter = _FITTERS[problem.approx.family](problem, held, deadline)
    hyper.clear_gradient()
    known, n = rows.mean_noise_var, len(rows)
    info = learning_report(learning, jitter, 0.0)
    info["inference_seconds"] = time.perf_counter() - started - info["learning_seconds"]
    model = Model(
        problem.approx,
        hyper.kernel,
        float(hyper.noise_var) if known is None else known,
        hyper.inducing.detach(),
        found=Found(posterior, evidence),
        known_noise=known is not None,
        n_arrived=n,
        n_rows=n,
    )
    return model, info


def _nystrom(problem: Problem, rows: MemoryRows, deadline: Deadline | None) -> Fit:
    hyper = problem.hyperparameters(rows, problem.select_inducing(rows.all, problem.rng))
    _require_noise(hyper.prior(problem.approx), rows.all)
    learning: list[LearningResult] = []
    optimizer = problem.optimizer
    if optimizer is not None:
        limits = problem.learning.start.limits(rows.all, problem.start.noise_var)
        schedule = problem.learning.schedules.of(problem.approx, optimizer)
        terms = Terms(limits, problem.rng, optimizer, problem.on_step, deadline)
        learning = until_interrupted(lambda: learn(rows, problem.approx, hyper, terms, schedule))
    prior = hyper.prior(problem.approx)
    _, posterior, info = batch.infer(prior, rows)
    nystrom = NystromPosterior.build(prior, rows.all, posterior.q, clip=problem.clip_variances)
    return hyper, learning, nystrom, info.log_evidence, info.jitter


def _require_noise(prior: SparsePrior, block: Block) -> None:
    """Covariances divided by the noise are subtracted from one another: nothing is left of their 16 digits."""
    weight = 1.0 if block.weight is None else block.weight
    ratio = prior.row_noise(block) / (weight * prior.kernel.diagonal(block.X))
    row = int(ratio.argmin())
    if not ratio[row] >= LEAST_NOISE_OF_NYSTROM:
        raise InputError(
            f"approximation='nystrom' divides by the noise of each row, and that of row {row} is only {ratio[row]:.1e} "
            "of the variance of the targets after division by its weight; predictions have digits from "
            f"{LEAST_NOISE_OF_NYSTROM:.0e} on. Give a larger noise variance, or use approximation='fitc' or 'exact'."
        )


def _exact(problem: Problem, rows: MemoryRows, deadline: Deadline | None) -> Fit:
    return _on(problem, rows, rows.all, deadline)


def _subset(problem: Problem, rows: MemoryRows, deadline: Deadline | None) -> Fit:
    block = rows.all
    index = _nearest_rows(block.X.to(torch.float64), problem.select_inducing(block, problem.rng))
    return _on(problem, rows, block.take(index), deadline)


def _on(problem: Problem, rows: MemoryRows, block: Block, deadline: Deadline | None) -> Fit:
    require_dense_size(len(block))
    hyper = problem.hyperparameters(rows, block.X, learn_inducing=False)
    learning: list[LearningResult] = []
    if problem.optimizer is not None:
        climb = OPTIMIZERS[problem.optimizer]
        limits = problem.learning.start.limits(rows.all, problem.start.noise_var)
        learning = until_interrupted(
            lambda: [climb(ExactObjective(block), hyper, limits, on_step=problem.on_step, deadline=deadline)]
        )
    posterior = ExactPosterior.build(hyper.kernel, block, hyper.noise_var, hyper.trend)
    return hyper, learning, posterior, posterior.log_evidence, posterior.C.jitter


def _nearest_rows(X: Tensor, targets: Tensor) -> Tensor:
    """Distinct rows of X nearest to the targets."""
    best = torch.full((targets.shape[0],), torch.inf, dtype=torch.float64)
    index = torch.zeros(targets.shape[0], dtype=torch.int64)
    for start in range(0, X.shape[0], 4096):
        distance, nearest = torch.cdist(targets, X[start : start + 4096]).min(dim=1)
        closer = distance < best
        best[closer], index[closer] = distance[closer], nearest[closer] + start
    distinct: Tensor = index.unique()
    return distinct


_FITTERS: Mapping[Family, Callable[[Problem, MemoryRows, Deadline | None], Fit]] = {
    Family.EXACT: _exact,
    Family.SUBSET: _subset,
    Family.NYSTROM: _nystrom,
}
