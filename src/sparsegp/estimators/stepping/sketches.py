"""A model from some of the rows, for any hyper-parameters: what a fit in steps shows while it learns."""

import copy
from dataclasses import dataclass

import numpy as np
import torch

from sparsegp.data import Block, Rows
from sparsegp.engines import batch
from sparsegp.engines.anytime import Reading
from sparsegp.engines.divergence import uncollapsed_objective
from sparsegp.estimators.families import Fitted, Problem, fitted_model, learning_report
from sparsegp.estimators.incoming.blocking import Blocking
from sparsegp.estimators.stepping.budget import Budget
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.recorder import LearningResult
from sparsegp.local_posterior import make_posterior
from sparsegp.posterior import InducingPosterior
from sparsegp.prior import SparsePrior

LEARNING = "learning"
INFERENCE = "inference"


@dataclass(frozen=True)
class Published:
    """A model that can predict: rows behind it, its sampling error, why the fit ended with it (None: it goes on)."""

    fitted: Fitted
    blocking: Blocking | None
    step: int
    rows_seen: float
    fraction: float
    stage: str
    error: float | None = None
    is_exact: bool = False
    reason: str | None = None


class Sketcher:
    """Sketches of a problem from about `most_rows` of its rows (whole blocks where there are blocks), chosen once.

    `everything` are the rows that the model stands for, of which the problem may have a part. Costs are measured:
    `seconds` of the last sketch, and the seconds a row in the budget.
    """

    def __init__(
        self,
        problem: Problem,
        blocking: Blocking | None,
        most_rows: int,
        everything: Block,
        reading: Reading,
        budget: Budget,
        rng: np.random.Generator,
    ) -> None:
        self.problem, self.blocking, self.everything = problem, blocking, everything
        self.reading, self.budget = reading, budget
        self.rows = some_rows(problem.rows, most_rows, rng)
        self.seconds = 0.0

    def model(self, hyper: Hyperparameters, learning: list[LearningResult], step: int, stage: str) -> Published:
        started = self.budget.clock()
        own = copy.deepcopy(hyper)
        prior = SparsePrior.build(own.kernel, own.inducing, own.noise_var, self.problem.row)
        before, total = self.budget.clock(), self.everything.n_rows
        seen = batch.statistics_of(prior, self.rows)
        self.budget.row_seconds = (self.budget.clock() - before) / len(self.rows)
        of_all = total / seen.n_rows * seen
        q = InducingPosterior.from_statistics(seen if self.reading is Reading.SEEN else of_all)
        is_exact = len(self.rows) == len(self.everything)
        fitted = fitted_model(
            self.problem,
            own,
            make_posterior(prior, q, self.problem.rows),
            uncollapsed_objective(of_all, q),
            learning_report(learning, prior.Luu.jitter, self.budget.clock() - started),
            batch.BatchState(prior, seen) if is_exact else None,
        )
        self.seconds = self.budget.clock() - started
        return Published(fitted, self.blocking, step, seen.n_rows, seen.n_rows / total, stage, is_exact=is_exact)


def some_rows(rows: Rows, most_rows: int, rng: np.random.Generator) -> Rows:
    """Random rows, or random blocks with about as many."""
    if most_rows >= len(rows):
        return rows
    if rows.n_blocks:
        order = rng.permutation(rows.n_blocks)
        count = max(1, round(most_rows / len(rows) * rows.n_blocks))
        filled = [k for k in order.tolist() if len(rows.block(k))][:count]
        return rows.subset_of_blocks(torch.tensor(sorted(filled)))
    return rows.subset(torch.from_numpy(np.sort(rng.choice(len(rows), most_rows, replace=False))))
