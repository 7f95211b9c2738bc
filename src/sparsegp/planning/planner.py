"""`plan`: what a fit will cost before it starts, as numbers, as a table for people, and with advice."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sklearn.base import clone

from sparsegp.core.approximations import Family
from sparsegp.core.dense import MOST_ROWS
from sparsegp.data import Asked
from sparsegp.errors import InputError
from sparsegp.estimators.checks import positive_count
from sparsegp.estimators.sparse import SparseGPRegressor
from sparsegp.fit.posing import is_auto
from sparsegp.fit.problem import AUTO
from sparsegp.planning.estimate import (
    CLUSTER,
    DISK,
    MEMORY,
    USABLE_MEMORY,
    Estimate,
    from_disk,
    in_memory,
    on_cluster,
)
from sparsegp.planning.machine import Machine, measured
from sparsegp.planning.shape import DataShape, ModelShape, checked_estimator, model_of, shape_of

PLACES = {MEMORY: "in memory", DISK: "from disk", CLUSTER: "on a cluster"}
GAP = "  "
NOTHING = {"0", "0 s"}
"""What costs this much everywhere has no line."""
LARGE_BLOCK = 4.0
MUCH_TALK = 0.5
_TIMES = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))
_SIZES = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"))
LONG_UNTIL = 1.5


@dataclass(frozen=True)
class Plan:
    """What a fit will cost, predicted from the operations it does and the speed of the machine; nothing was fitted.

    `estimates` has one entry for each number of machines that was asked for; `warnings` say what will not work well and
    what to do instead. `columns` says what each column is, by the first rows of a file; None where all are numbers.
    `n_features` counts the numbers that they become.
    """

    n_rows: int
    n_features: int
    approximation: str
    n_inducing: int
    n_blocks: int
    optimizer: str | None
    machine: Machine
    estimates: tuple[Estimate, ...]
    warnings: tuple[str, ...]
    columns: dict[str, str] | None = None

    @property
    def seconds(self) -> float:
        """Of the fit, on the first number of machines."""
        return self.estimates[0].seconds

    @property
    def memory_bytes(self) -> float:
        """Of one machine at the peak, libraries and data included, on the first number of machines."""
        return self.estimates[0].memory.total

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        result = asdict(self)
        result["warnings"] = list(self.warnings)
        result["estimates"] = [
            {**asdict(found), "seconds": found.seconds, "memory_bytes": found.memory.total} for found in self.estimates
        ]
        return result

    def __str__(self) -> str:
        blocks = f", {self.n_blocks:,} blocks" if self.n_blocks else ""
        inducing = "" if self.n_inducing == self.n_rows else f", {self.n_inducing:,} inducing inputs"
        title = (
            f"{self.approximation} on {self.n_rows:,} rows x {self.n_features:,} columns{inducing}{blocks} (predicted)"
        )
        kinds = [f"{GAP}{name}: {kind}" for name, kind in (self.columns or {}).items()]
        kinds = ["columns, by the first rows", *kinds] if kinds else []
        return "\n".join([title, *_aligned(self.table()), *kinds, *(f"! {warning}" for warning in self.warnings)])

    def table(self) -> list[list[str]]:
        """A line of texts for each quantity, one column for each number of machines."""
        lines: dict[str, Callable[[Estimate], str]] = {
            "machines": lambda e: f"{e.machines:,}",
            "rows are": lambda e: PLACES[e.where],
            "fit": lambda e: duration(e.seconds),
            "  prepare": lambda e: duration(e.prepare_seconds),
            "  learn": lambda e: duration(e.learning_seconds),
            "  last pass": lambda e: duration(e.inference_seconds),
            "  messages in it": lambda e: duration(e.communication_seconds),
            "predict 1,000,000 rows": lambda e: duration(e.prediction_seconds),
            "memory of a machine": lambda e: size(e.memory.total) + ("" if e.fits else " (too much)"),
            "memory of predictions": lambda e: size(e.prediction_bytes),
            "evaluations": lambda e: f"{e.evaluations:,}",
            "passes over the files": lambda e: f"{e.passes:,}",
            "rounds": lambda e: f"{e.rounds:,}",
            "from and to disk": lambda e: size(e.disk_bytes),
            "through the network": lambda e: size(e.network_bytes),
        }
        found = [[name, *map(text, self.estimates)] for name, text in lines.items()]
        return [line for line in found if set(line[1:]) - NOTHING]


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
    """Predict memory, time, passes and traffic of a fit.

    Nothing is fitted. No file is read beyond its footer, or beyond its first rows where columns are no numbers.

    Parameters
    ----------
    X : array, table or path, default=None
        The rows, or a Parquet or CSV file or folder. None needs `n_rows` and `n_features`.
    target : str, default=None
        The column of y, as in `fit`.
    features : sequence of str, default=None
        Columns to predict from. None takes all others.
    n_rows : int, default=None
        Number of rows, where X does not tell.
    n_features : int, default=None
        Number of columns, where X does not tell.
    estimator : SparseGPRegressor, default=None
        The estimator to plan for. Instead, its parameters can be given by name.
    machines : int or sequence of int, default=1
        Number of machines, or several numbers to compare.
    machine : Machine or mapping, default=None
        Constants of one machine. None measures this one, in about a second the first time.
    **parameters
        Parameters of a SparseGPRegressor, such as `approximation="pic"`.

    Returns
    -------
    Plan
        The costs. Its text is a table with warnings.

    Raises
    ------
    InputError
        If the shape of the data is not known, or a parameter cannot be used.
    """
    wanted = checked_estimator(estimator, parameters)
    asked = Asked.of(wanted.categorical, wanted.columns)
    shape = shape_of(X, target=target, features=features, n_rows=n_rows, n_features=n_features, asked=asked)
    counts = _counts(machines)
    constants = measured() if machine is None else Machine.of(machine)
    wanted = _as_chosen(wanted, shape, counts)
    model = model_of(wanted, shape)
    estimates = tuple(_on(wanted, model, shape, constants, count) for count in counts)
    return Plan(
        n_rows=shape.n_rows,
        n_features=shape.n_features,
        approximation=model.approx.name,
        n_inducing=model.n_inducing,
        n_blocks=model.n_blocks,
        optimizer=model.optimizer,
        machine=constants,
        estimates=estimates,
        warnings=_warnings_of(wanted, model, shape, constants, estimates),
        columns=shape.columns,
    )


def _as_chosen(estimator: SparseGPRegressor, shape: DataShape, counts: Sequence[int]) -> SparseGPRegressor:
    """What approximation="auto" becomes on one machine, where the number of rows decides."""
    fades = estimator.window is not None or estimator.half_life is not None
    sums = fades or estimator.optimizer == "srgp"
    if not is_auto(estimator.approximation) or sums or max(counts) > 1:
        return estimator
    options = estimator.fit_options.auto
    chosen: SparseGPRegressor = clone(estimator)
    if shape.n_rows <= options.exact_rows and isinstance(estimator.inducing, str):
        chosen.set_params(approximation="exact")
    elif estimator.n_blocks is not None:
        chosen.set_params(approximation="pic")
    else:
        block_rows = max(model_of(estimator, shape).n_inducing, options.block_rows)
        chosen.set_params(approximation="pic", n_blocks=max(1, round(shape.n_rows / block_rows)))
    return chosen


def _is_large(estimator: SparseGPRegressor, shape: DataShape) -> bool:
    return shape.n_rows * shape.n_features > estimator.fit_options.opening.most_entries


def _on(estimator: SparseGPRegressor, model: ModelShape, shape: DataShape, machine: Machine, count: int) -> Estimate:
    if count > 1:
        return on_cluster(model_of(estimator, shape, from_sample=True), shape, machine, count)
    if _is_large(estimator, shape) and estimator.can_stream(model.approx):
        return from_disk(model, shape, machine)
    return in_memory(model, shape, machine)


def _counts(machines: int | Sequence[int]) -> list[int]:
    given = [machines] if isinstance(machines, int) else list(machines)
    if not given:
        raise InputError("machines must be a number of machines or a list of such numbers; got an empty list.")
    return [positive_count("machines", count) for count in given]


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    return [
        GAP.join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in table
    ]


def _warnings_of(
    estimator: SparseGPRegressor,
    model: ModelShape,
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


def _of_choice(estimator: SparseGPRegressor, model: ModelShape, estimates: tuple[Estimate, ...]) -> Iterator[str]:
    if not is_auto(estimator.approximation) or all(e.where != MEMORY for e in estimates):
        return
    few = estimator.fit_options.auto.exact_rows
    yield (
        f"This is the cost of {model.approx.name!r}. On one machine approximation={AUTO!r} is "
        f"'exact' up to {few:,} rows and 'pic' above: name it to have its cost."
    )


def _of_model(model: ModelShape, shape: DataShape) -> Iterator[str]:
    if model.approx.family is Family.EXACT and shape.n_rows > MOST_ROWS:
        yield (
            f"approximation='exact' is refused above {MOST_ROWS:,} rows. Use 'vfe', or 'pic' where the data are rough."
        )
    if shape.is_estimated:
        yield "The number of rows is estimated from the first lines of the file; give n_rows= if you know it."


def _of_memory(model: ModelShape, machine: Machine, estimate: Estimate) -> Iterator[str]:
    if estimate.fits:
        return
    usable, have = size(USABLE_MEMORY * machine.memory_bytes), size(machine.memory_bytes)
    name = "1 machine" if estimate.machines == 1 else f"{estimate.machines:,} machines"
    need = f"On {name}, one needs about {size(estimate.memory.total)}; {usable} of its {have} can be used."
    yield f"{need} {_way_out(model, estimate)}"


def _way_out(model: ModelShape, estimate: Estimate) -> str:
    if estimate.where == CLUSTER and model.approx.is_local:
        return f"{model.approx.name!r} gathers its training rows on one machine: use 'pitc', 'fitc' or 'vfe'."
    if estimate.where == CLUSTER:
        return "Use more machines, or fewer inducing inputs."
    if estimate.where == DISK:
        return "Use fewer inducing inputs, or a path instead of an array: files are read batch by batch."
    if model.is_dense:
        return "Use approximation='vfe', whose memory does not grow with the square of the rows."
    if model.approx.by_block:
        return (
            f"{model.approx.name!r} holds all rows of an array: give the path of a file instead, whose rows are sorted "
            "into blocks on disk, or use a cluster (docs/clusters.md), 'fitc' or 'vfe'."
        )
    return "Use fewer inducing inputs, more machines (docs/clusters.md), or fewer rows."


def _of_time(estimator: SparseGPRegressor, estimate: Estimate) -> Iterator[str]:
    budget = estimator.time_budget
    if budget is not None and estimate.machines == 1 and estimate.seconds > budget:
        yield (
            f"time_budget={budget:g} s is less than the {duration(estimate.seconds)} of a whole fit: learning stops "
            "early, and the pass over the rows too if it must (docs/time-budgets.md)."
        )


def _of_cluster(model: ModelShape, estimate: Estimate) -> Iterator[str]:
    if model.approx.family is not Family.INDUCING:
        yield (
            f"{model.approx.name!r} has no additive statistics and cannot be fitted on a cluster. Use 'vfe' or 'fitc'."
        )
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


def duration(seconds: float) -> str:
    """Like 0.3 s, 12 s, 4.1 min, 2.6 h, 3.2 d."""
    for size, name in _TIMES:
        if seconds >= LONG_UNTIL * size:
            return f"{_short(seconds / size)} {name}"
    return f"{_short(seconds)} s"


def size(n_bytes: float) -> str:
    """Like 12 MB or 1.3 GB; 0 below a tenth of a megabyte."""
    for unit, name in _SIZES:
        if n_bytes >= unit:
            return f"{_short(n_bytes / unit)} {name}"
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes >= 1e5 else "0"


def _short(value: float) -> str:
    return (
        f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.1 else f"{value:.3f}".rstrip("0").rstrip(".")
    )
