"""Progress of a fit: a line on the terminal when verbose, and scikit-learn's callbacks where it has them (1.9)."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparsegp.learn.trace import LearningStep


class _NoCallbacks:
    """scikit-learn before 1.9 has no callbacks."""


def _unchanged(method: Callable[..., Any]) -> Callable[..., Any]:
    return method


try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:
    CallbackSupportMixin, with_callbacks = _NoCallbacks, _unchanged

__all__ = ["CallbackSupportMixin", "Intention", "StepListener", "with_callbacks"]

SECONDS_BETWEEN_LINES = 1.0
SECONDS_BEFORE_INTENTION = 1.0


@dataclass(frozen=True)
class Intention:
    """What a fit is going to do: in words, and the rows times evaluations of its learning at the most."""

    words: str
    row_visits: float

    def told(self, seconds_per_visit: float) -> str:
        return f"[sparsegp] {self.words}: at most about {self.row_visits * seconds_per_visit:,.0f} s at this speed"


class StepListener:
    """Told of every accepted step; prints at most a line a second and asks the callbacks whether to stop.

    When verbose or on a terminal it says after a second what the fit is going to do, and how long that will take.
    """

    def __init__(self, estimator: Any, verbose: int) -> None:
        self.estimator, self.verbose = estimator, verbose
        self.started = self.last_line = time.perf_counter()
        self.intention: Intention | None = None
        self.context = None
        if hasattr(estimator, "_init_callback_context"):
            self.context = estimator._init_callback_context(max_subtasks=None)
            self.context.call_on_fit_task_begin(estimator=estimator)

    def __call__(self, step: LearningStep) -> bool:
        self._tell_intention(step)
        self._print(step)
        return self._asks_to_stop(step)

    def _asks_to_stop(self, step: LearningStep) -> bool:
        if self.context is None or not hasattr(self.estimator, "_skl_callbacks"):
            return False
        task = self.context.subcontext(task_name="learning step").call_on_fit_task_begin(estimator=self.estimator)
        evidence = step.objective / step.n_rows
        metadata = {"log_evidence_per_row": evidence, "n_rows": step.n_rows, "stage": step.stage}
        return bool(task.call_on_fit_task_end(estimator=self.estimator, metadata=metadata))

    def _tell_intention(self, step: LearningStep) -> None:
        """Once, from what the evaluations of a second have cost."""
        is_early = time.perf_counter() - self.started < SECONDS_BEFORE_INTENTION
        if self.intention is None or is_early or not (self.verbose or sys.stderr.isatty()):
            return
        visits = max(step.n_rows * step.evaluations, 1)
        print(self.intention.told(step.seconds / visits), file=sys.stderr)
        self.intention = None

    def _print(self, step: LearningStep) -> None:
        now = time.perf_counter()
        if not self.verbose or now - self.last_line < SECONDS_BETWEEN_LINES / self.verbose:
            return
        self.last_line = now
        print(
            f"[sparsegp] {now - self.started:7.1f} s  {step.n_rows:>10,} rows  evaluation {step.evaluations:>4}  "
            f"log evidence per row {step.objective / step.n_rows:.5f}",
            file=sys.stderr,
        )

    def close(self) -> None:
        if self.context is not None:
            self.context.call_on_fit_task_end(estimator=self.estimator)
