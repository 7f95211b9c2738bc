"""From what a user asked for to a problem: what is "auto" follows from the rows and the time (decisions/0022)."""

import math
import time
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from sparsegp import linalg
from sparsegp.core import approximations
from sparsegp.core.approximations import Family
from sparsegp.core.block import Block, MemoryRows, Rows
from sparsegp.core.trend import Trend
from sparsegp.data.open import OpeningOptions
from sparsegp.errors import InputError
from sparsegp.fit import kernel_choice
from sparsegp.fit.budget import Budget, BudgetOptions, Clock
from sparsegp.fit.kernel_choice import KernelOptions
from sparsegp.fit.learning_options import LearningOptions
from sparsegp.fit.problem import AUTO, CalibrationOptions, Problem, Start, StepOptions
from sparsegp.fit.start import StartRows, starting_point
from sparsegp.fit.trends import TrendOptions, trend_of

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
class FitOptions:
    """The numbers that a fit works with besides the parameters of the estimator: when rows stay on disk, what "auto"
    is, how time is measured and divided, how models on the way are made, how long learning takes."""

    opening: OpeningOptions = field(default_factory=OpeningOptions)
    auto: AutoOptions = field(default_factory=AutoOptions)
    kernel: KernelOptions = field(default_factory=KernelOptions)
    budget: BudgetOptions = field(default_factory=BudgetOptions)
    steps: StepOptions = field(default_factory=StepOptions)
    calibration: CalibrationOptions = field(default_factory=CalibrationOptions)
    trend: TrendOptions = field(default_factory=TrendOptions)
    learning: LearningOptions = field(default_factory=LearningOptions)
    clock: Clock = time.perf_counter

    @property
    def kernel_choice(self) -> KernelOptions:
        """Kernels are compared with the limits of the fit."""
        return replace(self.kernel, start=self.learning.start)

    def started(self, seconds: float | None) -> Budget:
        """A budget of so many seconds from now on; None: no limit."""
        return Budget(seconds, self.clock(), self.clock, options=self.budget)

    def calibration_of(self, kind: str | None, optimizer: str | None, rows: Rows) -> CalibrationOptions | None:
        """Noise that is known, and hyper-parameters that are not learned, are those of the user: "auto" trusts them."""
        trusts = optimizer is None or rows.least_noise_var is not None
        return None if kind is None or (trusts and kind == AUTO) else replace(self.calibration, kind=kind)


def is_auto(value: Any) -> bool:
    """An approximation may also be a mapping, n_inducing any wrong value."""
    return isinstance(value, str) and value == AUTO


@dataclass(frozen=True)
class AskedStart:
    """Kernel, noise variance and trend as the user gave them, and what else a start hangs on.

    `normalize`: the rows are standardised. `judge` of kernels; None: rows left out of cells of near rows.
    `later`: a kernel is chosen once there is a first model.
    """

    kernel: Any
    noise_var: float | None
    trend: str | None
    optimizer: str | None
    normalize: bool
    judge: kernel_choice.Judge | None = None
    later: bool = False

    def settled_trend(self, block: Block, options: TrendOptions) -> Trend | None:
        """What is given stays as given: where nothing is learned, or rows are not standardised, "auto" adds nothing."""
        if is_auto(self.trend) and (self.optimizer is None or not self.normalize):
            return None
        return trend_of(self.trend, block, options)


def begun(
    asked: AskedStart, rows: StartRows, rng: np.random.Generator, options: FitOptions, budget: Budget
) -> tuple[Start, Trend | None]:
    """Where learning starts, and the trend; `kernel="auto"` is chosen here or later, from what the trend leaves."""
    trend = asked.settled_trend(rows.block, options.trend)
    rows = replace(rows, trend=trend)

    def start_of(kernel: Any, own: np.random.Generator, *, warns: bool = False) -> Start:
        return starting_point(kernel, asked.noise_var, rows, own, options.learning.start, warns=warns)

    if not is_auto(asked.kernel):
        return start_of(asked.kernel, rng, warns=asked.normalize and asked.optimizer is not None), trend
    choice = options.kernel_choice

    def chosen() -> Start:
        with linalg.flushed_denormals():
            known = budget, asked.judge, choice
            found = kernel_choice.chosen_kernel(start_of, asked.optimizer, rows.left, rng, *known)
        return replace(start_of(found.name, rng), local=found.local)

    if not asked.later:
        return chosen(), trend
    # of its own generator: watching does not change what is learned
    return replace(start_of(choice.candidates[0], deepcopy(rng)), chosen=chosen), trend


@dataclass(frozen=True)
class AskedModel:
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


def settled(problem: Problem, asked: AskedModel, rows: Rows, options: AutoOptions) -> tuple[Problem, Choice | None]:
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
    if chooses and chosen.trend is not None and isinstance(chosen.inducing, str):
        chosen = replace(chosen, smaller=_smaller(problem, asked.power, options))
    return chosen, Choice(name, n_inducing, reason)


def _smaller(problem: Problem, power: float, options: AutoOptions) -> Problem:
    """For all rows in next to no time: a sum over them, with few inducing inputs, from the values of the start."""
    small = replace(
        problem, approx=approximations.get(OF_SUMS, power), n_inducing=options.fewest_inducing, n_blocks=None
    )
    return replace(small, inducing="random", learn_inducing=False, optimizer=None, calibration=None)


def _chosen(problem: Problem, asked: AskedModel, rows: Rows, options: AutoOptions) -> tuple[str, str]:
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
    return "exact", f"{n_rows} {'row is' if n_rows == 1 else 'rows are'} few enough"


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
