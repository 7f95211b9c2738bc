"""The last part of a fit in steps: blocks folded in one by one at fixed hyper-parameters."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from sparsegp.engines import anytime_run, batch, stopping
from sparsegp.engines.anytime import Reading
from sparsegp.engines.sampling import BlockSource, make_source
from sparsegp.estimators import families
from sparsegp.estimators.families import Problem
from sparsegp.estimators.incoming.blocking import Blocking
from sparsegp.estimators.stepping.budget import Budget
from sparsegp.estimators.stepping.sketches import INFERENCE, Published
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.recorder import LearningResult
from sparsegp.local_posterior import LocalPosterior
from sparsegp.posterior import LatentPosterior, SparsePosterior
from sparsegp.prior import SparsePrior

MOST_BLOCK_ROWS = 1024
FEWEST_BLOCK_ROWS = 64
USUAL_STEPS = 32
N_PROBES = 64
PROBED_BLOCKS = 8


@dataclass(frozen=True)
class Plan:
    """`exact_pass`: inference in one pass where it fits. `watched`: somebody looks at the models in between."""

    exact_pass: bool
    reading: Reading
    stop_error: float | None
    watched: bool


def run_blocks(
    problem: Problem, hyper: Hyperparameters, plan: Plan, budget: Budget, rng: np.random.Generator
) -> Iterator[anytime_run.Progress]:
    """One epoch at the most, from the rows' own blocks or from random ones; exact after its last step."""
    prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, problem.row)
    block_rows = min(MOST_BLOCK_ROWS, max(FEWEST_BLOCK_ROWS, len(problem.rows) // USUAL_STEPS))
    source = make_source(problem.rows, problem.row.by_block, block_rows, rng)
    options = anytime_run.Options(
        reading=plan.reading,
        seconds=max(budget.remaining, 1e-9) if budget.limited else None,
        tolerance=plan.stop_error,
    )
    wanted = plan.watched or plan.stop_error is not None
    probes = probe_points(prior, source, rng) if wanted else None
    return anytime_run.run(prior, source, options, rng=rng, probes=probes, clock=budget.clock)


def probe_points(prior: SparsePrior, source: BlockSource, rng: np.random.Generator) -> stopping.ProbePoints:
    """Some training inputs, from few blocks, because local models have to prepare every block they visit."""
    filled = [k for k in rng.permutation(source.n_blocks).tolist() if source.sizes[k] > 0][:PROBED_BLOCKS]
    parts = [(k, source.block(k).take(slice(0, N_PROBES // len(filled)))) for k in filled]
    labels = torch.cat([torch.full((len(part),), k) for k, part in parts])
    noise = torch.cat([prior.row_noise(part) for _, part in parts])
    return stopping.ProbePoints(torch.cat([part.X for _, part in parts]), labels if prior.row.is_local else None, noise)


@dataclass(frozen=True)
class Outcome:
    """What learning has left, and after how many steps; turns the progress of a run into models."""

    problem: Problem
    hyper: Hyperparameters
    learning: list[LearningResult]
    blocking: Blocking | None
    steps_before: int

    def published(self, progress: anytime_run.Progress) -> Published:
        prior = progress.posterior.prior
        is_exact = progress.reason == anytime_run.EXACT
        fitted = families.fitted_model(
            self.problem,
            self.hyper,
            self._lasting(progress),
            progress.log_evidence,
            families.learning_report(self.learning, prior.Luu.jitter, progress.seconds),
            batch.BatchState(prior, progress.state.seen) if is_exact else None,
        )
        return Published(
            fitted,
            self.blocking,
            step=self.steps_before + progress.step,
            rows_seen=progress.rows_seen,
            fraction=progress.fraction,
            stage=INFERENCE,
            error=progress.error if progress.error is not None and math.isfinite(progress.error) else None,
            is_exact=is_exact,
            reason=progress.reason,
        )

    def _lasting(self, progress: anytime_run.Progress) -> LatentPosterior:
        """A local posterior refers to the rows themselves and keeps the blocks it has prepared; others, when the run is
        over, prepare for many predictions."""
        if isinstance(progress.posterior, LocalPosterior):
            return replace(progress.posterior, rows=self.problem.rows)
        return progress.posterior if progress.reason is None else SparsePosterior(progress.posterior.prior, progress.q)
