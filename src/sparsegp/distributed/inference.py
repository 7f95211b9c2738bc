"""The posterior of rows on workers at learned hyper-parameters: exactly in one round, or block after block."""

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from sparsegp.data import Rows
from sparsegp.distributed.blocks import DistributedBlocks
from sparsegp.distributed.messages import Model
from sparsegp.distributed.rows import DistributedRows
from sparsegp.engines import anytime_run
from sparsegp.engines.batch import BatchState
from sparsegp.estimators import families
from sparsegp.estimators.families import Problem
from sparsegp.estimators.incoming.blocking import Blocking
from sparsegp.estimators.stepping import anytime_inference
from sparsegp.estimators.stepping.anytime_fit import ONE_PASS
from sparsegp.estimators.stepping.anytime_inference import Plan
from sparsegp.estimators.stepping.budget import Budget
from sparsegp.estimators.stepping.sketches import INFERENCE, Published
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.recorder import LearningResult
from sparsegp.local_posterior import make_posterior
from sparsegp.posterior import InducingPosterior, log_evidence
from sparsegp.prior import SparsePrior


@dataclass(frozen=True)
class Outcome:
    """What was learned from which rows; `kept` are those of a local model, which predicts from them."""

    problem: Problem
    hyper: Hyperparameters
    learning: list[LearningResult]
    rows: DistributedRows
    kept: Rows
    blocking: Blocking | None

    @property
    def n_evaluations(self) -> int:
        return sum(stage.evaluations for stage in self.learning)

    def prior(self) -> SparsePrior:
        hyper = self.hyper
        return SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, self.problem.row)


def infer(outcome: Outcome, plan: Plan, budget: Budget, seed: int) -> Published:
    """The last model of the fit, with the record of what went through the scheduler."""
    model = _in_one_round(outcome) if plan.exact_pass else _block_by_block(outcome, plan, budget, seed)
    info = {**model.fitted.info, "cluster": traffic_report(outcome.rows)}
    return replace(model, fitted=replace(model.fitted, info=info))


def traffic_report(rows: DistributedRows) -> dict[str, Any]:
    traffic = rows.traffic
    return {
        "workers": len(rows.shares),
        "rounds": traffic.rounds,
        "bytes_through_scheduler": traffic.total,
        "bytes_per_evaluation": round(2 * traffic.total / traffic.rounds),
    }


def _in_one_round(outcome: Outcome) -> Published:
    started = time.perf_counter()
    prior = outcome.prior()
    statistics = outcome.rows.statistics(Model(outcome.hyper, prior.row, prior.Luu.jitter))
    q = InducingPosterior.from_statistics(statistics)
    posterior = make_posterior(prior, q, outcome.kept)
    report = families.learning_report(outcome.learning, prior.Luu.jitter, time.perf_counter() - started)
    evidence, state = log_evidence(statistics, q), BatchState(prior, statistics)
    fitted = families.fitted_model(outcome.problem, outcome.hyper, posterior, evidence, report, state)
    step, n_rows = outcome.n_evaluations + 1, outcome.rows.total_weight
    return Published(fitted, outcome.blocking, step, n_rows, 1.0, INFERENCE, 0.0, True, ONE_PASS)


def _block_by_block(outcome: Outcome, plan: Plan, budget: Budget, seed: int) -> Published:
    """A step draws as many blocks as there are workers; after the last block the result is exact."""
    prior, blocks, rng = outcome.prior(), DistributedBlocks.of(outcome.rows, seed), np.random.default_rng((seed, 3))
    options = anytime_run.Options(
        blocks_per_step=len(outcome.rows.shares),
        reading=plan.reading,
        seconds=max(budget.remaining, 1e-9) if budget.limited else None,
        tolerance=plan.stop_error,
    )
    probes = None if plan.stop_error is None else anytime_inference.probe_points(prior, blocks, rng)
    *_, last = anytime_run.run(
        prior, blocks, options, rng=rng, probes=probes, statistics=partial(blocks.statistics, prior), clock=budget.clock
    )
    problem = replace(outcome.problem, rows=outcome.kept)
    done = anytime_inference.Outcome(problem, outcome.hyper, outcome.learning, outcome.blocking, outcome.n_evaluations)
    return done.published(last)
