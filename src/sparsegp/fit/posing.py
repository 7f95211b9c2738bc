"""From what a user asked for to a problem: where learning starts, from which trend, and what calibration looks at.

What is "auto" is settled from the rows; `fit/auto.py` settles approximation and size.
"""

import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sparsegp import linalg
from sparsegp.core.block import Block, Rows
from sparsegp.core.trend import Trend, detrended
from sparsegp.data.open import OpeningOptions
from sparsegp.fit import kernel_choice
from sparsegp.fit.auto import AutoOptions, is_auto
from sparsegp.fit.budget import Budget, BudgetOptions, Clock
from sparsegp.fit.kernel_choice import KernelOptions
from sparsegp.fit.learning_options import LearningOptions
from sparsegp.fit.problem import AUTO, CalibrationOptions, Start, StepOptions
from sparsegp.fit.scaling import Scaling
from sparsegp.fit.start import starting_point
from sparsegp.fit.trends import TrendOptions, trend_of


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
    time_budget: float | None
    judge: kernel_choice.Judge | None = None
    later: bool = False

    def settled_trend(self, block: Block, options: TrendOptions) -> Trend | None:
        """What is given stays as given: where nothing is learned, or rows are not standardised, "auto" adds nothing."""
        if is_auto(self.trend) and (self.optimizer is None or not self.normalize):
            return None
        return trend_of(self.trend, block, options)


def begun(
    asked: AskedStart,
    block: Block,
    scaling: Scaling,
    groups: Sequence[int] | None,
    rng: np.random.Generator,
    options: FitOptions,
) -> tuple[Start, Trend | None]:
    """Where learning starts, and the trend; `kernel="auto"` is chosen here or later, from what the trend leaves."""
    trend = asked.settled_trend(block, options.trend)

    def start_of(kernel: Any, own: np.random.Generator, *, warns: bool = False) -> Start:
        given = kernel, asked.noise_var, scaling, block, own, options.learning.start
        return starting_point(*given, warns=warns, trend=trend, groups=groups)

    if not is_auto(asked.kernel):
        return start_of(asked.kernel, rng, warns=asked.normalize and asked.optimizer is not None), trend
    choice = options.kernel_choice

    def chosen() -> Start:
        with linalg.flushed_denormals():
            left, known = detrended(block, trend), (asked.time_budget, asked.judge, choice)
            found = kernel_choice.chosen_kernel(start_of, asked.optimizer, left, rng, *known)
        return replace(start_of(found.name, rng), local=found.local)

    if not asked.later:
        return chosen(), trend
    # of its own generator: watching does not change what is learned
    return replace(start_of(choice.candidates[0], deepcopy(rng)), chosen=chosen), trend
