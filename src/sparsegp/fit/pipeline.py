"""The one way from a problem to a model: a first model at once where somebody waits, then learning and inference that
publish better ones, within a budget, from rows wherever they are."""

import copy
import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.calibration.calibration import Calibration
from sparsegp.core import reasons
from sparsegp.core.approximations import Family
from sparsegp.core.block import Block, BlockSource, MemoryRows, Rows
from sparsegp.core.evidence import uncollapsed_objective
from sparsegp.core.local import LocalPosterior, make_posterior
from sparsegp.core.posterior import InducingPosterior, LatentPosterior, SparsePosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.reasons import INTERRUPTED
from sparsegp.core.statistics import BlockStatistics
from sparsegp.errors import FactorizationError, InputError
from sparsegp.fit import affordable, committees, dense_models, learned_noise
from sparsegp.fit.blocking import Blocking, arranged
from sparsegp.fit.budget import Budget
from sparsegp.fit.committee_model import CommitteeModel
from sparsegp.fit.kept import KeptRows
from sparsegp.fit.model import Found, LearnedNoiseModel, Model
from sparsegp.fit.problem import Problem
from sparsegp.fit.start import StopRequest, local_start, until_interrupted
from sparsegp.infer import anytime_run, batch, stopping
from sparsegp.infer.anytime import Reading
from sparsegp.kernels import Stationary
from sparsegp.learn import start_values
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective
from sparsegp.learn.schedules import AUTO, learn
from sparsegp.learn.trace import Deadline, LearningResult, LearningStep, is_over
from sparsegp.parallel import stepwise

LEARNING = "learning"
INFERENCE = "inference"
ONE_PASS = "one pass over all rows: the result is exact"
STOPPED = "stopped by a callback"
NEXT_TO_NOTHING = 1e-3
MOST_ADDED_NOISE = 1e-4
"""Of the signal: noise above it is not what keeps a block from being factored."""

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Progress:
    """How a fit stands after a published step.

    `seconds` is the time worked since the call, without that of the reader and of scoring. `rows_seen` and `fraction`
    say how many rows, and which part of all, are behind the present posterior. `log_evidence` is the estimate for all
    rows. `error` is the sampling error that unseen rows leave in the predictive mean, relative to the predictive std,
    at the worst of some probes (None: not known yet). `scores` are rmse and nlpd on the validation set. `stage` is
    "learning" or "inference". The last Progress has a `reason`. `model` and `info` are what the fit has come to.
    """

    step: int
    seconds: float
    rows_seen: float
    fraction: float
    log_evidence: float
    error: float | None
    stage: str
    scores: dict[str, float] = field(default_factory=dict)
    reason: str | None = None
    is_exact: bool = field(default=False, repr=False)
    model: Any = field(default=None, repr=False, compare=False)
    info: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    calibration: Calibration | None = field(default=None, repr=False, compare=False)


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
        return _committee(problem, rows, budget)
    if problem.noise is not None:
        return _with_learned_noise(problem, rows, budget)
    if problem.approx.family is Family.INDUCING:
        return _Fit(problem, rows, budget).models()
    return _dense(problem.settled(), rows, budget)


def _dense(problem: Problem, rows: Rows, budget: Budget) -> Generator[Progress]:
    """Models without statistics: learning ends early enough for the posterior, and there is one model to publish."""
    deadline = budget.learning_deadline(0, (1.0 - problem.steps.dense_fraction) * budget.remaining)
    model, learning, info = dense_models.fit(problem, dense_models.in_memory(problem.approx, rows), deadline)
    _propagate_interrupt(learning, problem)
    reason = _reason(learning, budget, ONE_PASS)
    yield _progress(model, info, info["evaluations"], rows.total_weight, 1.0, budget, error=0.0, reason=reason)


def _committee(problem: Problem, rows: Rows, budget: Budget) -> Generator[Progress]:
    """All experts are needed for a forecast: one model to publish."""
    model, learning, info = committees.fit(problem, rows, budget)
    reason = _reason(learning, budget, learned_noise.ALL_ROWS)
    yield _progress(model, info, info["evaluations"], rows.total_weight, 1.0, budget, error=0.0, reason=reason)


