"""Fits of models with inducing inputs: a first model where somebody waits, then learning and inference that publish
better ones."""

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.core import reasons
from sparsegp.core.block import BlockSource, MemoryRows, Rows
from sparsegp.core.local import LocalPosterior
from sparsegp.core.posterior import LatentPosterior, SparsePosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.errors import FactorizationError
from sparsegp.fit import affordable
from sparsegp.fit.blocking import arranged
from sparsegp.fit.budget import Budget
from sparsegp.fit.inducing_models import Arranged, Sketcher
from sparsegp.fit.problem import Problem
from sparsegp.fit.progress import INFERENCE, LEARNING, Progress
from sparsegp.fit.start import StopRequest, local_start, propagate_interrupt, start_from_data, until_interrupted
from sparsegp.infer import anytime_run, batch, stopping
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective
from sparsegp.learn.schedules import AUTO, learn
from sparsegp.learn.trace import Deadline, LearningResult, LearningStep, StepCallback, Terms, is_over
from sparsegp.parallel import stepwise

NEXT_TO_NOTHING = 1e-3
MOST_ADDED_NOISE = 1e-4
"""Of the signal: noise above it is not what keeps a block from being factored."""

Outcome = TypeVar("Outcome")
Climb = Callable[[StepCallback], list[LearningResult]]


def models(problem: Problem, rows: Rows, budget: Budget) -> Generator[Progress]:
    """From the first model to the one of all rows."""
    prepared, first = _Preparation(problem, rows, budget), None
    if prepared.wants_first_model:
        first = prepared.first_model()
        yield first
        if first.reason is not None:
            return
        problem, rows = prepared.within_reach()
    problem = problem.settled()
    if problem.starts_locally and affordable.worth_a_local_start(budget):
        problem = prepared.started_locally(problem, rows)
    sketcher = prepared.sketcher(problem, rows)
    arranged_ = sketcher.arranged
    hyper = problem.hyperparameters(arranged_.rows, prepared.inducing(arranged_, first))
    yield from _Course(prepared, sketcher, hyper, first).models()


@dataclass
class _Pace:
    """Counts the steps of a fit, and says when the next model is to be published."""

    budget: Budget
    ratio: float
    on_step: StepCallback | None
    steps: int = 0
    next_publication: float = 0.0

    def counted(self, asks: StepCallback) -> StepCallback:
        def on_step(step: LearningStep) -> bool:
            self.steps += 1
            return asks(step)

        return on_step

    def asked_to_stop(self, step: LearningStep) -> bool:
        return self.on_step is not None and self.on_step(step)

    @property
    def is_due(self) -> bool:
        return self.budget.used >= self.next_publication

    def published(self) -> None:
        self.next_publication = self.ratio * self.budget.used


