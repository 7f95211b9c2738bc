"""`fit` on a cluster: the estimator ends as after a fit on one machine, with no dask inside."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from sparsegp import linalg
from sparsegp.approximations import Approximation, Family
from sparsegp.data import Rows
from sparsegp.distributed.checkpoint import Checkpoint, task_name
from sparsegp.distributed.connecting import connected
from sparsegp.distributed.learning import Resumption, learn
from sparsegp.distributed.messages import Model
from sparsegp.distributed.placing import in_blocks
from sparsegp.distributed.rows import DistributedRows
from sparsegp.distributed.shares import surveyed
from sparsegp.engines.batch import BatchState
from sparsegp.errors import InputError
from sparsegp.estimators import families
from sparsegp.estimators.families import Fitted, Problem, Start
from sparsegp.estimators.progress import StepListener
from sparsegp.estimators.regressor import DTYPES, SparseGPRegressor
from sparsegp.estimators.standardizer import Standardizer
from sparsegp.estimators.tasks import Accepted
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.recorder import LearningResult
from sparsegp.local_posterior import make_posterior
from sparsegp.posterior import InducingPosterior, log_evidence
from sparsegp.prior import SparsePrior
from sparsegp.sources import Source, Survey, open_source

OPTIMIZERS = ("lbfgs", "adam", None)


@dataclass(frozen=True)
class Outcome:
    """What was learned from which rows; `kept` are those of a local model, which predicts from them."""

    problem: Problem
    hyper: Hyperparameters
    learning: list[LearningResult]
    rows: DistributedRows
    kept: Rows


def fit(
    estimator: SparseGPRegressor,
    X: Any,
    y: Any = None,
    *,
    client: Any,
    noise_var: Any = None,
    sample_weight: Any = None,
    target: str | None = None,
    checkpoint: str | Path | None = None,
) -> SparseGPRegressor:
    """Fit on the workers of `client`: a Dask client, a cluster, or the address of a scheduler.

    Data as for `sparsegp.sources.open_source`; files are read by the workers. `checkpoint` is a file for the state of
    learning: the same call after the driver was killed goes on from there. It is removed at the end.
    """
    started = time.perf_counter()
    row = _checked(estimator)
    source = open_source(X, y, target=target, noise_var=noise_var, sample_weight=sample_weight)
    file = None if checkpoint is None else Checkpoint(Path(checkpoint))
    seed = int(check_random_state(estimator.random_state).randint(2**31))
    seed = seed if file is None else file.seed(seed)
    with connected(client) as cluster, linalg.flushed_denormals():
        _fit_on(cluster, estimator, row, source, seed, file)
    if file is not None:
        file.remove()
    estimator.info_["seconds"] = time.perf_counter() - started
    return estimator


def _checked(estimator: SparseGPRegressor) -> Approximation:
    row = estimator._checked_parameters()
    refused = {
        f"approximation={row.name!r}, which has no additive statistics": row.family is not Family.INDUCING,
        f"optimizer={estimator.optimizer!r}": estimator.optimizer not in OPTIMIZERS,
        f"inference={estimator.inference!r}": estimator.inference != "exact",
        "time_budget": estimator.time_budget is not None,
        "window": estimator.window is not None,
        f"device={estimator.device!r}": estimator.device != "cpu",
    }
    for what, is_given in refused.items():
        if is_given:
            raise InputError(f"A fit on a cluster cannot do with {what}. Leave it out, or fit without client=.")
    return row


def _fit_on(
    client: Any,
    estimator: SparseGPRegressor,
    row: Approximation,
    source: Source,
    seed: int,
    file: Checkpoint | None,
) -> None:
    accepted, survey, rows = _loaded(client, estimator, row, source, seed)
    listener = StepListener(estimator, estimator.verbose)
    task = replace(accepted.task, on_step=listener)
    task = task.scouted() if task.scouts else task
    problem, blocking = task.arranged()
    rows = rows if blocking is None else in_blocks(rows, blocking)
    hyper = families.starting_hyperparameters(problem, families.select(problem))
    resumption = None
    if file is not None:
        name = _name(estimator, survey)
        resumption = Resumption(file, name, seed, file.read(name))
    learning = learn(problem, rows, hyper, seed, resumption)
    listener.close()
    kept = rows.gather() if row.is_local else problem.rows
    fitted = _infer(Outcome(problem, hyper, learning, rows, kept), survey, accepted.units)
    estimator._store(accepted, fitted, blocking)
    estimator._begin_stream(row, kept.all, None)
    estimator._n_fit_rows = len(rows)


def _loaded(
    client: Any, estimator: SparseGPRegressor, row: Approximation, source: Source, seed: int
) -> tuple[Accepted, Survey, DistributedRows]:
    """Two passes over the source; afterwards only the rows in the model's units are held on the workers."""
    shares = surveyed(client, source, seed)
    accepted = _accepted(estimator, row, shares.survey, source.feature_names, seed)
    return accepted, shares.survey, shares.load(accepted.units, DTYPES[estimator.dtype])


