"""A fit in steps: a first model at once, then learning and inference that publish better ones, within a budget."""

from collections.abc import Callable, Generator
from dataclasses import replace

import torch

from sparsegp import linalg
from sparsegp.approximations import Family
from sparsegp.engines import anytime_run, batch
from sparsegp.estimators import families
from sparsegp.estimators.families import INTERRUPTED, Fitted, Problem
from sparsegp.estimators.incoming.blocking import Blocking
from sparsegp.estimators.stepping import reach
from sparsegp.estimators.stepping.anytime_inference import Outcome, Plan, run_blocks
from sparsegp.estimators.stepping.budget import Budget
from sparsegp.estimators.stepping.sketches import INFERENCE, LEARNING, Published, Sketcher
from sparsegp.estimators.stepping.stepwise import stepwise
from sparsegp.estimators.tasks import Task
from sparsegp.learning.deadline import Deadline
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.progressive import AUTO, BLOCKS
from sparsegp.learning.recorder import LearningResult, LearningStep
from sparsegp.prior import SparsePrior

FIRST_ROWS = 4096
SKETCH_ROWS = 8192
PUBLISH_RATIO = 1.3
DENSE_SHARE = 0.7
SUBSET_SHARE = 0.7
ENOUGH_EVALUATIONS = 20

ONE_PASS = "one pass over all rows: the result is exact"
STOPPED = "stopped by a callback"


def fit_in_steps(task: Task, plan: Plan, budget: Budget) -> Generator[Published]:
    """Models that get better; the last one has a reason."""
    if task.row.family is Family.INDUCING:
        return _Fit(task, plan, budget).models()
    return _dense(task, plan, budget)


def _dense(task: Task, plan: Plan, budget: Budget) -> Generator[Published]:
    """Models without statistics: learning ends early enough for the posterior, and there is one model to publish."""
    problem, blocking = task.arranged()
    if (deadline := budget.learning_deadline(0, (1.0 - DENSE_SHARE) * budget.remaining)) is not None:
        problem = replace(problem, deadline=deadline)
    fitted = families.fit(problem)
    _propagate_interrupt(fitted.info["stages"], plan)
    steps, rows = fitted.info["evaluations"], task.block.n_rows
    yield Published(fitted, blocking, steps, rows, 1.0, INFERENCE, 0.0, True, _dense_reason(fitted, budget))


def _dense_reason(fitted: Fitted, budget: Budget) -> str:
    stages = fitted.info["stages"]
    if stages and stages[-1].reason == INTERRUPTED:
        return INTERRUPTED
    return anytime_run.TOO_SHORT if budget.remaining < 0.0 and fitted.info["evaluations"] < 2 else ONE_PASS


def _propagate_interrupt(learning: list[LearningResult], plan: Plan) -> None:
    """A reader who pressed Ctrl-C wants to hear of it; `fit` keeps the model."""
    if plan.watched and learning and learning[-1].reason == INTERRUPTED:
        raise KeyboardInterrupt


