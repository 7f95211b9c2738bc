"""The numbers that learning works with: schedules, starts, limits."""

from dataclasses import dataclass, field, replace

import torch

from sparsegp.committee import shared_learning
from sparsegp.core.block import Block
from sparsegp.learn.hyperparameters import Limits
from sparsegp.learn.neighbourhoods import Rounds
from sparsegp.learn.schedules import Schedule, Schedules
from sparsegp.noise.noise_learning import INFERENCE, NOISE_SCHEDULES, InferenceOptions


@dataclass(frozen=True)
class StartOptions:
    """Limits of the noise, relative to the variance of the targets, and the quick global fit that learned noise starts
    from. `shorter` and `quieter` are multiples of lengthscales and noise that are tried, on `tried_rows`, where a trend
    has taken away what varies slowly. `thorough` is for models that start from that fit alone: a climb that ends early
    calls what it has not found yet noise.
    """

    least_of_signal: float = 1e-8
    noise_floor: float = 1e-6
    noise_ceiling: float = 100.0
    least_noise_fraction: float = 0.005
    suspicious_noise: float = 1e-4
    global_inducing: int = 128
    shorter: tuple[float, ...] = (1.0, 0.5, 0.25)
    quieter: tuple[float, ...] = (1.0, 0.2)
    tried_rows: int = 500
    quick: Schedule = field(
        default_factory=lambda: Schedule(
            warm_up_iterations=20, first_rows=4096, most_rows=4096, first_iterations=40, tolerance=1e-5
        )
    )

    @property
    def thorough(self) -> Schedule:
        return replace(self.quick, warm_up_iterations=60, first_iterations=100, tolerance=1e-6)

    def limits(self, block: Block, noise_var: float, least_noise_var: float = 0.0) -> Limits:
        """Inducing inputs within the data; noise between a floor and a ceiling."""
        variance = block.target_variance
        floor = max(min(self.noise_floor * variance, noise_var), least_noise_var)
        ceiling = max(self.noise_ceiling * variance, noise_var)
        X = block.X.to(torch.float64)
        return Limits((floor, ceiling), X.amin(0), X.amax(0))


@dataclass(frozen=True)
class NoiseFractions:
    """Of a budget, by whose ends the global start, the local start and the hyper-parameters of a model with learned
    noise are learned; the rest is for inference."""

    global_start: float = 0.1
    start: float = 0.35
    learning: float = 0.75


@dataclass(frozen=True)
class CommitteeOptions:
    """The schedule of what experts share, and sizes.

    `farthest_lengthscales`: cells are compact in the metric of the local start. Noise that varies can stand for
    variation of f: under lengthscales far longer than theirs, an expert with quiet rows is sure of places where it has
    none.
    """

    schedule: shared_learning.Schedule = field(default_factory=shared_learning.Schedule)
    largest_dense_cell: int = 2048
    noise_sample_rows: int = 2048
    farthest_lengthscales: float = 5.0


@dataclass(frozen=True)
class LearningOptions:
    """How a fit learns: by which schedules, from which start, and what is different with learned noise and in
    committees. `rounds` are those of a start from neighbourhoods."""

    schedules: Schedules = field(default_factory=Schedules)
    rounds: Rounds = field(default_factory=Rounds)
    start: StartOptions = field(default_factory=StartOptions)
    noise_schedules: Schedules = NOISE_SCHEDULES
    noise_fractions: NoiseFractions = field(default_factory=NoiseFractions)
    inference: InferenceOptions = INFERENCE
    committee: CommitteeOptions = field(default_factory=CommitteeOptions)
