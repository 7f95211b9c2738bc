"""Fits of more rows than are held in memory: learning from a sample, then passes over the data where they are."""

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsegp import linalg
from sparsegp.approximations import Approximation, Family
from sparsegp.engines import streamed
from sparsegp.estimators import families
from sparsegp.estimators.choices import choosing
from sparsegp.estimators.families import Fitted, Problem
from sparsegp.estimators.incoming import arrivals
from sparsegp.estimators.incoming.frames import split_target
from sparsegp.estimators.incoming.surveyed import accepted, with_known_noise
from sparsegp.estimators.incoming.validation import seed_of
from sparsegp.estimators.progress import StepListener
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.objective import CollapsedObjective, Objective
from sparsegp.learning.progressive import choose_lengthscales, climb, schedule_of, staged
from sparsegp.learning.recorder import LearningResult
from sparsegp.learning.streamed import StreamedObjective
from sparsegp.prior import SparsePrior
from sparsegp.sources import ModelRows, Source, open_source, scan

MOST_ENTRIES = 2**24
"""Numbers in X beyond which rows stay where they are: 128 MB as float64, two million rows of eight columns."""

OPTIMIZERS = ("auto", "lbfgs", "adam", None)
SURVEY_AND_INFERENCE = 2


def can_stream(estimator: Any, row: Approximation) -> bool:
    """Whether the model is a sum over rows and nothing needs them again afterwards."""
    is_sum = row.family is Family.INDUCING and not row.by_block
    return is_sum and estimator.optimizer in OPTIMIZERS and estimator.window is None


def large_source(
    estimator: Any, X: Any, y: Any, *, target: str | None, noise_var: Any, sample_weight: Any
) -> Source | None:
    """The data as a source if they are too many for memory, or if only a pass over them can tell; None too for a model
    that needs its rows there."""
    if estimator.n_inducing == choosing.AUTO or not can_stream(estimator, estimator._checked_parameters()):
        return None
    source = arrivals.source_of(X, y, target=target, noise_var=noise_var, sample_weight=sample_weight)
    if source is None:
        if math.prod(getattr(X, "shape", ())) <= MOST_ENTRIES:
            return None
        features, y = split_target(X, y, target)
        source = open_source(features, y, noise_var=noise_var, sample_weight=sample_weight)
    is_small = source.n_rows is not None and source.n_rows * source.n_features <= MOST_ENTRIES
    return None if is_small else source


def fit(estimator: Any, source: Source) -> None:
    """As in memory, with the stages of learning below all rows on a random sample of them."""
    started, row = time.perf_counter(), estimator._checked_parameters()
    seed = seed_of(estimator.random_state)
    found = scan(source, np.random.default_rng((seed, 1)), max(1, MOST_ENTRIES // source.n_features))
    if found.is_complete and choosing.is_asked(estimator):
        arrivals.take_columns(estimator, source)
        estimator._fit_chosen(found.sample, started)
        estimator.n_samples_seen_ += found.n_weightless
        return
    taken = accepted(estimator, row, source, found, seed)
    if found.is_complete:
        estimator._fit_in_memory(taken)
        return
    listener = StepListener(estimator, estimator.verbose)
    with linalg.flushed_denormals():
        problem, _ = replace(taken.task, on_step=listener).arranged()
        rows = ModelRows(source, taken.units, found.n_rows, problem.rows.all.X.dtype, estimator.device)
        hyper = families.starting_hyperparameters(problem, families.select(problem))
        least = found.least_noise_var
        objective = StreamedObjective(
            rows, row, found.n_rows, found.total_weight, None if least is None else least / taken.units.y_scale**2
        )
        fitted = _infer(problem, hyper, _learn(problem, hyper, objective), rows)
    listener.close()
    estimator._store(taken, with_known_noise(fitted, found, taken.units), None)
    estimator._begin_stream(row, taken.task.block, None)
    estimator._n_fit_rows = found.n_rows


def _learn(problem: Problem, hyper: Hyperparameters, everything: StreamedObjective) -> list[LearningResult]:
    """The sizes of the schedule that the sample can give, then all rows."""
    optimizer = problem.optimizer
    if optimizer is None:
        return []
    schedule = schedule_of(problem.row, optimizer)
    sizes = schedule.stages(everything.n_rows, len(problem.rows))
    order = problem.rng.permutation(len(problem.rows))

    def objective(k: int) -> Objective:
        return everything if k == len(sizes) - 1 else _sampled(problem, order[: sizes[k]])

    if schedule.warm_up_iterations:
        choose_lengthscales(_sampled(problem, order[: sizes[0]]), hyper)
    stages = staged(objective, sizes, everything.n_rows, schedule, problem.row)
    limits = families.limits_of(problem.rows.all, problem.start.noise_var)
    return families.until_interrupted(
        lambda: climb(stages, hyper, limits, optimizer, schedule.tolerance, problem.on_step)
    )


def _sampled(problem: Problem, index: NDArray[np.int64]) -> CollapsedObjective:
    return CollapsedObjective(problem.rows.subset(torch.from_numpy(np.sort(index))), problem.row)


def _infer(problem: Problem, hyper: Hyperparameters, learning: list[LearningResult], rows: ModelRows) -> Fitted:
    """One exact pass at the learned hyper-parameters."""
    prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, problem.row)
    state, posterior, info = streamed.infer(prior, rows)
    report = families.learning_report(learning, info.jitter, info.seconds)
    evaluations = sum(stage.evaluations for stage in learning if stage.n_rows == rows.n_rows)
    report["passes"] = 2 * evaluations + SURVEY_AND_INFERENCE
    return families.fitted_model(problem, hyper, posterior, info.log_evidence, report, state)
