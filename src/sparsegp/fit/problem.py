"""A regression problem in the scaling of the model: every choice the user made, and nothing about where rows are."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp.calibration.shape_learning import ShapeOptions
from sparsegp.calibration.trees import TreeOptions
from sparsegp.committee.aggregation import Aggregation
from sparsegp.core import inducing
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block, Rows
from sparsegp.core.reasons import INTERRUPTED
from sparsegp.core.trend import Trend
from sparsegp.fit.learning_options import LearningOptions
from sparsegp.infer.anytime import Reading
from sparsegp.kernels import Kernel
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.schedules import StageKeeper
from sparsegp.learn.trace import LearningResult, StepCallback
from sparsegp.parallel import Executor, Threads

AUTO, SHAPE, SCALE = "auto", "shape", "scale"
CALIBRATIONS = (AUTO, SHAPE, SCALE, None)


@dataclass(frozen=True)
class Start:
    """Kernel and noise to learn from, and the record of how they were found.

    `least_noise_var` is what learned noise may not fall below. `local` has the same kernel with values that suit
    neighbourhoods, where the choice of the kernel has learned them already. `chosen` makes that choice where somebody
    waits for a first model, which comes before it.
    """

    kernel: Kernel
    noise_var: float
    stages: tuple[LearningResult, ...] = ()
    least_noise_var: float = 0.0
    local: "Start | None" = None
    chosen: Callable[[], "Start"] | None = None

    @property
    def stopped(self) -> bool:
        """Whether the caller asked to stop."""
        return bool(self.stages) and self.stages[-1].stopped

    def going_on(self) -> "Start":
        """The same without a request to stop; an interrupt stays one."""
        stages = (s if s.reason == INTERRUPTED else replace(s, stopped=False) for s in self.stages)
        return replace(self, stages=tuple(stages))


@dataclass(frozen=True)
class NoiseSpec:
    """Noise that is learned as a process g of its own (001): its kernel, inducing inputs and mean (None: from the
    data), and how its posterior is found: "exact" or "stochastic", with `batch_size` rows in each of `n_steps`."""

    kernel: Kernel
    n_inducing: int
    inducing: Any = "kmeans"
    mean: float | None = None
    inference: str = "exact"
    batch_size: int = 1024
    n_steps: int = 2000


@dataclass(frozen=True)
class CommitteeSpec:
    """Experts on disjoint rows, all with the problem's approximation, and how their answers become one.

    `partition`: "kmeans" or "random", unless the problem has labels. `tolerance`: what experts that are not asked may
    change; `most_asked`: how many are asked about a row. `n_jobs` is for predictions, `executor` for the fit.
    """

    aggregation: Aggregation
    n_experts: int
    partition: str = "kmeans"
    tolerance: float = 1e-6
    most_asked: int | None = None
    n_jobs: int | None = None
    executor: Executor = field(default_factory=Threads)


@dataclass(frozen=True)
class StepOptions:
    """How a fit goes on in steps.

    `exact_pass`: inference in one pass where the time allows. `watched`: somebody looks at the models in between.
    `few_rows` have no local start of their own where the choice of a kernel has learned one. The other numbers say how
    large a first model and the models in between are, and how time is divided.
    """

    exact_pass: bool = True
    reading: Reading = Reading.RATIO
    stop_error: float | None = None
    watched: bool = False
    few_rows: int = 2000
    first_rows: int = 4096
    sketch_rows: int = 8192
    publish_ratio: float = 1.3
    dense_fraction: float = 0.7
    enough_evaluations: int = 20
    most_block_rows: int = 1024
    fewest_block_rows: int = 64
    usual_steps: int = 32
    n_probes: int = 64
    probed_blocks: int = 8


@dataclass(frozen=True)
class CalibrationOptions:
    """What is learned ("auto", "shape" or "scale"), and from how many rows.

    At least `fewest_to_hold_out` rows are needed to hold `held_out_fraction` of them out. The local scale is of |z|
    plus `offset` of its median, of at most `scale_rows` rows left out of the fit in closed form. One of the `strengths`
    of the local scale is chosen on the rows held out. Residuals count as if they were not `farthest` out, or
    `farthest_for_scale`. `budget_fraction` of a time budget is for all of it. Local models predict the rows held out
    of `blocks_at_once`, for `residuals_fraction` of that time, and at least `fewest_residuals` rows of `fewest_blocks`:
    those of a few blocks do not speak for all. In a stream a residual counts half after `half_life` more rows.
    """

    kind: str = AUTO
    fewest_to_hold_out: int = 1_000
    held_out_fraction: float = 0.15
    most_held_out: int = 20_000
    fewest_for_scale: int = 1_000
    scale_rows: int = 30_000
    fraction_for_scale: float = 0.6
    offset: float = 0.01
    strengths: tuple[float, ...] = (0.5, 0.75, 1.0, 1.25, 1.5)
    farthest: float = 50.0
    farthest_for_scale: float = 10.0
    budget_fraction: float = 0.3
    residuals_fraction: float = 0.4
    blocks_at_once: int = 8
    fewest_residuals: int = 1_000
    fewest_blocks: int = 48
    half_life: float = 500.0
    trees: TreeOptions = field(default_factory=TreeOptions)
    shape: ShapeOptions = field(default_factory=ShapeOptions)


@dataclass(frozen=True)
class Problem:
    """What is to be fitted. `n_blocks` None: about `n_inducing` rows a block; `labels`: the user's own blocks.

    `trend`: what f has besides the kernel. `noise`: learn how the noise varies. `committee`: many experts instead of
    one model. `window`: the model will forget all but the last rows. `checkpoint` keeps how far learning has come.
    `calibration`: from rows left out. `smaller`: what all rows have if a part of them, which is all that there was time
    for, is behind a plane.
    """

    approx: Approximation
    start: Start
    inducing: Any
    n_inducing: int
    rng: np.random.Generator
    n_blocks: int | None = None
    labels: ArrayLike | None = None
    learn_inducing: bool = True
    optimizer: str | None = "auto"
    clip_variances: bool = False
    window: int | None = None
    trend: Trend | None = None
    noise: NoiseSpec | None = None
    committee: CommitteeSpec | None = None
    steps: StepOptions = field(default_factory=StepOptions)
    learning: LearningOptions = field(default_factory=LearningOptions)
    on_step: StepCallback | None = None
    checkpoint: StageKeeper | None = None
    calibration: CalibrationOptions | None = None
    smaller: "Problem | None" = None

    @property
    def starts_locally(self) -> bool:
        """Whether kernel and noise are learned from neighbourhoods before there are blocks."""
        return self.approx.by_block and self.optimizer is not None

    def settled(self) -> "Problem":
        """The same, with the start that was still to be chosen."""
        return self if self.start.chosen is None else replace(self, start=self.start.chosen())

    def wanted_blocks(self, n_rows: int) -> int:
        return self.n_blocks or max(1, round(n_rows / self.n_inducing))

    def select_inducing(self, block: Block, rng: np.random.Generator) -> Tensor:
        X, kernel = block.X.to(torch.float64), self.start.kernel
        return inducing.select_inducing(self.inducing, kernel, X, self.n_inducing, rng, block.weight)

    def hyperparameters(self, rows: Rows, chosen: Tensor, *, learn_inducing: bool = True) -> Hyperparameters:
        """To start from. With as many inducing inputs as rows the approximation is exact: moving them gains nothing."""
        worthwhile = learn_inducing and self.learn_inducing and chosen.shape[0] < len(rows)
        learned = {"learn_noise": rows.least_noise_var is None, "learn_inducing": worthwhile}
        return Hyperparameters(self.start.kernel, self.start.noise_var, chosen, **learned, trend=self.trend)