class _Preparation:
    """What comes before learning: a first model, the rows and the size within reach, a start, blocks, inducing
    inputs."""

    def __init__(self, problem: Problem, rows: Rows, budget: Budget) -> None:
        self.problem, self.rows, self.budget, self.options = problem, rows, budget, problem.steps
        self.rng = problem.rng.spawn(1)[0]
        self.pace = _Pace(budget, self.options.publish_ratio, problem.on_step)
        self.finish_seconds = 0.0

    @property
    def wants_first_model(self) -> bool:
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

    def first_model(self) -> Progress:
        """From the starting values and a sample of the rows, with blocks and inducing inputs of the sample."""
        problem, rows = affordable.sampled(self.problem, self.rows, self._first_rows, self.rng)
        arranged_ = self.arranged(replace(problem, rng=self.rng), rows)
        in_haste = replace(problem, inducing="random") if self._selects else problem
        chosen = in_haste.select_inducing(arranged_.rows.sample.all, self.rng)
        sketcher = Sketcher(arranged_, self._first_rows, self.budget, self.rng)
        hyper = problem.hyperparameters(rows, chosen)
        first = sketcher.model(hyper, [], 1, LEARNING)
        self.finish_seconds = sketcher.finish_seconds
        self.pace.steps = 1
        self.pace.published()
        if self.problem.optimizer is None and first.is_exact and not self._selects:
            return replace(first, stage=INFERENCE, error=0.0, reason=reasons.EXACT)
        return replace(first, reason=reasons.TOO_SHORT) if self.budget.remaining < sketcher.seconds else first

    def within_reach(self) -> tuple[Problem, Rows]:
        """With as many inducing inputs, and rows in blocks, as there is time for."""
        rows, problem = self.rows, affordable.for_all_rows(self.problem.settled(), len(self.rows), self.budget)
        reached = affordable.rows_in_blocks(problem, rows, self.budget, self._first_rows)
        return (problem, rows) if reached >= len(rows) else affordable.sampled(problem, rows, reached, self.rng)

    def started_locally(self, problem: Problem, rows: Rows) -> Problem:
        """Within half of the time that is left for learning; nothing is published before there are blocks.

        Few rows, which are learned whole, need no more than where the choice of the kernel has come. Many rows start
        afresh: from there, learning ended in a worse place on rows without noise.
        """
        known = problem.start.local
        if known is not None and len(rows) <= self.options.few_rows:
            return replace(problem, start=known)
        deadline, asked = self.budget.deadline_of_rest(0.5), StopRequest(problem.on_step)
        n = affordable.rows_to_start_from(rows, self.budget, self._first_rows)
        _, sample = affordable.sampled(problem, rows.sample, n, problem.rng)
        start = local_start(problem, sample.all, self.pace.counted(asked), deadline)
        propagate_interrupt(start.stages, problem)
        # a start that was short of time is no reason not to learn
        return replace(problem, start=start if asked.made else start.going_on())

    def arranged(self, problem: Problem, rows: Rows) -> Arranged:
        n_blocks = problem.wanted_blocks(len(rows))
        late = self.budget.deadline_of_rest(self.budget.options.fractions.blocks)
        kernel, labels, rng = problem.start.kernel, problem.labels, problem.rng
        in_order, blocking = arranged(problem.approx, rows, kernel, n_blocks, labels, rng, lambda: is_over(late))
        return Arranged(problem, in_order, blocking, len(self.rows), self.rows.total_weight)

    def sketcher(self, problem: Problem, rows: Rows) -> Sketcher:
        return Sketcher(self.arranged(problem, rows), self.options.sketch_rows, self.budget, self.rng)

    def inducing(self, arranged_: Arranged, first: Progress | None) -> Tensor:
        rows, problem = arranged_.rows.sample, arranged_.problem
        n = affordable.rows_to_select_from(problem, rows, self.budget, self.rng)
        if n >= len(rows):
            return problem.select_inducing(rows.all, problem.rng)
        if n == 0 and first is not None:
            chosen: Tensor = first.model.inducing
            return chosen[: problem.n_inducing]
        index = problem.rng.choice(len(rows), max(n, 1), replace=False)
        return problem.select_inducing(rows.all.take(torch.from_numpy(np.sort(index))), problem.rng)


