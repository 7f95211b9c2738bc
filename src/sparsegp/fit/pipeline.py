"""The one way from a problem to a model: a first model at once where somebody waits, then learning and inference that
publish better ones, within a budget, from rows wherever they are."""

from collections.abc import Callable, Generator
from typing import Any

from sparsegp.core import reasons
from sparsegp.core.approximations import Family
from sparsegp.core.block import Rows
from sparsegp.errors import InputError
from sparsegp.fit import committees, dense_models, in_steps, learned_noise
from sparsegp.fit.budget import Budget
from sparsegp.fit.committee_model import CommitteeModel
from sparsegp.fit.learned_noise import LearnedNoiseModel
from sparsegp.fit.model import Model
from sparsegp.fit.problem import Problem
from sparsegp.fit.progress import Progress
from sparsegp.fit.start import propagate_interrupt
from sparsegp.learn.trace import LearningResult


def fit(
    problem: Problem, rows: Rows, budget: Budget
) -> tuple[Model | LearnedNoiseModel | CommitteeModel, dict[str, Any]]:
    """The model that the fit ends with, and the record of how it came about."""
    *_, last = steps(problem, rows, budget)
    return last.model, last.info


def steps(problem: Problem, rows: Rows, budget: Budget) -> Generator[Progress]:
    """Models that get better; the last one has a reason."""
    if problem.committee is not None:
        if problem.trend is not None:
            raise InputError("Experts of a committee have no trend in common: leave the trend out, or fit one model.")
        return _at_once(committees.fit, problem, rows, budget)
    if problem.noise is not None:
        return _at_once(learned_noise.fit, problem, rows, budget)
    if problem.approx.family is Family.INDUCING:
        return in_steps.models(problem, rows, budget)
    return _at_once(dense_models.fit, problem.settled(), rows, budget, reasons.ONE_PASS)


Fit = Callable[[Problem, Rows, Budget], tuple[Any, dict[str, Any]]]


def _at_once(
    fit: Fit, problem: Problem, rows: Rows, budget: Budget, usual: str = reasons.ALL_ROWS
) -> Generator[Progress]:
    """Nothing forecasts before all rows are in the model: there is one model to publish."""
    model, info = fit(problem, rows, budget)
    learning: list[LearningResult] = info["stages"]
    propagate_interrupt(learning, problem)
    is_short = budget.remaining < 0.0 and sum(stage.evaluations for stage in learning) < 2
    reason = reasons.TOO_SHORT if is_short else usual
    if learning and learning[-1].reason == reasons.INTERRUPTED:
        reason = reasons.INTERRUPTED
    yield Progress.of(model, info, info["evaluations"], rows.total_weight, 1.0, budget, error=0.0, reason=reason)
