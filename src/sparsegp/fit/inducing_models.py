"""Models with inducing inputs: of all rows, of a part of them, or of a sketch, at given hyper-parameters."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsegp.core.block import MemoryRows, Rows
from sparsegp.core.evidence import uncollapsed_objective
from sparsegp.core.local import LocalPosterior, make_posterior
from sparsegp.core.partition import Blocking
from sparsegp.core.posterior import InducingPosterior, LatentPosterior, SparsePosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.fit.budget import Budget
from sparsegp.fit.kept import KeptRows
from sparsegp.fit.model import Found, Model
from sparsegp.fit.problem import Problem
from sparsegp.fit.progress import Progress, learning_report
from sparsegp.infer import batch
from sparsegp.infer.anytime import Reading
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.trace import LearningResult


@dataclass(frozen=True)
class Arranged:
    """A problem with its rows in blocks (where it has them), which may be a part of `total` weighted rows."""

    problem: Problem
    rows: Rows
    blocking: Blocking | None
    n_all: int
    total: float

    def model(
        self,
        hyper: Hyperparameters,
        posterior: LatentPosterior,
        evidence: float,
        state: batch.BatchState,
        n_seen: int | None = None,
    ) -> Model:
        """Of `n_seen` rows, None: of all.

        Statistics of a part of the rows are exact ones of that part: updates go on from there. A local model holds its
        rows, so updates see all of them; which of the rows of a window were seen is not known.
        """
        hyper.clear_gradient()
        problem, rows = self.problem, self.rows
        known, is_whole = rows.mean_noise_var, n_seen is None
        n_held = self.n_all if n_seen is None else len(rows) if problem.approx.is_local else n_seen
        kept, found = None, Found(posterior, evidence)
        if is_whole and isinstance(rows, MemoryRows):
            kept = _kept(problem, rows)
            if kept is not None and isinstance(posterior, LocalPosterior):
                found = Found(replace(posterior, rows=kept), evidence)
        return Model(
            problem.approx,
            hyper.kernel,
            float(hyper.noise_var) if known is None else known,
            hyper.inducing.detach(),
            state if is_whole or not (problem.approx.is_local or problem.window is not None) else None,
            found,
            self.blocking,
            kept,
            known_noise=known is not None,
            window=problem.window,
            n_arrived=n_held,
            n_rows=n_held,
        )

    def of_sums(self, hyper: Hyperparameters, prior: SparsePrior, seen: BlockStatistics, n_seen: int) -> Model:
        """The model of `n_seen` rows, which speaks for all of them unless the reading is that of the rows seen."""
        is_exact, is_seen = n_seen == self.n_all, self.problem.steps.reading is Reading.SEEN
        of_all = seen if is_exact else self.total / seen.n_rows * seen
        q = InducingPosterior.from_statistics(seen if is_seen else of_all)
        posterior: LatentPosterior = SparsePosterior(prior, q)
        if prior.approx.is_local:
            posterior = make_posterior(prior, q, self.rows.store())
        state, evidence = batch.BatchState(prior, seen), uncollapsed_objective(of_all, q)
        return self.model(hyper, posterior, evidence, state, None if is_exact else n_seen)

    def info(self, learning: list[LearningResult], jitter: float, inference_seconds: float) -> dict[str, Any]:
        blocks = {} if self.blocking is None else {"n_blocks": self.blocking.n_blocks}
        return {**learning_report(learning, jitter, inference_seconds), **blocks, **self.rows.report()}


def _kept(problem: Problem, rows: MemoryRows) -> KeptRows | None:
    """Rows that updates will need: those of a local model, block by block, and those of a window."""
    if problem.approx.is_local:
        return KeptRows.of(rows)
    if problem.window is None:
        return None
    if problem.approx.by_block:
        return KeptRows.of(rows)
    return KeptRows.last(rows.all, problem.window)


class Sketcher:
    """Models from about `most_rows` of the rows (whole blocks where there are blocks), chosen once, for any
    hyper-parameters. Costs are measured: `seconds` of the last sketch, and the seconds a row in the budget."""

    def __init__(self, arranged: Arranged, most_rows: int, budget: Budget, rng: np.random.Generator) -> None:
        self.arranged, self.budget = arranged, budget
        rows, by_block = arranged.rows, arranged.problem.approx.by_block
        self.rows = rows if most_rows >= len(rows) else next(rows.parts([most_rows], rng, by_block=by_block))
        self.seconds = self.finish_seconds = 0.0

    def model(self, hyper: Hyperparameters, learning: list[LearningResult], step: int, stage: str) -> Progress:
        clock = self.budget.clock
        started = clock()
        own = copy.deepcopy(hyper)
        prior = own.prior(self.arranged.problem.approx)
        before = clock()
        seen = batch.statistics_of(prior, self.rows)
        summing = clock() - before
        self.budget.row_seconds = summing / len(self.rows)
        found = self.arranged.of_sums(own, prior, seen, len(self.rows))
        info = self.arranged.info(learning, prior.Luu.jitter, clock() - started)
        self.seconds = clock() - started
        self.finish_seconds = self.seconds - summing
        part, is_exact = seen.n_rows / self.arranged.total, len(self.rows) == self.arranged.n_all
        return Progress.of(found, info, step, seen.n_rows, part, self.budget, stage=stage, is_exact=is_exact)