class _Course:
    """Learning and inference of arranged rows, from the hyper-parameters of the start."""

    def __init__(
        self, prepared: _Preparation, sketcher: Sketcher, hyper: Hyperparameters, first: Progress | None
    ) -> None:
        self.arranged, self.sketcher, self.hyper, self.first = sketcher.arranged, sketcher, hyper, first
        self.problem, self.rows = self.arranged.problem, self.arranged.rows
        self.budget, self.options, self.rng, self.pace = prepared.budget, prepared.options, prepared.rng, prepared.pace
        self.finish_seconds = prepared.finish_seconds

    def models(self) -> Generator[Progress]:
        learning = yield from self._learned()
        yield from self._inferred(learning)

    def _learned(self) -> Generator[Progress, None, list[LearningResult]]:
        problem, rows, hyper = self.problem, self.rows, self.hyper
        before = list(problem.start.stages)
        if problem.optimizer is None or problem.start.stopped:
            return before
        deadline = self.budget.learning_deadline(len(rows), self.sketcher.seconds or self.finish_seconds)
        optimizer = optimizer_within(deadline, problem, len(rows))
        limits = problem.learning.start.limits(rows.sample.all, problem.start.noise_var)
        schedule = problem.learning.schedules.of(problem.approx, optimizer, rows.n_blocks)

        def climb(report: StepCallback) -> list[LearningResult]:
            on_step = self.pace.counted(lambda step: self.pace.asked_to_stop(step) or report(step))

            terms = Terms(limits, problem.rng, optimizer, on_step, deadline)

            def learned() -> list[LearningResult]:
                return learn(rows, problem.approx, hyper, terms, schedule, problem.checkpoint)

            with linalg.flushed_denormals():
                return until_interrupted(lambda: with_enough_noise(hyper, self.arranged, learned))

        first = hyper.vector()
        results = (yield from self._shown(climb)) if self.options.watched else climb(lambda _: False)
        if hyper.trend is not None and _calls_all_noise(hyper, rows):
            results += self._learned_without_trend(first, climb)
        if deadline is not None:
            self.budget.learned(deadline)
        return before + results

    def _learned_without_trend(self, first: Any, climb: Climb) -> list[LearningResult]:
        """A plane makes the optimum that calls everything else noise easy to fall into: once more without it.

        What was learned before stays if it is better, as it is where there is nothing but a plane.
        """
        hyper, objective = self.hyper, CollapsedObjective(self.rows.sample, self.problem.approx)
        fallen, value, trend = hyper.vector(), objective.value(hyper), hyper.trend
        hyper.load_vector(first)
        start_from_data(hyper, self.rows.sample.all, self.rng)
        hyper.trend = None
        try:
            results = climb(lambda _: False)
        finally:
            hyper.trend = trend
        if objective.value(hyper) < value:
            hyper.load_vector(fallen)
        return results

    def _shown(self, climb: Climb) -> Generator[Progress, None, list[LearningResult]]:
        """Learning with a sketch published now and then."""
        reports = stepwise(climb)
        try:
            while True:
                try:
                    next(reports)
                except StopIteration as end:
                    results: list[LearningResult] = end.value
                    return results
                if self.pace.is_due:
                    yield replace(self.sketcher.model(self.hyper, [], self.pace.steps, LEARNING), error=None)
                    self.pace.published()
        finally:
            reports.close()

    def _inferred(self, learning: list[LearningResult]) -> Generator[Progress]:
        rows, budget, first = self.rows, self.budget, self.first
        fits = budget.pass_seconds(len(rows)) < budget.remaining
        is_part = len(rows) < self.arranged.n_all
        in_pieces = isinstance(rows, MemoryRows) and (is_part or (budget.limited and not self.options.watched))
        if learning and learning[-1].reason == reasons.INTERRUPTED:
            sketch = self.sketcher.model(self.hyper, learning, self.pace.steps, INFERENCE)
            yield replace(sketch, reason=reasons.INTERRUPTED)
        elif in_pieces and (is_part or self.options.exact_pass):
            model = self._with_enough_noise(lambda: self._pieced_model(self.arranged, learning))
            is_less = first is not None and model.rows_seen < first.rows_seen
            yield replace(first, reason=reasons.TIME_IS_UP) if first is not None and is_less else model
        elif self.options.exact_pass and fits:
            yield self._with_enough_noise(lambda: self._exact_model(learning))
        elif self.options.exact_pass and rows.largest_part < len(rows):
            # a pass is the only way to all rows, and there is no time for one
            some = replace(self.arranged, rows=rows.sample)
            yield self._with_enough_noise(lambda: self._pieced_model(some, learning))
        else:
            yield from self._anytime_models(learning)

    def _with_enough_noise(self, attempt: Callable[[], Outcome]) -> Outcome:
        return with_enough_noise(self.hyper, self.arranged, attempt)

    def _pieced_model(self, arranged_: Arranged, learning: list[LearningResult]) -> Progress:
        """All rows, or as many as there is time for: other processes may have started since the cost was measured."""
        started, prior = self.budget.clock(), self.hyper.prior(self.problem.approx)
        seen, n_seen = self._summed(prior, arranged_.rows.sample)
        model = arranged_.of_sums(self.hyper, prior, seen, n_seen)
        info = arranged_.info(learning, prior.Luu.jitter, self.budget.clock() - started)
        part, is_exact = seen.n_rows / arranged_.total, n_seen == arranged_.n_all
        reason, error = (reasons.ONE_PASS, 0.0) if is_exact else (reasons.TIME_IS_UP, None)
        about: dict[str, Any] = {"error": error, "is_exact": is_exact, "reason": reason}
        return Progress.of(model, info, self.pace.steps + 1, seen.n_rows, part, self.budget, **about)

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

    def _exact_model(self, learning: list[LearningResult]) -> Progress:
        arranged_, prior = self.arranged, self.hyper.prior(self.problem.approx)
        state, posterior, found = batch.infer(prior, self.rows)
        model = arranged_.model(self.hyper, posterior, found.log_evidence, state)
        info = arranged_.info(learning, found.jitter, found.seconds)
        return Progress.of(
            model, info, self.pace.steps + 1, arranged_.total, 1.0, self.budget, error=0.0, reason=reasons.ONE_PASS
        )

    def _anytime_models(self, learning: list[LearningResult]) -> Generator[Progress]:
        """Blocks folded in one by one; a model with fewer rows than the one before it is not published."""
        before = self.first
        if learning and (self.options.watched or self.budget.limited):
            before = self._last_sketch(learning)
            yield before
            if before.reason is not None:
                return
        for snapshot in self._run_blocks():
            progress = self._of_snapshot(learning, snapshot)
            if before is not None and progress.rows_seen < before.rows_seen:
                if progress.reason is None:
                    continue
                progress = replace(before, reason=reasons.TIME_IS_UP)
            if progress.reason is None and self.pace.asked_to_stop(_as_step(progress, self.budget)):
                yield replace(progress, reason=reasons.STOPPED)
                return
            yield progress

    def _last_sketch(self, learning: list[LearningResult]) -> Progress:
        """The first model after learning; the only one if it has all rows, or if there is no time for more."""
        sketch = self.sketcher.model(self.hyper, learning, self.pace.steps, INFERENCE)
        if sketch.is_exact:
            return replace(sketch, error=0.0, reason=reasons.EXACT)
        return replace(sketch, reason=reasons.TIME_IS_UP) if self.budget.remaining < self.sketcher.seconds else sketch

    def _run_blocks(self) -> Iterator[anytime_run.Snapshot]:
        """One epoch at the most, from the rows' own blocks or from random ones; exact after its last step."""
        options, rows, approx = self.options, self.rows, self.problem.approx
        prior = self.hyper.prior(approx)
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

    def _of_snapshot(self, learning: list[LearningResult], snapshot: anytime_run.Snapshot) -> Progress:
        arranged_, prior = self.arranged, snapshot.posterior.prior
        is_exact = snapshot.reason == reasons.EXACT
        n_seen = None if is_exact else round(snapshot.fraction * arranged_.n_all)
        state = batch.BatchState(prior, snapshot.state.seen)
        model = arranged_.model(self.hyper, _lasting(snapshot, self.rows), snapshot.log_evidence, state, n_seen)
        return Progress.of(
            model,
            arranged_.info(learning, prior.Luu.jitter, snapshot.seconds),
            self.pace.steps + snapshot.step,
            snapshot.rows_seen,
            snapshot.fraction,
            self.budget,
            error=snapshot.error if snapshot.error is not None and math.isfinite(snapshot.error) else None,
            is_exact=is_exact,
            reason=snapshot.reason,
        )


def optimizer_within(deadline: Deadline | None, problem: Problem, n_rows: int) -> str:
    """Evaluations by blocks are long: where the time has too few, steps from single blocks (decisions/0010).

    A checkpoint keeps evaluations of the whole objective, so it goes with those.
    """
    assert problem.optimizer is not None
    if problem.optimizer != AUTO or deadline is None or not problem.approx.by_block or problem.checkpoint is not None:
        return problem.optimizer
    enough = deadline.allows(problem.learning.schedules.blocks.stages(n_rows)[-1], problem.steps.enough_evaluations)
    return "lbfgs" if enough else "ngd"


def with_enough_noise(hyper: Hyperparameters, arranged_: Arranged, attempt: Callable[[], Outcome]) -> Outcome:
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
