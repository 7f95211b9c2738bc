"""The numbers that a fit works with besides the parameters of the estimator, in one place."""

import time
from dataclasses import dataclass, field, replace

from sparsegp.estimators.opening import OpeningOptions
from sparsegp.fit.auto import AutoOptions
from sparsegp.fit.budget import Budget, BudgetOptions, Clock
from sparsegp.fit.kernel_choice import KernelOptions
from sparsegp.fit.learning_options import LearningOptions
from sparsegp.fit.problem import CalibrationOptions, StepOptions
from sparsegp.fit.trends import TrendOptions


@dataclass(frozen=True)
class FitOptions:
    """When rows stay on disk, what "auto" tries, how time is measured and divided, how models on the way are made, how
    long learning takes."""

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