class _Fit:
    """One fit of a model with inducing inputs."""

    def __init__(self, task: Task, plan: Plan, budget: Budget) -> None:
        self.task, self.plan, self.budget = task, plan, budget
        self.rng = task.rng.spawn(1)[0]
        self.steps = 0
        self.next_publication = 0.0
        self.select_row_seconds = 0.0

    def models(self) -> Generator[Published]:
        first, task = None, self.task
        if self._wants_first_model:
            first = self._first_model()
            yield first
            if first.reason is not None:
                return
            reached = reach.reachable_rows(task, self.budget, self._first_rows)
            task = task if reached == len(task.block) else task.sample(reached, self.rng)
        if task.scouts and reach.worth_scouting(self.budget):
            task = self._scouted(task)
        problem, blocking = task.arranged()
        sketcher = self._sketcher(problem, blocking, SKETCH_ROWS)
        hyper = families.starting_hyperparameters(problem, self._inducing(problem, first))
        learning = yield from self._learned(problem, hyper, sketcher)
        yield from self._inferred(problem, hyper, learning, sketcher, first)

    @property
    def _wants_first_model(self) -> bool:
        if self.budget.limited:
            return True
        return self.plan.watched and (self.task.optimizer is not None or len(self.task.block) > FIRST_ROWS)

    @property
    def _first_rows(self) -> int:
        return max(FIRST_ROWS, 2 * self.task.n_inducing) if isinstance(self.task.inducing, str) else FIRST_ROWS

    def _sketcher(self, problem: Problem, blocking: Blocking | None, most_rows: int) -> Sketcher:
        return Sketcher(problem, blocking, most_rows, self.task.block, self.plan.reading, self.budget, self.rng)

    def _first_model(self) -> Published:
        """From the starting values and a sample of the rows, with blocks and inducing inputs of the sample."""
        problem, blocking = self.task.sample(self._first_rows, self.rng).arranged()
        started = self.budget.clock()
        chosen = families.select(problem)
        self.select_row_seconds = (self.budget.clock() - started) / len(problem.rows)
        sketcher = self._sketcher(problem, blocking, self._first_rows)
        first = sketcher.model(families.starting_hyperparameters(problem, chosen), [], 1, LEARNING)
        self.steps = 1
        self._schedule()
        if self.task.optimizer is None and first.is_exact:
            return replace(first, stage=INFERENCE, error=0.0, reason=anytime_run.EXACT)
        return replace(first, reason=anytime_run.TOO_SHORT) if self.budget.remaining < sketcher.seconds else first

    def _schedule(self) -> None:
        self.next_publication = PUBLISH_RATIO * self.budget.used

    def _scouted(self, task: Task) -> Task:
        """Within half of the time that is left for learning; nothing is published before there are blocks."""
        until, asked = self.budget.used + 0.5 * self.budget.remaining, False

        def on_step(step: LearningStep) -> bool:
            nonlocal asked
            self.steps += 1
            asked = asked or self._asked_to_stop(step)
            return asked or self.budget.used > until

        task = task.scouted(on_step)
        _propagate_interrupt(list(task.start.stages), self.plan)
        # a start that was short of time is no reason not to learn
        return task if asked else replace(task, start=task.start.going_on())

    def _asked_to_stop(self, step: LearningStep) -> bool:
        return self.task.on_step is not None and self.task.on_step(step)

    def _inducing(self, problem: Problem, first: Published | None) -> torch.Tensor:
        if first is None:
            return families.select(problem)
        return reach.select_within(
            problem, self.budget, first.fitted.inducing, self._first_rows, self.select_row_seconds
        )

    def _learned(
        self, problem: Problem, hyper: Hyperparameters, sketcher: Sketcher
    ) -> Generator[Published, None, list[LearningResult]]:
        if problem.optimizer is None:
            return []
        deadline = self.budget.learning_deadline(len(problem.rows), sketcher.seconds)
        problem = replace(problem, deadline=deadline, optimizer=_optimizer(problem, deadline))

        def learn(report: Callable[[LearningStep], bool]) -> list[LearningResult]:
            def on_step(step: LearningStep) -> bool:
                self.steps += 1
                return self._asked_to_stop(step) or report(step)

            with linalg.flushed_denormals():
                return families.learn_hyperparameters(replace(problem, on_step=on_step), hyper)

        results = (yield from self._shown(learn, hyper, sketcher)) if self.plan.watched else learn(lambda _: False)
        if deadline is not None:
            self.budget.learned(deadline)
        return results

    def _shown(
        self,
        learn: Callable[[Callable[[LearningStep], bool]], list[LearningResult]],
        hyper: Hyperparameters,
        sketcher: Sketcher,
    ) -> Generator[Published, None, list[LearningResult]]:
        """Learning with a sketch published now and then."""
        steps = stepwise(learn)
        try:
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    results: list[LearningResult] = end.value
                    return results
                if self.budget.used >= self.next_publication:
                    yield replace(sketcher.model(hyper, [], self.steps, LEARNING), error=None)
                    self._schedule()
        finally:
            steps.close()

    def _inferred(
        self,
        problem: Problem,
        hyper: Hyperparameters,
        learning: list[LearningResult],
        sketcher: Sketcher,
        first: Published | None,
    ) -> Generator[Published]:
        if len(problem.rows) < len(self.task.block):
            yield self._subset_model(problem, hyper, learning, sketcher)
        elif learning and learning[-1].reason == INTERRUPTED:
            yield replace(sketcher.model(hyper, learning, self.steps, INFERENCE), reason=INTERRUPTED)
        elif self.plan.exact_pass and self.budget.pass_seconds(len(problem.rows)) < self.budget.remaining:
            yield self._exact_model(problem, hyper, learning, sketcher.blocking)
        else:
            yield from self._anytime_models(problem, hyper, learning, sketcher, first)

    def _subset_model(
        self, problem: Problem, hyper: Hyperparameters, learning: list[LearningResult], sketcher: Sketcher
    ) -> Published:
        """The budget did not reach all rows: as many of those arranged as it allows."""
        affordable = SUBSET_SHARE * max(0.0, self.budget.remaining) / max(self.budget.row_seconds, 1e-12)
        rows = int(min(max(affordable, FIRST_ROWS), len(problem.rows)))
        model = self._sketcher(problem, sketcher.blocking, rows).model(hyper, learning, self.steps + 1, INFERENCE)
        return replace(model, reason=anytime_run.TIME_IS_UP)

    def _exact_model(
        self, problem: Problem, hyper: Hyperparameters, learning: list[LearningResult], blocking: Blocking | None
    ) -> Published:
        prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, problem.row)
        state, posterior, info = batch.infer(prior, problem.rows)
        report = families.learning_report(learning, info.jitter, info.seconds)
        fitted = families.fitted_model(problem, hyper, posterior, info.log_evidence, report, state)
        return Published(fitted, blocking, self.steps + 1, self.task.block.n_rows, 1.0, INFERENCE, 0.0, True, ONE_PASS)

    def _anytime_models(
        self,
        problem: Problem,
        hyper: Hyperparameters,
        learning: list[LearningResult],
        sketcher: Sketcher,
        before: Published | None,
    ) -> Generator[Published]:
        """Blocks folded in one by one; a model with fewer rows than the one before it is not published."""
        if learning and (self.plan.watched or self.budget.limited):
            before = self._last_sketch(hyper, learning, sketcher)
            yield before
            if before.reason is not None:
                return
        outcome = Outcome(problem, hyper, learning, sketcher.blocking, self.steps)
        for progress in run_blocks(problem, hyper, self.plan, self.budget, self.rng):
            model = outcome.published(progress)
            if before is not None and model.rows_seen < before.rows_seen:
                if model.reason is None:
                    continue
                model = replace(before, reason=anytime_run.TIME_IS_UP)
            if model.reason is None and self._asked_to_stop(_as_step(model, self.budget)):
                yield replace(model, reason=STOPPED)
                return
            yield model

    def _last_sketch(self, hyper: Hyperparameters, learning: list[LearningResult], sketcher: Sketcher) -> Published:
        """The first model after learning; the only one if it has all rows, or if there is no time for more."""
        sketch = sketcher.model(hyper, learning, self.steps, INFERENCE)
        if sketch.is_exact:
            return replace(sketch, error=0.0, reason=anytime_run.EXACT)
        return replace(sketch, reason=anytime_run.TIME_IS_UP) if self.budget.remaining < sketcher.seconds else sketch


def _optimizer(problem: Problem, deadline: Deadline | None) -> str | None:
    """Evaluations by blocks are long: where the time has too few of them, steps from single blocks (decisions/0010)."""
    if problem.optimizer != AUTO or deadline is None or not problem.row.by_block:
        return problem.optimizer
    n_rows = BLOCKS.stages(len(problem.rows))[-1]
    return "lbfgs" if deadline.allows(n_rows, ENOUGH_EVALUATIONS) else "ngd"


def _as_step(model: Published, budget: Budget) -> LearningStep:
    return LearningStep(model.fitted.log_evidence, max(1, round(model.rows_seen)), model.step, budget.used)
