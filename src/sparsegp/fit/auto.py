"""`approximation="auto"` and `n_inducing="auto"`: what follows from the rows and the time (decisions/0022)."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparsegp.core import approximations
from sparsegp.core.approximations import Family
from sparsegp.core.block import MemoryRows, Rows
from sparsegp.errors import InputError
from sparsegp.fit.problem import AUTO, Problem

OF_SUMS = "vfe"
"""What "auto" is where rows come in batches or a fit goes in steps."""


@dataclass(frozen=True)
class AutoOptions:
    """Up to `exact_rows` rows have the exact model. `block_rows` of "pic" are better than blocks as small as
    `n_inducing` on kin40k and pol, the two sets tried. Learning visits about `row_visits` rows, each with the work of
    M^2 numbers, in `learning_fraction` of the time."""

    exact_rows: int = 1500
    most_inducing: int = 512
    fewest_inducing: int = 32
    rows_per_inducing: int = 8
    block_rows: int = 800
    row_visits: float = 4e6
    visits_per_second: float = 8e4
    learning_fraction: float = 0.88


@dataclass(frozen=True)
class Asked:
    """What the user said of approximation and size: `n_inducing` None: to be chosen.

    `fades`: rows leave by themselves, by a window or a half-life. `sums`: rows come in batches or the fit goes in
    steps, and "auto" is a sum over rows, which needs none of them twice.
    """

    approximation: Any
    power: float
    n_inducing: int | None
    time_budget: float | None
    fades: bool = False
    sums: bool = False


@dataclass(frozen=True)
class Choice:
    """What was chosen, and why in words."""

    approximation: Any
    n_inducing: int
    reason: str

    def report(self) -> dict[str, Any]:
        return asdict(self)


def is_auto(value: Any) -> bool:
    """An approximation may also be a mapping, n_inducing any wrong value."""
    return isinstance(value, str) and value == AUTO


def settled(problem: Problem, asked: Asked, rows: Rows, options: AutoOptions) -> tuple[Problem, Choice | None]:
    """The problem with its approximation and size, and the choice where something was left to choose."""
    chooses = is_auto(asked.approximation)
    if not chooses and asked.n_inducing is not None:
        return problem, None
    if chooses and problem.labels is not None and not asked.sums:
        raise InputError("blocks= goes with approximation='pitc', 'pic' or 'block-pep', not with 'auto'.")
    n_rows, budget = len(rows), asked.time_budget
    n_inducing = asked.n_inducing or _n_inducing(n_rows, budget, options)
    name, reason = asked.approximation, _size_reason(n_inducing, n_rows, budget)
    if chooses:
        name, why = _chosen(problem, asked, rows, options)
        reason = f"{name}: {why}"
    chosen = _of_approximation(problem, name, asked.power, n_inducing, n_rows, options)
    return chosen, Choice(name, n_inducing, reason)


def _chosen(problem: Problem, asked: Asked, rows: Rows, options: AutoOptions) -> tuple[str, str]:
    """The name, and why. Few rows in memory are fitted exactly, unless the user has chosen inducing inputs."""
    n_rows = len(rows)
    if asked.sums:
        return OF_SUMS, "rows that come in batches or steps are added up, and none is held twice"
    if asked.fades:
        return "vfe", "rows that fade leave a sum over rows, and no blocks of them"
    if problem.optimizer == "srgp":
        return "vfe", "optimizer='srgp' learns from single rows, not from blocks of them"
    if n_rows > options.exact_rows or not isinstance(rows, MemoryRows):
        return "pic", f"{n_rows:,} rows are too many for the exact model, and neighbours tell more than inducing inputs"
    if not isinstance(problem.inducing, str):
        return "pic", "the exact model has no inducing inputs, and some were given"
    return "exact", f"{n_rows} rows are few enough"


def _of_approximation(
    problem: Problem, name: Any, power: float, n_inducing: int, n_rows: int, options: AutoOptions
) -> Problem:
    approx, n_blocks = approximations.get(name, power), problem.n_blocks
    if approx.family is Family.EXACT:
        # PIC with one block, whatever its inducing input: the same model, which takes rows in and gives them back
        return replace(problem, approx=approximations.get("pic"), n_blocks=1, n_inducing=1, learn_inducing=False)
    if approx.is_local and n_blocks is None:
        n_blocks = max(1, round(n_rows / max(n_inducing, options.block_rows)))
    return replace(problem, approx=approx, n_inducing=n_inducing, n_blocks=n_blocks)


def _n_inducing(n_rows: int, budget: float | None, options: AutoOptions) -> int:
    """As many as the rows can determine and, with a budget, as leave learning enough visits of them."""
    most = min(options.most_inducing, max(options.fewest_inducing, n_rows // options.rows_per_inducing))
    if budget is None:
        return most
    wanted = min(options.row_visits, 100.0 * n_rows)
    affordable = options.learning_fraction * budget * options.visits_per_second
    return int(min(most, max(options.fewest_inducing, options.most_inducing * math.sqrt(affordable / wanted))))


def _size_reason(n_inducing: int, n_rows: int, budget: float | None) -> str:
    within = "" if budget is None else f" and a time_budget of {budget:g} s"
    return f"{n_inducing} inducing inputs suit {n_rows:,} rows{within}"