def _accepted(
    estimator: SparseGPRegressor,
    row: Approximation,
    survey: Survey,
    names: tuple[str, ...] | None,
    seed: int,
) -> Accepted:
    """What `SparseGPRegressor` makes of its arguments, from the sample; units and counts are those of all rows."""
    sample, rng = survey.sample, np.random.default_rng(seed)
    estimator._checked_data(sample.X, sample.y)
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    units = _units(estimator, survey)
    block = estimator._block_in(units, sample.X, sample.y, sample.noise_var, sample.weight)
    start = Start(*estimator._starting_values(units, block, rng))
    task = estimator._task(row, units, block, None, start, rng)
    n_blocks = estimator.n_blocks or max(1, round(survey.n_rows / estimator.n_inducing))
    return Accepted(replace(task, n_blocks=n_blocks), units, survey.n_rows + survey.n_weightless)


def _units(estimator: SparseGPRegressor, survey: Survey) -> Standardizer:
    if survey.is_complete or not estimator.normalize:
        return estimator._make_standardizer(survey.sample.X, survey.sample.y, survey.sample.weight)
    return Standardizer(survey.x_mean, survey.x_scale, survey.y_mean, survey.y_scale)


def _name(estimator: SparseGPRegressor, survey: Survey) -> str:
    """Of a task: its data, as far as their moments tell, and its parameters."""
    moments = [*survey.x_mean, *survey.x_scale, survey.y_mean, survey.y_scale]
    # Sums in another order differ in the last digits; the seed is the checkpoint's own.
    digits = [f"{moment:.8g}" for moment in moments]
    given = estimator.get_params(deep=False).items()
    parameters = {name: value for name, value in given if name not in ("random_state", "verbose")}
    return task_name(survey.n_rows, digits, parameters)


def _infer(outcome: Outcome, survey: Survey, units: Standardizer) -> Fitted:
    """One exact pass at the learned hyper-parameters."""
    started = time.perf_counter()
    problem, hyper, rows = outcome.problem, outcome.hyper, outcome.rows
    prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, problem.row)
    statistics = rows.statistics(Model(hyper, problem.row, prior.Luu.jitter))
    q = InducingPosterior.from_statistics(statistics)
    posterior = make_posterior(prior, q, outcome.kept)
    report = families.learning_report(outcome.learning, prior.Luu.jitter, time.perf_counter() - started)
    traffic = rows.traffic
    report["cluster"] = {
        "workers": len(rows.shares),
        "rounds": traffic.rounds,
        "bytes_through_scheduler": traffic.total,
        "bytes_per_evaluation": round(2 * traffic.total / traffic.rounds),
    }
    evidence, state = log_evidence(statistics, q), BatchState(prior, statistics)
    fitted = families.fitted_model(problem, hyper, posterior, evidence, report, state)
    known = survey.mean_noise_var
    return fitted if known is None else replace(fitted, noise_var=known / units.y_scale**2)
