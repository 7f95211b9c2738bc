"""The heteroscedastic bound of any approximation on rows wherever they are, the natural ascent of q(g_u), and the bound
as a function of the hyper-parameters.

    F = J(R) - sum_i w_i v_g,i / 4 - KL(q(g_u) || p(g_u)),     R_i = exp(mu_g,i - v_g,i/2)

J is the approximation's own objective with per-row noise R, f eliminated. With "vfe" this is 001 eq. 9. A value is one
pass over the rows, a step of q(g_u) another one, and the gradient a third. Rows in memory keep their features during an
ascent, and their noise; rows elsewhere compute both again in each pass.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic

import torch

from sparsegp import linalg
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block, BlockStore, MemoryRows, Rows, Sum
from sparsegp.core.posterior import InducingPosterior, log_evidence
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.errors import InputError
from sparsegp.learn.adjoint import SharedAdjoint
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import Adjoints, AdjointsOfRows, close_gradient
from sparsegp.learn.trace import Deadline, is_over
from sparsegp.noise.joint_hyperparameters import JointHyperparameters
from sparsegp.noise.noise_gradient import NoiseAdjoints, RowFeatures, RowNoise
from sparsegp.noise.process import Direction, NoiseProcess, StepSums

SMALLEST_STEP = 1e-4
MOST_BYTES = 1_000_000_000
"""Of features of f, and of g, that an ascent keeps."""


@dataclass(frozen=True)
class OfEveryPart(Generic[Sum]):
    """Task of a pass: the answer to a question about rows and the noise that a process gives them."""

    question: Callable[[RowNoise], Sum]
    f_prior: SparsePrior
    process: NoiseProcess
    q: InducingPosterior | None = None

    def __call__(self, rows: MemoryRows) -> Sum:
        noise = RowNoise.of(RowFeatures(self.f_prior, self.process.prior, rows, 0), self.process)
        return self.question(noise if self.q is None else noise.seen_by(self.q))


@dataclass(frozen=True)
class Evaluation:
    """What a value of the bound needs of all rows: the statistics of f under their noise, and sum w v_g."""

    statistics: BlockStatistics
    weighted_var: float

    @classmethod
    def of(cls, noise: RowNoise) -> "Evaluation":
        return cls(noise.statistics(), noise.weighted_var)

    def __add__(self, other: "Evaluation") -> "Evaluation":
        return Evaluation(self.statistics + other.statistics, self.weighted_var + other.weighted_var)


def step_sums(noise: RowNoise) -> StepSums:
    features = noise.features.g
    return StepSums.of(features.prior.n_inducing, features.placed(), noise.slopes)


@dataclass(frozen=True)
class BoundAdjoints:
    """What a gradient of the bound needs of all rows, for the parameters of f and for those of g."""

    f: Adjoints
    g: NoiseAdjoints

    def __add__(self, other: "BoundAdjoints") -> "BoundAdjoints":
        return BoundAdjoints(self.f + other.f, self.g + other.g)


@dataclass(frozen=True)
class AdjointsOfBound:
    """Question of the last pass. At fixed R the gradient for f is that of the approximation's own objective."""

    hyper: JointHyperparameters
    of_f: AdjointsOfRows

    def __call__(self, noise: RowNoise) -> BoundAdjoints:
        return BoundAdjoints(self.of_f(noise.rows), NoiseAdjoints.of(self.hyper, noise))


@dataclass(frozen=True)
class BoundTerms:
    """log evidence of f's model, -sum v_g/4, -penalty of the approximation (VFE: the trace term), -KL."""

    evidence: float
    spread: float
    penalty: float
    divergence: float

    @property
    def total(self) -> float:
        return self.evidence + self.spread + self.penalty + self.divergence


@dataclass(frozen=True)
class BlocksWithNoise:
    """A `BlockStore` whose rows have the noise of a process, found when a block is fetched."""

    store: BlockStore
    process: NoiseProcess

    @property
    def n_blocks(self) -> int:
        return self.store.n_blocks

    def block(self, k: int) -> Block:
        found = self.store.block(k)
        return replace(found, noise_var=self.process.moments(found.X).R)


