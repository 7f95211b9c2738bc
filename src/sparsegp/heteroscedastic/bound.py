"""The heteroscedastic bound of any row of the table at a given noise process, and the natural ascent of q(g_u).

    F = J(R) - sum_i w_i v_g,i / 4 - KL(q(g_u) || p(g_u)),     R_i = exp(mu_g,i - v_g,i/2)

J is the row's own objective with per-row noise R, f eliminated. With row "vfe" this is 001 eq. 9.
"""

from dataclasses import dataclass, replace

import torch

from sparsegp.data import Rows
from sparsegp.engines import batch
from sparsegp.heteroscedastic.coupling import noise_slopes, row_weights, with_noise
from sparsegp.heteroscedastic.held_prior import HeldPrior
from sparsegp.heteroscedastic.noise_process import NoiseProcess, NoiseSlopes
from sparsegp.learning.deadline import Deadline, is_over
from sparsegp.posterior import InducingPosterior, log_evidence
from sparsegp.prior import SparsePrior

SMALLEST_STEP = 1e-4


@dataclass(frozen=True)
class BoundTerms:
    """log evidence of f's model, -sum v_g/4, -penalty of the row (VFE: the trace term), -KL."""

    evidence: float
    spread: float
    penalty: float
    divergence: float

    @property
    def total(self) -> float:
        return self.evidence + self.spread + self.penalty + self.divergence


@dataclass(frozen=True)
class BoundState:
    """The bound at one noise process: its terms, the rows with their noise, and q(v) of f."""

    process: NoiseProcess
    f_prior: SparsePrior
    rows: Rows
    terms: BoundTerms
    q: InducingPosterior
    reaction: torch.Tensor

    @classmethod
    def evaluate(cls, f_prior: SparsePrior, process: NoiseProcess, rows: Rows) -> "BoundState":
        moments = process.moments(rows.all.X)
        noisy = with_noise(rows, moments.R)
        statistics = batch.statistics_of(f_prior, noisy)
        q = InducingPosterior.from_statistics(statistics)
        spread = -0.25 * float(row_weights(rows.all) @ moments.var)
        evidence = log_evidence(statistics, q) + statistics.penalty
        terms = BoundTerms(evidence, spread, -statistics.penalty, -process.kl())
        return cls(process, f_prior, noisy, terms, q, moments.reaction)

    @property
    def value(self) -> float:
        return self.terms.total

    def slopes(self) -> NoiseSlopes:
        """With respect to g: less than those with respect to log R where the noise is close to a limit."""
        found = noise_slopes(self.f_prior, self.q, self.rows)
        half = 0.5 * row_weights(self.rows.all)
        return NoiseSlopes(self.reaction * found.slope, half + self.reaction * (found.lam - half), found.share)


@dataclass(frozen=True)
class Ascent:
    """Where the natural ascent ended, the slopes there, and how many evaluations of the bound it took."""

    state: BoundState
    slopes: NoiseSlopes
    evaluations: int
    converged: bool


def natural_ascent(
    f_prior: SparsePrior,
    process: NoiseProcess,
    rows: Rows,
    *,
    tolerance: float = 1e-7,
    max_steps: int = 50,
    deadline: Deadline | None = None,
) -> Ascent:
    """Maximise F over q(g_u): full steps, halved while F falls and doubled afterwards (derivations: H4).

    Ends when a step gains less than `tolerance` a row, or with the step during which the time is up.
    """
    held = replace(process, prior=HeldPrior.of(process.prior))
    found = _ascend(HeldPrior.of(f_prior), held, rows, tolerance, max_steps, deadline)
    end = found.state
    plain = replace(end, f_prior=f_prior, process=replace(end.process, prior=process.prior))
    return replace(found, state=plain)


def _ascend(
    f_prior: SparsePrior,
    process: NoiseProcess,
    rows: Rows,
    tolerance: float,
    max_steps: int,
    deadline: Deadline | None,
) -> Ascent:
    state = BoundState.evaluate(f_prior, process, rows)
    slopes = state.slopes()
    step, evaluations = 1.0, 1
    for _ in range(max_steps):
        direction = state.process.direction(rows.all.X, slopes)
        candidate = BoundState.evaluate(f_prior, state.process.stepped(direction, step), rows)
        evaluations += 1
        while not candidate.value >= state.value and step > SMALLEST_STEP:
            step *= 0.5
            candidate = BoundState.evaluate(f_prior, state.process.stepped(direction, step), rows)
            evaluations += 1
        gain = candidate.value - state.value
        if not gain >= 0.0:
            return Ascent(state, slopes, evaluations, True)
        state, slopes = candidate, candidate.slopes()
        if gain <= tolerance * step * len(rows):
            return Ascent(state, slopes, evaluations, True)
        if is_over(deadline):
            break
        step = min(1.0, 2.0 * step)
    return Ascent(state, slopes, evaluations, False)
