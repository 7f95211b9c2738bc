"""What a person should know before the fit starts, in plain words."""

from collections.abc import Iterator

from sparsegp.approximations import Family
from sparsegp.dense import MOST_ROWS
from sparsegp.estimators.choices import choosing
from sparsegp.estimators.regressor import SparseGPRegressor
from sparsegp.planning.data_shape import DataShape
from sparsegp.planning.estimate import CLUSTER, DISK, MEMORY, USABLE_MEMORY, Estimate
from sparsegp.planning.machine import Machine
from sparsegp.planning.model import Model, model_of
from sparsegp.planning.units import duration, size

LARGE_BLOCK = 4.0
MUCH_TALK = 0.5


def warnings_of(
    estimator: SparseGPRegressor,
    model: Model,
    shape: DataShape,
    machine: Machine,
    estimates: tuple[Estimate, ...],
) -> tuple[str, ...]:
    found = [*_of_choice(estimator, model, estimates), *_of_model(model, shape)]
    for estimate in estimates:
        found += [*_of_memory(model, machine, estimate), *_of_time(estimator, estimate)]
        if estimate.where == CLUSTER:
            found += _of_cluster(model_of(estimator, shape, from_sample=True), estimate)
    return tuple(dict.fromkeys(found))


def _of_choice(estimator: SparseGPRegressor, model: Model, estimates: tuple[Estimate, ...]) -> Iterator[str]:
    if choosing.untried(estimator) is estimator.approximation or all(e.where != MEMORY for e in estimates):
        return
    limit = choosing.BUDGET_SHARE * estimator.time_budget if estimator.time_budget else choosing.LONGEST_TRIALS
    yield (
        f"This is the cost of {model.row.name!r}. With rows in memory approximation={choosing.AUTO!r} first tries "
        f"others for up to {duration(limit)} and may take a dearer one: name it to have its cost."
    )


def _of_model(model: Model, shape: DataShape) -> Iterator[str]:
    if model.row.family is Family.EXACT and shape.n_rows > MOST_ROWS:
        yield (
            f"approximation='exact' is refused above {MOST_ROWS:,} rows. Use 'vfe', or 'pic' where the data are rough."
        )
    if shape.is_estimated:
        yield "The number of rows is estimated from the first lines of the file; give n_rows= if you know it."


def _of_memory(model: Model, machine: Machine, estimate: Estimate) -> Iterator[str]:
    if estimate.fits:
        return
    usable, have = size(USABLE_MEMORY * machine.memory_bytes), size(machine.memory_bytes)
    name = "1 machine" if estimate.machines == 1 else f"{estimate.machines:,} machines"
    need = f"On {name}, one needs about {size(estimate.memory.total)}; {usable} of its {have} can be used."
    yield f"{need} {_way_out(model, estimate)}"


def _way_out(model: Model, estimate: Estimate) -> str:
    if estimate.where == CLUSTER and model.row.is_local:
        return f"{model.row.name!r} gathers its training rows on one machine: use 'pitc', 'fitc' or 'vfe'."
    if estimate.where == CLUSTER:
        return "Use more machines, or fewer inducing inputs."
    if estimate.where == DISK:
        return "Use fewer inducing inputs, or a path instead of an array: files are read batch by batch."
    if model.is_dense:
        return "Use approximation='vfe', whose memory does not grow with the square of the rows."
    if model.row.by_block:
        return (
            f"{model.row.name!r} holds all rows: sort them into blocks on disk (docs/big-files.md), use a cluster "
            "(docs/clusters.md), or 'fitc' or 'vfe', which read a file batch by batch."
        )
    return "Use fewer inducing inputs, more machines (docs/clusters.md), or fewer rows."


def _of_time(estimator: SparseGPRegressor, estimate: Estimate) -> Iterator[str]:
    budget = estimator.time_budget
    if budget is not None and estimate.machines == 1 and estimate.seconds > budget:
        yield (
            f"time_budget={budget:g} s is less than the {duration(estimate.seconds)} of a whole fit: learning stops "
            "early, and the pass over the rows too if it must (docs/time-budgets.md)."
        )


def _of_cluster(model: Model, estimate: Estimate) -> Iterator[str]:
    if model.row.family is not Family.INDUCING:
        yield f"{model.row.name!r} has no additive statistics and cannot be fitted on a cluster. Use 'vfe' or 'fitc'."
    if estimate.communication_seconds > MUCH_TALK * (estimate.learning_seconds + estimate.inference_seconds):
        yield (
            f"On {estimate.machines:,} machines, {duration(estimate.communication_seconds)} of the "
            f"{duration(estimate.seconds)} are messages of M x M numbers through the scheduler: fewer machines or "
            "fewer inducing inputs would do as well."
        )
    if model.block_rows > LARGE_BLOCK * model.n_inducing:
        yield (
            f"Blocks are found from a sample, so there are {model.n_blocks:,} of about {model.block_rows:,.0f} rows, "
            "and the cost of a row grows with the size of its block. Use 'fitc' or 'vfe'."
        )
