"""fit_iter and time budgets: a model at once that gets better with every step."""

import warnings
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from sparsegp import linalg, metrics
from sparsegp.approximations import Approximation, Family
from sparsegp.data import Block
from sparsegp.engines import anytime_run
from sparsegp.engines.anytime import Reading
from sparsegp.errors import InputError
from sparsegp.estimators.families import INTERRUPTED, Fitted
from sparsegp.estimators.incoming import validation
from sparsegp.estimators.incoming.blocking import Blocking
from sparsegp.estimators.incoming.frames import as_frame
from sparsegp.estimators.predictive import Array, Predictive
from sparsegp.estimators.progress import StepListener, with_callbacks
from sparsegp.estimators.stepping import budget as budgets
from sparsegp.estimators.stepping.anytime_fit import fit_in_steps
from sparsegp.estimators.stepping.anytime_inference import Plan
from sparsegp.estimators.stepping.budget import Budget
from sparsegp.estimators.stepping.sketches import Published
from sparsegp.estimators.tasks import Accepted

INFERENCES = ("exact", "anytime")
READINGS = {"all": Reading.RATIO, "seen": Reading.SEEN}


@dataclass(frozen=True)
class Progress:
    """How a fit stands after a published step.

    `seconds` is the time worked since the call, without that of the reader and of scoring. `rows_seen` and `fraction`
    say how many rows, and which share of all, are behind the present posterior. `log_evidence` is the estimate for all
    rows. `error` is the sampling error that unseen rows leave in the predictive mean, relative to the predictive std,
    at the worst of some probes (None: not known yet). `scores` are rmse and nlpd on the validation set. `stage` is
    "learning" or "inference". The last Progress has a `reason`.
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


class AnytimeMixin:
    """Fits that can be watched, limited and left early."""

    inference: str
    time_budget: float | None
    reading: str
    stop_error: float | None
    verbose: int
    info_: dict[str, Any]
    n_features_in_: int
    n_samples_seen_: int
    forecast: Callable[..., Predictive]

    @abstractmethod
    def _accepted(
        self, X: Any, y: Any, given: dict[str, Any], blocks: ArrayLike | None, target: str | None
    ) -> Accepted:
        """Everything checked and in the model's units."""

    @abstractmethod
    def _store(self, accepted: Accepted, fitted: Fitted, blocking: Blocking | None) -> None:
        """The fitted attributes."""

    @abstractmethod
    def _begin_stream(self, row: Approximation, block: Block, labels: ArrayLike | None) -> None:
        """After a fit that holds all rows: keep what updates will need."""

    def fit_iter(
        self,
        X: Any,
        y: Any = None,
        *,
        noise_var: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        target: str | None = None,
        validation: tuple[Any, Any] | None = None,
    ) -> Generator[Progress]:
        """Fit in steps: yields a Progress whenever there is a better model, and the estimator predicts with it.

        Leaving the loop (break, close, Ctrl-C) keeps the model published last. `validation` = (X, y) is scored at every
        step. The rest is as for `fit`.
        """
        started = budgets.now()
        given = {"noise_var": noise_var, "sample_weight": sample_weight}
        accepted = self._accepted(X, y, given, blocks, target)
        _require_steps(accepted.task.row)
        held_out = None if validation is None else self._held_out(validation)
        return self._steps(accepted, Budget(self.time_budget, started), held_out, watched=True)

    def _fit_in_steps(
        self, X: Any, y: Any, given: dict[str, Any], blocks: ArrayLike | None, target: str | None
    ) -> Self:
        """`fit` with a budget or by anytime inference. Ctrl-C keeps the model that there is."""
        budget = Budget(self.time_budget, budgets.now())
        accepted = self._accepted(X, y, given, blocks, target)
        last: Progress | None = None
        try:
            for progress in self._steps(accepted, budget, None, watched=False):
                last = progress
        except KeyboardInterrupt:
            if last is None:
                raise
            self._report(budget, replace(last, reason=INTERRUPTED))
            warnings.warn("The fit was interrupted: the model is the best so far, see info_['budget'].", stacklevel=4)
        return self

    def _steps(
        self, accepted: Accepted, budget: Budget, held_out: tuple[Any, Array] | None, *, watched: bool
    ) -> Generator[Progress]:
        listener = StepListener(self, self.verbose)
        plan = Plan(self.inference == "exact", READINGS[self.reading], self.stop_error, watched)
        models = fit_in_steps(replace(accepted.task, on_step=listener), plan, budget)
        paused = 0.0
        try:
            while (model := _next_model(models)) is not None:
                seconds = budget.used - paused
                self._publish(accepted, model)
                progress = progress_of(model, seconds, {} if held_out is None else self._scores(*held_out))
                self._report(budget, progress)
                yield progress
                paused = budget.used - seconds
        finally:
            models.close()
            listener.close()
            self._end_callbacks()

    @with_callbacks  # type: ignore[untyped-decorator]
    def _end_callbacks(self) -> None:
        """scikit-learn tears callbacks down at the end of a decorated method; a generator has none around it."""

    def _publish(self, accepted: Accepted, model: Published) -> None:
        self._store(accepted, model.fitted, model.blocking)
        task = accepted.task
        if model.is_exact:
            self._begin_stream(task.row, task.block, task.labels)
        else:
            self.__dict__.update(n_samples_seen_=round(model.fraction * accepted.n_rows), _fit_rows=None)

    def _report(self, budget: Budget, progress: Progress) -> None:
        self.info_["seconds"] = budget.used
        self.info_["budget"] = {
            "asked": budget.asked,
            "used": budget.used,
            "rows_seen": progress.rows_seen,
            "fraction": progress.fraction,
            "reason": progress.reason,
        }
        if progress.reason == anytime_run.TOO_SHORT:
            warnings.warn(
                f"time_budget={budget.asked:g} s was shorter than one step, and the fit took {budget.used:.2g} s. The "
                f"model is valid but rests on {progress.rows_seen:,.0f} rows and starting values: give it more time.",
                stacklevel=2,
            )

    def _held_out(self, given: tuple[Any, Any]) -> tuple[Any, Array]:
        """A validation set of the right shape."""
        try:
            X, y = given
        except (TypeError, ValueError):
            raise InputError(f"validation must be a pair (X, y); got {type(given).__name__}.") from None
        X, y = as_frame(X), np.asarray(y, dtype=np.float64)
        shape = np.shape(X)
        if len(shape) != 2 or shape[1] != self.n_features_in_ or shape[0] < 1 or y.shape != shape[:1]:
            raise InputError(
                f"The validation set must have {self.n_features_in_} columns like the training rows, and a target for "
                f"each of its rows; got X of shape {shape} and y of shape {y.shape}."
            )
        return X, y

    def _scores(self, X: Any, y: Array) -> dict[str, float]:
        forecast = self.forecast(X)
        return {"rmse": metrics.rmse(y, forecast.mean), "nlpd": metrics.nlpd(y, forecast.mean, forecast.std)}

    def _check_anytime_parameters(self, row: Approximation) -> None:
        validation.require_choice("inference", self.inference, INFERENCES)
        validation.require_choice("reading", self.reading, tuple(READINGS))
        if self.stop_error is not None:
            validation.positive_number("stop_error", self.stop_error)
        if self.time_budget is not None:
            validation.positive_number("time_budget", self.time_budget)
            _require_steps(row)
        if self.inference == "anytime" and row.family is not Family.INDUCING:
            raise InputError(
                f"inference='anytime' adds up statistics of blocks, which approximation={row.name!r} does not have. "
                "Use inference='exact', or 'vfe', 'fitc', 'pic' or another approximation with inducing inputs."
            )


def _require_steps(row: Approximation) -> None:
    if row.family is Family.NYSTROM:
        raise InputError(
            f"approximation={row.name!r} cannot be fitted within a time budget or in steps: it needs all rows for any "
            "prediction. Use 'dtc', its proper relative, or fit without them."
        )


def _next_model(models: Iterator[Published]) -> Published | None:
    """Each step computes without denormal numbers; the reader in between is left alone."""
    with linalg.flushed_denormals():
        return next(models, None)


def progress_of(model: Published, seconds: float, scores: dict[str, float]) -> Progress:
    return Progress(
        step=model.step,
        seconds=seconds,
        rows_seen=model.rows_seen,
        fraction=model.fraction,
        log_evidence=model.fitted.log_evidence,
        error=model.error,
        stage=model.stage,
        scores=scores,
        reason=model.reason,
    )
