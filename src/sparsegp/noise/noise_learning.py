"""Learning a heteroscedastic model by stages: small subsets first, all rows last; then q(g_u) on all rows."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Rows
from sparsegp.core.local import make_posterior
from sparsegp.core.posterior import InducingPosterior, LatentPosterior, SparsePosterior
from sparsegp.infer import batch
from sparsegp.learn.schedules import BLOCKS, POINTS, Schedule, Schedules, climb, nested_subsets, staged
from sparsegp.learn.trace import LearningResult, Terms
from sparsegp.noise.bound import Ascent, ProfiledBound
from sparsegp.noise.joint_hyperparameters import JointHyperparameters
from sparsegp.noise.process import NoiseProcess

# An evaluation of the profiled bound costs as much as several of the homoscedastic one.
NOISE_SCHEDULES = Schedules(
    points=replace(POINTS, first_rows=4096, first_iterations=60, last_row_visits=1e6, tolerance=1e-5),
    blocks=replace(BLOCKS, first_iterations=10, first_rows=8192, most_rows=8192, last_row_visits=5e4),
)


@dataclass(frozen=True)
class InferenceOptions:
    """How q(g_u) of given hyper-parameters is found, with how many steps and gains of how many nats a row.

    Many rows: from a part of them first. A step on all of them is long, and gains far below a thousandth of a nat a row
    change no prediction.
    """

    tolerance: float = 1e-8
    max_steps: int = 50
    parts: Schedule = field(default_factory=lambda: Schedule(first_rows=16_384, growth=4))
    part_tolerance: float = 1e-4
    part_steps: int = 20
    many_rows_tolerance: float = 1e-5


INFERENCE = InferenceOptions()


@dataclass(frozen=True)
class Inferred:
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
    approx: Approximation,
    hyper: JointHyperparameters,
    terms: Terms,
    schedule: Schedule | None = None,
) -> tuple[list[LearningResult], InducingPosterior | None]:
    """Climb the profiled bound in place, by stages; one result a stage, and q(g_u) of the last one.

    An evaluation on rows elsewhere is long: its ascent, too, ends at the deadline.
    """
    schedule = schedule or NOISE_SCHEDULES.of(approx, terms.optimizer)
    subsets = list(nested_subsets(rows, approx, schedule, terms.rng))
    objectives: list[ProfiledBound] = []

    def objective(k: int) -> ProfiledBound:
        """Its ascents start from the q that the stage before it has found."""
        q = objectives[-1].q if objectives else None
        objectives.append(ProfiledBound(subsets[k], approx, terms.limits.noise_var, q=q, deadline=terms.deadline))
        return objectives[-1]

    stages = staged(objective, [len(subset) for subset in subsets], len(rows), schedule, approx)
    results = climb(stages, hyper, terms, schedule.tolerance)
    return results, objectives[-1].q


def infer(
    rows: Rows,
    approx: Approximation,
    hyper: JointHyperparameters,
    terms: Terms,
    q: InducingPosterior | None,
    options: InferenceOptions = INFERENCE,
) -> Inferred:
    """q(g_u) by natural ascent from a given one (None: its prior), then f with the noise it gives.

    The ascent is on all rows; where they are many, on parts of them before, each from the q of the smaller one.
    """
    started, noise_limits = time.perf_counter(), terms.limits.noise_var

    def ascended(part: Rows, tolerance: float, max_steps: int) -> Ascent:
        return ProfiledBound(part, approx, noise_limits, tolerance, max_steps, q, terms.deadline).ascend(hyper)

    for part in _parts(rows, approx, options.parts, terms.rng):
        q = ascended(part, options.part_tolerance, options.part_steps).state.process.q
    are_many = len(options.parts.stages(len(rows))) > 1
    tolerance = options.many_rows_tolerance if are_many else options.tolerance
    return _model(ascended(rows, tolerance, options.max_steps), started)


def _parts(rows: Rows, approx: Approximation, schedule: Schedule, rng: np.random.Generator) -> Iterator[Rows]:
    """Nested parts, short of all rows, that fit into memory where the sample does."""
    *sizes, _ = schedule.stages(len(rows))
    return rows.parts([size for size in sizes if size <= len(rows.sample)], rng, by_block=approx.by_block)


def _model(ascent: Ascent, started: float) -> Inferred:
    end = ascent.state
    prior, q = end.f_prior, end.q
    posterior = make_posterior(prior, q, end.store()) if prior.approx.is_local else SparsePosterior(prior, q)
    jitter = max(prior.Luu.jitter, end.process.prior.Luu.jitter)
    state, seconds = batch.BatchState(prior, end.statistics), time.perf_counter() - started
    return Inferred(posterior, end.process, end.value, state, jitter, ascent.evaluations, seconds)