def _reason(learning: list[LearningResult], budget: Budget, usual: str) -> str:
    """Why a fit with a single model ended."""
    if learning and learning[-1].reason == INTERRUPTED:
        return INTERRUPTED
    is_short = budget.remaining < 0.0 and sum(stage.evaluations for stage in learning) < 2
    return reasons.TOO_SHORT if is_short else usual


def _with_learned_noise(problem: Problem, rows: Rows, budget: Budget) -> Generator[Progress]:
    """Learned noise needs all rows for its posterior: one model to publish."""
    model, info = learned_noise.fit(problem, rows, budget)
    reason = learned_noise.ALL_ROWS
    yield _progress(model, info, info["evaluations"], rows.total_weight, 1.0, budget, error=0.0, reason=reason)


def _progress(
    model: Model | LearnedNoiseModel | CommitteeModel,
    info: dict[str, Any],
    step: int,
    rows_seen: float,
    fraction: float,
    budget: Budget,
    *,
    stage: str = INFERENCE,
    error: float | None = None,
    is_exact: bool = True,
    reason: str | None = None,
) -> Progress:
    return Progress(
        step,
        budget.used,
        rows_seen,
        fraction,
        model.log_evidence,
        error,
        stage,
        reason=reason,
        is_exact=is_exact,
        model=model,
        info=info,
    )


def budget_report(budget: Budget, rows_seen: float, fraction: float, reason: str | None) -> dict[str, Any]:
    """What `info_["budget"]` says."""
    seen = {"rows_seen": rows_seen, "fraction": fraction, "reason": reason}
    return {"asked": budget.asked, "used": budget.used, **seen}


def _propagate_interrupt(learning: list[LearningResult], problem: Problem) -> None:
    """A reader who pressed Ctrl-C wants to hear of it; `fit` keeps the model."""
    if problem.steps.watched and learning and learning[-1].reason == INTERRUPTED:
        raise KeyboardInterrupt


def starting_hyperparameters(problem: Problem, rows: Rows, chosen: Tensor) -> Hyperparameters:
    # As many inducing inputs as rows: the approximation is exact already and moving them gains nothing.
    worthwhile = problem.learn_inducing and chosen.shape[0] < len(rows)
    start, learned = problem.start, {"learn_noise": rows.least_noise_var is None, "learn_inducing": worthwhile}
    return Hyperparameters(start.kernel, start.noise_var, chosen, **learned, trend=problem.trend)


def optimizer_within(deadline: Deadline | None, problem: Problem, n_rows: int) -> str:
    """Evaluations by blocks are long: where the time has too few, steps from single blocks (decisions/0010).

    A checkpoint keeps evaluations of the whole objective, so it goes with those.
    """
    assert problem.optimizer is not None
    if problem.optimizer != AUTO or deadline is None or not problem.approx.by_block or problem.checkpoint is not None:
        return problem.optimizer
    enough = deadline.allows(problem.learning.schedules.blocks.stages(n_rows)[-1], problem.steps.enough_evaluations)
    return "lbfgs" if enough else "ngd"


@dataclass(frozen=True)
class _Arranged:
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


def learning_report(learning: list[LearningResult], jitter: float, inference_seconds: float) -> dict[str, Any]:
    return {
        "jitter": jitter,
        "inference_seconds": inference_seconds,
        "learning_seconds": sum(stage.seconds for stage in learning),
        "evaluations": sum(stage.evaluations for stage in learning),
        "stages": learning,
    }


class _Sketcher:
    """Models from about `most_rows` of the rows (whole blocks where there are blocks), chosen once, for any
    hyper-parameters. Costs are measured: `seconds` of the last sketch, and the seconds a row in the budget."""

    def __init__(self, arranged_: _Arranged, most_rows: int, budget: Budget, rng: np.random.Generator) -> None:
        self.arranged, self.budget = arranged_, budget
        rows, by_block = arranged_.rows, arranged_.problem.approx.by_block
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
        found = _of_statistics(self.arranged, own, prior, seen, len(self.rows))
        info = self.arranged.info(learning, prior.Luu.jitter, clock() - started)
        self.seconds = clock() - started
        self.finish_seconds = self.seconds - summing
        part, is_exact = seen.n_rows / self.arranged.total, len(self.rows) == self.arranged.n_all
        return _progress(found, info, step, seen.n_rows, part, self.budget, stage=stage, is_exact=is_exact)


