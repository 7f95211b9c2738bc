"""`plan`: what a fit will cost, before it starts."""

from collections.abc import Mapping, Sequence
from typing import Any

from sparsegp.errors import InputError
from sparsegp.estimators.incoming import out_of_core
from sparsegp.estimators.incoming.validation import positive_count
from sparsegp.estimators.regressor import SparseGPRegressor
from sparsegp.planning import estimate
from sparsegp.planning.advice import warnings_of
from sparsegp.planning.calibration import measured
from sparsegp.planning.data_shape import DataShape, shape_of
from sparsegp.planning.estimate import Estimate
from sparsegp.planning.machine import Machine
from sparsegp.planning.model import Model, checked_estimator, model_of
from sparsegp.planning.plan_result import Plan


def plan(
    X: Any = None,
    *,
    target: str | None = None,
    features: Sequence[str] | None = None,
    n_rows: int | None = None,
    n_features: int | None = None,
    estimator: SparseGPRegressor | None = None,
    machines: int | Sequence[int] = 1,
    machine: Machine | Mapping[str, float] | None = None,
    **parameters: Any,
) -> Plan:
    """Predict memory, time, passes and traffic of a fit; nothing is fitted and no file is read beyond its footer.

    Parameters
    ----------
    X : array, table, path of a Parquet or CSV file or folder; or None with `n_rows` and `n_features`.
    target, features : columns, as for `fit`.
    estimator : a SparseGPRegressor; or its parameters by name, such as `approximation="pic", n_inducing=256`.
    machines : number of machines, or several numbers to compare.
    machine : constants of one machine (`sparsegp.planning.Machine` or the mapping of its fields). Default: this one,
        measured in about a second the first time.
    """
    wanted = checked_estimator(estimator, parameters)
    shape = shape_of(X, target=target, features=features, n_rows=n_rows, n_features=n_features)
    counts = _counts(machines)
    constants = measured() if machine is None else Machine.of(machine)
    model = model_of(wanted, shape)
    estimates = tuple(_on(wanted, model, shape, constants, count) for count in counts)
    return Plan(
        n_rows=shape.n_rows,
        n_features=shape.n_features,
        approximation=model.row.name,
        n_inducing=model.n_inducing,
        n_blocks=model.n_blocks,
        optimizer=model.optimizer,
        machine=constants,
        estimates=estimates,
        warnings=warnings_of(wanted, model, shape, constants, estimates),
    )


def _on(estimator: SparseGPRegressor, model: Model, shape: DataShape, machine: Machine, count: int) -> Estimate:
    if count > 1:
        return estimate.on_cluster(model_of(estimator, shape, from_sample=True), shape, machine, count)
    is_large = shape.n_rows * shape.n_features > out_of_core.MOST_ENTRIES
    if is_large and out_of_core.can_stream(estimator, model.row):
        return estimate.from_disk(model, shape, machine)
    return estimate.in_memory(model, shape, machine)


def _counts(machines: int | Sequence[int]) -> list[int]:
    given = [machines] if isinstance(machines, int) else list(machines)
    if not given:
        raise InputError("machines must be a number of machines or a list of such numbers; got an empty list.")
    return [positive_count("machines", count) for count in given]
