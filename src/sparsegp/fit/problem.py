"""A regression problem in the scaling of the model: every choice the user made, and nothing about where rows are."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sparsegp.committee.aggregation import Aggregation
from sparsegp.core.approximations import Approximation
from sparsegp.core.trend import Trend
from sparsegp.infer.anytime import Reading
from sparsegp.kernels import Kernel
from sparsegp.learn.schedules import StageKeeper
from sparsegp.learn.trace import LearningResult, StepCallback
from sparsegp.parallel import Executor, Threads

INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Start:
    """Kernel and noise to learn from, and the record of how they were found.

    `least_noise_var` is what learned noise may not fall below.
    """

    kernel: Kernel
    noise_var: float
    stages: tuple[LearningResult, ...] = ()
    least_noise_var: float = 0.0

    @property
    def stopped(self) -> bool:
        """Whether the caller asked to stop."""
        return bool(self.stages) and self.stages[-1].stopped

    def going_on(self) -> "Start":
        """The same, with nobody having asked to stop; an interrupt stays one."""
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
    The other numbers say how large a first model and the models in between are, and how time is divided.
    """

    exact_pass: bool = True
    reading: Reading = Reading.RATIO
    stop_error: float | None = None
    watched: bool = False
    first_rows: int = 4096
    sketch_rows: int = 8192
    publish_ratio: float = 1.3
    dense_fraction: float = 0.7
    subset_fraction: float = 0.7
    enough_evaluations: int = 20
    most_block_rows: int = 1024
    fewest_block_rows: int = 64
    usual_steps: int = 32
    n_probes: int = 64
    probed_blocks: int = 8


@dataclass(frozen=True)
class Problem:
    """What is to be fitted. `n_blocks` None: about `n_inducing` rows a block; `labels`: the user's own blocks.

    `trend`: what f has besides the kernel. `noise`: learn how the noise varies. `committee`: many experts instead of
    one model. `window`: the model will forget all but the last rows. `checkpoint` keeps how far learning has come.
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
    on_step: StepCallback | None = None
    checkpoint: StageKeeper | None = None

    @property
    def starts_locally(self) -> bool:
        """Whether kernel and noise are learned from neighbourhoods before there are blocks."""
        return self.approx.by_block and self.optimizer is not None

    def wanted_blocks(self, n_rows: int) -> int:
        return self.n_blocks or max(1, round(n_rows / self.n_inducing))
