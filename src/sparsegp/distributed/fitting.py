"""`fit` on a cluster: the estimator ends as after a fit on one machine, with no dask inside."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from sparsegp import linalg
from sparsegp.approximations import Approximation, Family
from sparsegp.data import Rows
from sparsegp.distributed.checkpoint import Checkpoint, task_name
from sparsegp.distributed.connecting import connected
from sparsegp.distributed.inference import Outcome, infer
from sparsegp.distributed.learning import Resumption, learn
from sparsegp.distributed.placing import in_blocks
from sparsegp.distributed.rows import DistributedRows
from sparsegp.distributed.shares import surveyed
from sparsegp.errors import InputError
from sparsegp.estimators import families
from sparsegp.estimators.incoming.surveyed import accepted, with_known_noise
from sparsegp.estimators.incoming.validation import seed_of
from sparsegp.estimators.progress import StepListener
from sparsegp.estimators.regressor import DTYPES, SparseGPRegressor
from sparsegp.estimators.stepping.anytime import READINGS, progress_of
from sparsegp.estimators.stepping.anytime_inference import Plan
from sparsegp.estimators.stepping.budget import Budget, now
from sparsegp.estimators.stepping.sketches import Published
from sparsegp.estimators.tasks import Accepted
from sparsegp.learning.deadline import Deadline
from sparsegp.sources import Scan, Source, open_source

OPTIMIZERS = ("auto", "lbfgs", "adam", None)
LEARNING_SHARE = 0.5
"""Of a time budget; the rest is for blocks."""


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
    budget = Budget(estimator.time_budget, now())
    row = _checked(estimator)
    source = open_source(X, y, target=target, noise_var=noise_var, sample_weight=sample_weight)
    file = None if checkpoint is None else Checkpoint(Path(checkpoint))
    seed = seed_of(estimator.random_state)
    seed = seed if file is None else file.seed(seed)
    with connected(client) as cluster, linalg.flushed_denormals():
        _fit_on(cluster, estimator, row, source, seed, file, budget)
    if file is not None:
        file.remove()
    estimator.info_["seconds"] = budget.used
    return estimator


def can_fit(estimator: SparseGPRegressor) -> bool:
    """Whether a cluster can fit this model; anything that is wrong with its parameters is an error."""
    return not _refused(estimator, estimator._checked_parameters())


def _checked(estimator: SparseGPRegressor) -> Approximation:
    row = estimator._checked_parameters()
    for what in _refused(estimator, row):
        raise InputError(f"A fit on a cluster cannot do with {what}. Leave it out, or fit without client=.")
    return row


def _refused(estimator: SparseGPRegressor, row: Approximation) -> list[str]:
    """The parameters that only one machine can do with."""
    is_timed = estimator.time_budget is not None
    refused = {
        f"approximation={row.name!r}, which has no additive statistics": row.family is not Family.INDUCING,
        f"optimizer={estimator.optimizer!r}": estimator.optimizer not in OPTIMIZERS,
        "time_budget and inference='exact' ('anytime' can)": is_timed and estimator.inference == "exact",
        "window": estimator.window is not None,
        f"device={estimator.device!r}": estimator.device != "cpu",
    }
    return [what for what, is_given in refused.items() if is_given]


def _fit_on(
    client: Any,
    estimator: SparseGPRegressor,
    row: Approximation,
    source: Source,
    seed: int,
    file: Checkpoint | None,
    budget: Budget,
) -> None:
    taken, survey, rows = _loaded(client, estimator, row, source, seed)
    listener = StepListener(estimator, estimator.verbose)
    until = budget.used + LEARNING_SHARE * budget.remaining
    task = replace(taken.task, on_step=lambda step: listener(step) or budget.used > until)
    task = task.scouted() if task.scouts else task
    problem, blocking = task.arranged()
    problem = replace(problem, deadline=Deadline(budget.started + until) if budget.limited else None)
    rows = rows if blocking is None else in_blocks(rows, blocking)
    hyper = families.starting_hyperparameters(problem, families.select(problem))
    resumption = None
    if file is not None:
        name = _name(estimator, survey)
        resumption = Resumption(file, name, seed, file.read(name))
    learning = learn(problem, rows, hyper, seed, resumption)
    listener.close()
    kept = rows.gather() if row.is_local else problem.rows
    plan = Plan(estimator.inference == "exact", READINGS[estimator.reading], estimator.stop_error, watched=False)
    model = infer(Outcome(problem, hyper, learning, rows, kept, blocking), plan, budget, seed)
    model = replace(model, fitted=with_known_noise(model.fitted, survey, taken.units))
    _store(estimator, taken, model, len(rows), kept)
    if not plan.exact_pass:
        estimator._report(budget, progress_of(model, budget.used, {}))


def _store(estimator: SparseGPRegressor, taken: Accepted, model: Published, n_rows: int, kept: Rows) -> None:
    estimator._store(taken, model.fitted, model.blocking)
    if model.is_exact:
        estimator._begin_stream(taken.task.row, kept.all, None)
        estimator._n_fit_rows = n_rows
    else:
        estimator.__dict__.update(n_samples_seen_=round(model.fraction * taken.n_rows), _fit_rows=None)


def _loaded(
    client: Any, estimator: SparseGPRegressor, row: Approximation, source: Source, seed: int
) -> tuple[Accepted, Scan, DistributedRows]:
    """Two passes over the source; afterwards only the rows in the model's units are held on the workers."""
    shares = surveyed(client, source, seed)
    taken = accepted(estimator, row, source, shares.survey, seed)
    return taken, shares.survey, shares.load(taken.units, DTYPES[estimator.dtype])


def _name(estimator: SparseGPRegressor, survey: Scan) -> str:
    """Of a task: its data, as far as their moments tell, and its parameters."""
    moments = [*survey.x_mean, *survey.x_scale, survey.y_mean, survey.y_scale]
    # Sums in another order differ in the last digits; the seed is the checkpoint's own.
    digits = [f"{moment:.8g}" for moment in moments]
    given = estimator.get_params(deep=False).items()
    parameters = {name: value for name, value in given if name not in ("random_state", "verbose")}
    return task_name(survey.n_rows, digits, parameters)