@dataclass(frozen=True)
class BoundState:
    """The bound at one noise process: its terms, the statistics of f under that noise and q(v) of f.

    `in_memory` is the noise of the rows, one by one, where they are in memory.
    """

    rows: Rows
    f_prior: SparsePrior
    process: NoiseProcess
    terms: BoundTerms
    statistics: BlockStatistics
    q: InducingPosterior
    in_memory: RowNoise | None

    @classmethod
    def evaluate(
        cls, f_prior: SparsePrior, process: NoiseProcess, rows: Rows, features: RowFeatures | None = None
    ) -> "BoundState":
        """One pass. `features` are those of rows in memory, where they are known."""
        if features is None and isinstance(rows, MemoryRows):
            features = RowFeatures(f_prior, process.prior, rows, MOST_BYTES)
        noise = None if features is None else RowNoise.of(features, process)
        found = rows.sum(OfEveryPart(Evaluation.of, f_prior, process)) if noise is None else Evaluation.of(noise)
        statistics = found.statistics
        q = InducingPosterior.from_statistics(statistics)
        evidence = log_evidence(statistics, q) + statistics.penalty
        terms = BoundTerms(evidence, -0.25 * found.weighted_var, -statistics.penalty, -process.kl())
        return cls(rows, f_prior, process, terms, statistics, q, None if noise is None else noise.seen_by(q))

    @property
    def value(self) -> float:
        return self.terms.total

    @property
    def row_noise(self) -> RowNoise:
        """The noise of each row and what f says about it."""
        if self.in_memory is None:
            raise InputError("Rows that are not in memory keep no noise of their own: ask for a sum over them.")
        return self.in_memory

    def sum(self, question: Callable[[RowNoise], Sum]) -> Sum:
        """The sum of the answers of every part of the rows. Nothing is computed again for rows in memory."""
        if self.in_memory is not None:
            return question(self.in_memory)
        return self.rows.sum(OfEveryPart(question, self.f_prior, self.process, self.q))

    def direction(self) -> Direction:
        """Of a step of q(g_u): one pass."""
        return self.process.direction(self.sum(step_sums))

    def push_gradient(self, hyper: JointHyperparameters) -> None:
        """Put dF/d(hyper-parameters) at fixed q(g_u) into their `.grad`: one pass."""
        hyper.clear_gradient()
        inverse_L = linalg.inverse_lower(self.f_prior.root)
        shared = SharedAdjoint.build(self.f_prior, self.q, inverse_L, direct=False)
        found = self.sum(AdjointsOfBound(hyper, AdjointsOfRows(hyper, self.f_prior, self.q, shared)))
        hyper.add_gradient(found.f.gradient)
        close_gradient(hyper, self.f_prior, shared, self.statistics, self.q, found.f, learns_noise=False)
        found.g.close(hyper, self.process)

    def store(self) -> BlockStore:
        """The blocks of the rows with their noise, for the predictions of a local model."""
        if self.in_memory is not None:
            return self.in_memory.rows
        return BlocksWithNoise(self.rows.store(), self.process)


@dataclass(frozen=True)
class Ascent:
    """Where the natural ascent ended, and how many evaluations of the bound it took."""

    state: BoundState
    evaluations: int


@torch.no_grad()
def natural_ascent(
    f_prior: SparsePrior,
    process: NoiseProcess,
    rows: Rows,
    *,
    tolerance: float = 1e-7,
    max_steps: int = 50,
    deadline: Deadline | None = None,
    most_bytes: int = MOST_BYTES,
) -> Ascent:
    """Maximise F over q(g_u): full steps, halved while F falls and doubled afterwards (derivations: H4).

    Ends when a step gains less than `tolerance` a row, or with the step during which the time is up.
    """
    features = RowFeatures(f_prior, process.prior, rows, most_bytes) if isinstance(rows, MemoryRows) else None
    state = BoundState.evaluate(f_prior, process, rows, features)
    step, evaluations = 1.0, 1
    for _ in range(max_steps):
        direction = state.direction()
        candidate = BoundState.evaluate(f_prior, state.process.stepped(direction, step), rows, features)
        evaluations += 1
        while not candidate.value >= state.value and step > SMALLEST_STEP:
            step *= 0.5
            candidate = BoundState.evaluate(f_prior, state.process.stepped(direction, step), rows, features)
            evaluations += 1
        gain = candidate.value - state.value
        if not gain >= 0.0:
            return Ascent(state, evaluations)
        state = candidate
        if gain <= tolerance * step * len(rows):
            return Ascent(state, evaluations)
        if is_over(deadline):
            break
        step = min(1.0, 2.0 * step)
    return Ascent(state, evaluations)


@dataclass
class Jitters:
    """The largest relative jitter met so far for f and for g: the objective must not jump between evaluations."""

    f: float = 0.0
    g: float = 0.0


def priors(
    hyper: JointHyperparameters, approx: Approximation, limits: tuple[float, float], jitters: Jitters
) -> tuple[SparsePrior, NoiseProcess]:
    """Of f and of g; the jitters they need are remembered."""
    f_prior = hyper.prior(approx, jitters.f)
    process = NoiseProcess.at_prior(hyper.noise_kernel, hyper.noise_inducing, hyper.noise_mean, limits, jitters.g)
    jitters.f, jitters.g = f_prior.Luu.jitter, process.prior.Luu.jitter
    return f_prior, process


@dataclass
class ProfiledBound:
    """max over q(g_u) of F, for any approximation; `limits` are the least and the largest noise variance.

    q of the best evaluation so far is where the next ascent starts. Bounds of experts on disjoint rows add, and so do
    their gradients where hyper-parameters are shared.
    """

    rows: Rows
    approx: Approximation
    limits: tuple[float, float]
    tolerance: float = 1e-5
    max_steps: int = 10
    q: InducingPosterior | None = None
    deadline: Deadline | None = None
    best: float = -torch.inf
    jitters: Jitters = field(default_factory=Jitters)

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    def ascend(self, hyper: JointHyperparameters) -> Ascent:
        """The natural ascent of q(g_u) at these hyper-parameters, from the best q so far."""
        self.jitters = replace(self.jitters)  # a copy of this objective keeps its own
        with torch.no_grad():
            f_prior, process = priors(hyper, self.approx, self.limits, self.jitters)
            start = process if self.q is None else process.with_q(self.q)
            ascent = natural_ascent(
                f_prior,
                start,
                self.rows,
                tolerance=self.tolerance,
                max_steps=self.max_steps,
                deadline=self.deadline,
            )
        if ascent.state.value > self.best:
            self.best, self.q = ascent.state.value, ascent.state.process.q
        return ascent

    def value(self, hyper: JointHyperparameters) -> float:
        return self.ascend(hyper).state.value

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        assert isinstance(hyper, JointHyperparameters)
        ascent = self.ascend(hyper)
        with torch.no_grad():
            ascent.state.push_gradient(hyper)
        return ascent.state.value