def _of_statistics(
    arranged_: _Arranged, hyper: Hyperparameters, prior: SparsePrior, seen: BlockStatistics, n_seen: int
) -> Model:
    """The model of `n_seen` rows, which speaks for all of them unless the reading is that of the rows seen."""
    is_exact = n_seen == arranged_.n_all
    of_all = seen if is_exact else arranged_.total / seen.n_rows * seen
    is_seen = arranged_.problem.steps.reading is Reading.SEEN
    q = InducingPosterior.from_statistics(seen if is_seen else of_all)
    state = batch.BatchState(prior, seen)
    posterior, evidence = _posterior(prior, q, arranged_.rows), uncollapsed_objective(of_all, q)
    return arranged_.model(hyper, posterior, evidence, state, None if is_exact else n_seen)


def _posterior(prior: SparsePrior, q: InducingPosterior, rows: Rows) -> LatentPosterior:
    return make_posterior(prior, q, rows.store()) if prior.approx.is_local else SparsePosterior(prior, q)


class _Fit:
    """One fit of a model with inducing inputs."""

    def __init__(self, problem: Problem, rows: Rows, budget: Budget) -> None:
        self.problem, self.rows, self.budget, self.options = problem, rows, budget, problem.steps
        self.rng = problem.rng.spawn(1)[0]
        self.steps = 0
        self.next_publication = 0.0
        self.finish_seconds = 0.0

    def models(self) -> Generator[Progress]:
        first, problem, rows = None, self.problem, self.rows
        if self._wants_first_model:
            first = self._first_model()
            yield first
            if first.reason is not None:
                return
            problem = affordable.for_all_rows(problem.settled(), len(rows), self.budget)
            reached = affordable.rows_in_blocks(problem, rows, self.budget, self._first_rows)
            if reached < len(rows):
                problem, rows = affordable.sampled(problem, rows, reached, self.rng)
        problem = problem.settled()
        if problem.starts_locally and affordable.worth_a_local_start(self.budget):
            problem = self._started_locally(problem, rows)
        arranged_ = self._arranged(problem, rows)
        sketcher = _Sketcher(arranged_, self.options.sketch_rows, self.budget, self.rng)
        hyper = starting_hyperparameters(problem, arranged_.rows, self._inducing(arranged_, first))
        learning = yield from self._learned(arranged_, hyper, sketcher)
        yield from self._inferred(arranged_, hyper, learning, sketcher, first)

    @property
    def _wants_first_model(self) -> bool:
        if self.budget.limited:
            return True
        return self.options.watched and (self.problem.optimizer is not None or len(self.rows) > self.options.first_rows)

    @property
    def _first_rows(self) -> int:
        first = self.options.first_rows
        return max(first, 2 * self.problem.n_inducing) if self._selects else first

    @property
    def _selects(self) -> bool:
        """Whether inducing inputs are chosen here, not given."""
        return isinstance(self.problem.inducing, str)

    def _arranged(self, problem: Problem, rows: Rows) -> _Arranged:
        n_blocks = problem.wanted_blocks(len(rows))
        late = self.budget.deadline_of_rest(affordable.FRACTIONS.blocks)
        kernel, labels, rng = problem.start.kernel, problem.labels, problem.rng
        in_order, blocking = arranged(problem.approx, rows, kernel, n_blocks, labels, rng, lambda: is_over(late))
        return _Arranged(problem, in_order, blocking, len(self.rows), self.rows.total_weight)

    def _first_model(self) -> Progress:
        """From the starting values and a sample of the rows, with blocks and inducing inputs of the sample."""
        problem, rows = affordable.sampled(self.problem, self.rows, self._first_rows, self.rng)
        arranged_ = self._arranged(replace(problem, rng=self.rng), rows)
        in_haste = replace(problem, inducing="random") if self._selects else problem
        chosen = affordable.select_inducing(in_haste, arranged_.rows.sample, self.rng)
        sketcher = _Sketcher(arranged_, self._first_rows, self.budget, self.rng)
        hyper = starting_hyperparameters(problem, rows, chosen)
        first = sketcher.model(hyper, [], 1, LEARNING)
        self.finish_seconds = sketcher.finish_seconds
        self.steps = 1
        self._schedule()
        if self.problem.optimizer is None and first.is_exact and not self._selects:
            return replace(first, stage=INFERENCE, error=0.0, reason=anytime_run.EXACT)
        return replace(first, reason=reasons.TOO_SHORT) if self.budget.remaining < sketcher.seconds else first

    def _schedule(self) -> None:
        self.next_publication = self.options.publish_ratio * self.budget.used

    def _started_locally(self, problem: Problem, rows: Rows) -> Problem:
        """Within half of the time that is left for learning; nothing is published before there are blocks.

        Few rows, which are learned whole, need no more than where the choice of the kernel has come. Many rows start
        afresh: from there, learning ended in a worse place on rows without noise.
        """
        known = problem.start.local
        if known is not None and len(rows) <= self.options.few_rows:
            return replace(problem, start=known)
        deadline, asked = self.budget.deadline_of_rest(0.5), StopRequest(problem.on_step)

        def on_step(step: LearningStep) -> bool:
            self.steps += 1
            return asked(step)

        n = affordable.rows_to_start_from(rows, self.budget, self._first_rows)
        _, sample = affordable.sampled(problem, rows.sample, n, problem.rng)
        start = local_start(problem, sample.all, on_step, deadline)
        _propagate_interrupt(list(start.stages), problem)
        # a start that was short of time is no reason not to learn
        return replace(problem, start=start if asked.made else start.going_on())

    def _asked_to_stop(self, step: LearningStep) -> bool:
        return self.problem.on_step is not None and self.problem.on_step(step)

    def _inducing(self, arranged_: _Arranged, first: Progress | None) -> Tensor:
        rows, problem = arranged_.rows.sample, arranged_.problem
        n = affordable.rows_to_select_from(problem, rows, self.budget, self.rng)
        if n >= len(rows):
            return affordable.select_inducing(problem, rows, problem.rng)
        if n == 0 and first is not None:
            chosen: Tensor = first.model.inducing
            return chosen[: problem.n_inducing]
        index = problem.rng.choice(len(rows), max(n, 1), replace=False)
        return affordable.select_inducing(problem, rows.subset(torch.from_numpy(np.sort(index))), problem.rng)

    def _learned(
        self, arranged_: _Arranged, hyper: Hyperparameters, sketcher: _Sketcher
    ) -> Generator[Progress, None, list[LearningResult]]:
        problem, rows = arranged_.problem, arranged_.rows
        before = list(problem.start.stages)
        if problem.optimizer is None or problem.start.stopped:
            return before
        deadline = self.budget.learning_deadline(len(rows), sketcher.seconds or self.finish_seconds)
        optimizer = optimizer_within(deadline, problem, len(rows))
        limits = problem.learning.start.limits(rows.sample.all, problem.start.noise_var)
        schedule = problem.learning.schedules.of(problem.approx, optimizer, rows.n_blocks)

        def climb(report: Callable[[LearningStep], bool]) -> list[LearningResult]:
            def on_step(step: LearningStep) -> bool:
                self.steps += 1
                return self._asked_to_stop(step) or report(step)

            def learned() -> list[LearningResult]:
                return learn(
                    rows,
                    problem.approx,
                    hyper,
                    limits,
                    optimizer=optimizer,
                    rng=problem.rng,
                    schedule=schedule,
                    on_step=on_step,
                    deadline=deadline,
                    checkpoint=problem.checkpoint,
                )

            with linalg.flushed_denormals():
                return until_interrupted(lambda: _with_enough_noise(hyper, arranged_, learned))

        first = hyper.vector()
        results = (yield from self._shown(climb, hyper, sketcher)) if self.options.watched else climb(lambda _: False)
        if hyper.trend is not None and _calls_all_noise(hyper, rows):
            results += self._learned_without_trend(arranged_, hyper, first, climb)
        if deadline is not None:
            self.budget.learned(deadline)
        return before + results

    def _learned_without_trend(
        self,
        arranged_: _Arranged,
        hyper: Hyperparameters,
        first: Any,
        climb: Callable[[Callable[[LearningStep], bool]], list[LearningResult]],
    ) -> list[LearningResult]:
        """A plane makes the optimum that calls everything else noise easy to fall into: once more without it.

        What was learned before stays if it is better, as it is where there is nothing but a plane.
        """
        objective = CollapsedObjective(arranged_.rows.sample, arranged_.problem.approx)
        fallen, value, trend = hyper.vector(), objective.value(hyper), hyper.trend
        hyper.load_vector(first)
        _start_from_data(hyper, arranged_.rows.sample.all, self.rng)
        hyper.trend = None
        try:
            results = climb(lambda _: False)
        finally:
            hyper.trend = trend
        if objective.value(hyper) < value:
            hyper.load_vector(fallen)
        return results

    def _shown(
        self,
        climb: Callable[[Callable[[LearningStep], bool]], list[LearningResult]],
        hyper: Hyperparameters,
        sketcher: _Sketcher,
    ) -> Generator[Progress, None, list[LearningResult]]:
        """Learning with a sketch published now and then."""
        reports = stepwise(climb)
        try:
            while True:
                try:
                    next(reports)
                except StopIteration as end:
                    results: list[LearningResult] = end.value
                    return results
                if self.budget.used >= self.next_publication:
                    yield replace(sketcher.model(hyper, [], self.steps, LEARNING), error=None)
                    self._schedule()
        finally:
            reports.close()

    def _inferred(
        self,
        arranged_: _Arranged,
        hyper: Hyperparameters,
        learning: list[LearningResult],
        sketcher: _Sketcher,
        first: Progress | None,
    ) -> Generator[Progress]:
        rows, budget = arranged_.rows, self.budget
        fits = budget.pass_seconds(len(rows)) < budget.remaining
        is_part = len(rows) < arranged_.n_all
        in_pieces = isinstance(rows, MemoryRows) and (is_part or (budget.limited and not self.options.watched))
        if learning and learning[-1].reason == INTERRUPTED:
            yield replace(sketcher.model(hyper, learning, self.steps, INFERENCE), reason=INTERRUPTED)
        elif in_pieces and (is_part or self.options.exact_pass):
            model = _with_enough_noise(hyper, arranged_, lambda: self._pieced_model(arranged_, hyper, learning))
            is_less = first is not None and model.rows_seen < first.rows_seen
            yield replace(first, reason=anytime_run.TIME_IS_UP) if first is not None and is_less else model
        elif self.options.exact_pass and fits:
            yield _with_enough_noise(hyper, arranged_, lambda: self._exact_model(arranged_, hyper, learning))
        elif self.options.exact_pass and rows.largest_part < len(rows):
            # a pass is the only way to all rows, and there is no time for one
            some = replace(arranged_, rows=rows.sample)
            yield _with_enough_noise(hyper, some, lambda: self._pieced_model(some, hyper, learning))
        else:
            yield from self._anytime_models(arranged_, hyper, learning, sketcher, first)

    def _pieced_model(self, arranged_: _Arranged, hyper: Hyperparameters, learning: list[LearningResult]) -> Progress:
        """All rows, or as many as there is time for: other processes may have started since the cost was measured."""
        started, prior = self.budget.clock(), hyper.prior(arranged_.problem.approx)
        seen, n_seen = self._summed(prior, arranged_.rows.sample)
        model = _of_statistics(arranged_, hyper, prior, seen, n_seen)
        info = arranged_.info(learning, prior.Luu.jitter, self.budget.clock() - started)
        part, is_exact = seen.n_rows / arranged_.total, n_seen == arranged_.n_all
        reason, error = (ONE_PASS, 0.0) if is_exact else (anytime_run.TIME_IS_UP, None)
        about: dict[str, Any] = {"error": error, "is_exact": is_exact, "reason": reason}
        return _progress(model, info, self.steps + 1, seen.n_rows, part, self.budget, **about)

    def _summed(self, prior: SparsePrior, rows: MemoryRows) -> tuple[BlockStatistics, int]:
        """Statistics of random pieces of the rows, added up until all are seen or the next would end too late."""
        budget, by_block = self.budget, prior.approx.by_block
        n_pieces = math.ceil(len(rows) / max(budget.piece_rows(), self.options.fewest_block_rows))
        total, n_seen = BlockStatistics.zero(prior), 0
        for piece in rows.pieces(n_pieces, self.rng, by_block=by_block):
            if n_seen and not budget.allows(len(piece) * budget.row_seconds + self.finish_seconds):
                break
            started = budget.clock()
            total = total + batch.statistics_of(prior, piece)
            budget.row_seconds = (budget.clock() - started) / len(piece)
            n_seen += len(piece)
        return total, n_seen

    def _exact_model(self, arranged_: _Arranged, hyper: Hyperparameters, learning: list[LearningResult]) -> Progress:
        prior = hyper.prior(arranged_.problem.approx)
        state, posterior, found = batch.infer(prior, arranged_.rows)
        model = arranged_.model(hyper, posterior, found.log_evidence, state)
        info = arranged_.info(learning, found.jitter, found.seconds)
        return _progress(model, info, self.steps + 1, arranged_.total, 1.0, self.budget, error=0.0, reason=ONE_PASS)

    def _anytime_models(
        self,
        arranged_: _Arranged,
        hyper: Hyperparameters,
        learning: list[LearningResult],
        sketcher: _Sketcher,
        before: Progress | None,
    ) -> Generator[Progress]:
        """Blocks folded in one by one; a model with fewer rows than the one before it is not published."""
        if learning and (self.options.watched or self.budget.limited):
            before = self._last_sketch(hyper, learning, sketcher)
            yield before
            if before.reason is not None:
                return
        for snapshot in self._run_blocks(arranged_, hyper):
            progress = self._of_snapshot(arranged_, hyper, learning, snapshot)
            if before is not None and progress.rows_seen < before.rows_seen:
                if progress.reason is None:
                    continue
                progress = replace(before, reason=anytime_run.TIME_IS_UP)
            if progress.reason is None and self._asked_to_stop(_as_step(progress, self.budget)):
                yield replace(progress, reason=STOPPED)
                return
            yield progress

    def _last_sketch(self, hyper: Hyperparameters, learning: list[LearningResult], sketcher: _Sketcher) -> Progress:
        """The first model after learning; the only one if it has all rows, or if there is no time for more."""
        sketch = sketcher.model(hyper, learning, self.steps, INFERENCE)
        if sketch.is_exact:
            return replace(sketch, error=0.0, reason=anytime_run.EXACT)
        return replace(sketch, reason=anytime_run.TIME_IS_UP) if self.budget.remaining < sketcher.seconds else sketch

    def _run_blocks(self, arranged_: _Arranged, hyper: Hyperparameters) -> Iterator[anytime_run.Snapshot]:
        """One epoch at the most, from the rows' own blocks or from random ones; exact after its last step."""
        options, rows, approx = self.options, arranged_.rows, arranged_.problem.approx
        prior = hyper.prior(approx)
        usual = len(rows) // options.usual_steps
        block_rows = min(options.most_block_rows, max(options.fewest_block_rows, usual))
        source = rows.draws(block_rows, self.rng, by_block=approx.by_block)
        run_options = anytime_run.Options(
            blocks_per_step=source.per_step,
            reading=options.reading,
            seconds=max(self.budget.remaining, 1e-9) if self.budget.limited else None,
            tolerance=options.stop_error,
        )
        wanted = options.watched or options.stop_error is not None
        probes = self._probes(prior, source) if wanted else None
        return anytime_run.run(prior, source, run_options, rng=self.rng, probes=probes, clock=self.budget.clock)

    def _probes(self, prior: SparsePrior, source: BlockSource) -> stopping.ProbePoints:
        """Some training inputs, from few blocks, because local models have to prepare every block they visit."""
        order = self.rng.permutation(source.n_blocks).tolist()
        filled = [k for k in order if source.sizes[k] > 0][: self.options.probed_blocks]
        parts = [(k, source.block(k).take(slice(0, self.options.n_probes // len(filled)))) for k in filled]
        labels = torch.cat([torch.full((len(part),), k) for k, part in parts])
        noise = torch.cat([prior.row_noise(part) for _, part in parts])
        X = torch.cat([part.X for _, part in parts])
        return stopping.ProbePoints(X, labels if prior.approx.is_local else None, noise)

    def _of_snapshot(
        self,
        arranged_: _Arranged,
        hyper: Hyperparameters,
        learning: list[LearningResult],
        snapshot: anytime_run.Snapshot,
    ) -> Progress:
        prior = snapshot.posterior.prior
        is_exact = snapshot.reason == anytime_run.EXACT
        n_seen = None if is_exact else round(snapshot.fraction * arranged_.n_all)
        state = batch.BatchState(prior, snapshot.state.seen)
        model = arranged_.model(hyper, _lasting(snapshot, arranged_.rows), snapshot.log_evidence, state, n_seen)
        return _progress(
            model,
            arranged_.info(learning, prior.Luu.jitter, snapshot.seconds),
            self.steps + snapshot.step,
            snapshot.rows_seen,
            snapshot.fraction,
            self.budget,
            error=snapshot.error if snapshot.error is not None and math.isfinite(snapshot.error) else None,
            is_exact=is_exact,
            reason=snapshot.reason,
        )


def _start_from_data(hyper: Hyperparameters, block: Block, rng: np.random.Generator) -> None:
    """Values of a kernel that was given by its name, from the rows as they are."""
    kernel = hyper.kernel
    if not isinstance(kernel, Stationary) or not kernel.log_lengthscales.requires_grad:
        return
    lengthscales = torch.as_tensor(start_values.median_lengthscales(block.X, rng, kernel.groups), dtype=torch.float64)
    if lengthscales.shape == kernel.log_lengthscales.shape:
        kernel.log_lengthscales.data = lengthscales.log() - kernel.units.log()
        kernel.log_variance.data = torch.full_like(kernel.log_variance, math.log(block.target_variance))
        if hyper.log_noise_var.requires_grad:
            noise_var = start_values.neighbour_noise_var(block.X, block.y, rng)
            hyper.log_noise_var.data = torch.full_like(hyper.log_noise_var, math.log(noise_var))


def _with_enough_noise(hyper: Hyperparameters, arranged_: _Arranged, attempt: Callable[[], Outcome]) -> Outcome:
    """What the attempt gives, with ten times the noise again where a block of rows cannot be factored with less.

    The residual of a block has the rounding errors of the signal, and noise that was learned from neighbourhoods or
    other blocks may be smaller than these.
    """
    learns = arranged_.problem.approx.by_block and hyper.log_noise_var.requires_grad
    while True:
        try:
            return attempt()
        except FactorizationError:
            if not learns or _signal(hyper, arranged_.rows) * MOST_ADDED_NOISE < float(hyper.noise_var):
                raise
            hyper.log_noise_var.data += math.log(10.0)


def _signal(hyper: Hyperparameters, rows: Rows) -> float:
    with torch.no_grad():
        return float(hyper.kernel.diagonal(rows.sample.all.X[:1].to(torch.float64)))


def _calls_all_noise(hyper: Hyperparameters, rows: Rows) -> bool:
    """Whether next to nothing is left for the kernel."""
    return _signal(hyper, rows) < NEXT_TO_NOTHING * float(hyper.noise_var)


def _lasting(snapshot: anytime_run.Snapshot, rows: Rows) -> LatentPosterior:
    """A local posterior refers to the rows themselves and keeps the blocks it has prepared; others, when the run is
    over, prepare for many predictions."""
    posterior = snapshot.posterior
    if isinstance(posterior, LocalPosterior):
        return replace(posterior, rows=rows.store())
    return posterior if snapshot.reason is None else SparsePosterior(posterior.prior, snapshot.q)


def _as_step(progress: Progress, budget: Budget) -> LearningStep:
    return LearningStep(progress.log_evidence, max(1, round(progress.rows_seen)), progress.step, budget.used)
