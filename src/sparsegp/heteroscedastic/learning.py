"""Learning a heteroscedastic model by stages: small subsets first, all rows last; then q(g_u) on all rows."""

import time
from dataclasses import dataclass, replace

import numpy as np

from sparsegp.approximations import Approximation
from sparsegp.data import Rows
from sparsegp.engines import batch
from sparsegp.heteroscedastic.bound import Ascent
from sparsegp.heteroscedastic.hyperparameters import JointHyperparameters
from sparsegp.heteroscedastic.noise_process import NoiseProcess
from sparsegp.heteroscedastic.objective import ProfiledBound
from sparsegp.learning.deadline import Deadline
from sparsegp.learning.hyperparameters import Limits
from sparsegp.learning.progressive import BLOCKS, POINTS, Schedule, climb, nested_subsets, staged
from sparsegp.learning.recorder import LearningResult, StepCallback
from sparsegp.posterior import InducingPosterior, LatentPosterior

# An evaluation of the profiled bound costs as much as several of the homoscedastic one.
POINT_STAGES = replace(POINTS, first_rows=4096, first_iterations=60, last_row_visits=1e6, tolerance=1e-5)
BLOCK_STAGES = replace(BLOCKS, first_iterations=10, first_rows=8192, most_rows=8192, last_row_visits=5e4)
FINAL_TOLERANCE, FINAL_STEPS = 1e-8, 50
# Many rows: q(g_u) of a part of them first. A step on all of them is long, and gains far below a thousandth of a nat a
# row change no prediction.
INFERENCE_STAGES = Schedule(first_rows=16_384, growth=4)
PART_TOLERANCE, PART_STEPS = 1e-4, 20
MANY_ROWS_TOLERANCE = 1e-5


@dataclass(frozen=True)
class NoisyModel:
    """Posterior of f and noise process g, their bound and the record of how they came about."""

    posterior: LatentPosterior
    process: NoiseProcess
    bound: float
    state: batch.BatchState
    jitter: float
    ascent_evaluations: int
    seconds: float


def learn(
    rows: Rows,
    row: Approximation,
    hyper: JointHyperparameters,
    limits: Limits,
    *,
    rng: np.random.Generator,
    schedule: Schedule | None = None,
    on_step: StepCallback | None = None,
    deadline: Deadline | None = None,
) -> tuple[list[LearningResult], InducingPosterior | None]:
    """Climb the profiled bound in place, by stages; one result a stage, and q(g_u) of the last one."""
    schedule = schedule or (BLOCK_STAGES if row.by_block else POINT_STAGES)
    subsets = list(nested_subsets(rows, row, schedule, rng))
    objectives: list[ProfiledBound] = []

    def objective(k: int) -> ProfiledBound:
        """Its ascents start from the q that the stage before it has found."""
        q = objectives[-1].q if objectives else None
        objectives.append(ProfiledBound(subsets[k], row, limits.noise_var, q=q))
        return objectives[-1]

    stages = staged(objective, [len(subset) for subset in subsets], len(rows), schedule, row)
    results = climb(stages, hyper, limits, "lbfgs", schedule.tolerance, on_step, deadline)
    return results, objectives[-1].q


def infer(
    rows: Rows,
    row: Approximation,
    hyper: JointHyperparameters,
    limits: Limits,
    q: InducingPosterior | None,
    *,
    rng: np.random.Generator,
    deadline: Deadline | None = None,
) -> NoisyModel:
    """q(g_u) by natural ascent from a given one (None: its prior), then f with the noise it gives.

    The ascent is on all rows; where they are many, on parts of them before, each from the q of the smaller one.
    """
    started = time.perf_counter()
    *parts, everything = nested_subsets(rows, row, INFERENCE_STAGES, rng)
    for part in parts:
        q = _ascended(part, row, hyper, limits, q, PART_TOLERANCE, PART_STEPS, deadline).state.process.q
    tolerance = MANY_ROWS_TOLERANCE if parts else FINAL_TOLERANCE
    return _model(_ascended(everything, row, hyper, limits, q, tolerance, FINAL_STEPS, deadline), started)


def _ascended(
    rows: Rows,
    row: Approximation,
    hyper: JointHyperparameters,
    limits: Limits,
    q: InducingPosterior | None,
    tolerance: float,
    max_steps: int,
    deadline: Deadline | None,
) -> Ascent:
    return ProfiledBound(rows, row, limits.noise_var, tolerance, max_steps, q=q, deadline=deadline).ascend(hyper)


def _model(ascent: Ascent, started: float) -> NoisyModel:
    state, posterior, _ = batch.infer(ascent.state.f_prior, ascent.state.rows)
    jitter = max(ascent.state.f_prior.Luu.jitter, ascent.state.process.prior.Luu.jitter)
    seconds = time.perf_counter() - started
    return NoisyModel(posterior, ascent.state.process, ascent.state.value, state, jitter, ascent.evaluations, seconds)
