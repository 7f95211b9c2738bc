"""Who listens to a fit: a line where somebody watches, more when verbose, and scikit-learn's callbacks (from 1.9)."""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from sparsegp.errors import InputError
from sparsegp.learn.trace import LearningStep


def _unchanged(method: Callable[..., Any]) -> Callable[..., Any]:
    return method


try:
    from sklearn.callback import CallbackSupportMixin as CALLBACKS
    from sklearn.callback import with_callbacks
except ImportError:  # scikit-learn before 1.9 has none
    CALLBACKS, with_callbacks = None, _unchanged

__all__ = ["CALLBACKS", "Intention", "StepListener", "with_callbacks"]

SECONDS_BETWEEN_LINES = 1.0
SECONDS_BEFORE_INTENTION = 1.0
SECONDS_OF_SILENCE = 2.0


@dataclass(frozen=True)
class Intention:
    """What a fit is going to do: in words, and the rows times evaluations of its learning at the most."""

    words: str
    row_visits: float

    def in_words(self, seconds_per_visit: float) -> str:
        return f"[sparsegp] {self.words}: at most about {self.row_visits * seconds_per_visit:,.0f} s at this speed"


def is_watched(stream: TextIO) -> bool:
    """Whether a person sees what is written: on a terminal, or in a notebook, whose stream is no terminal."""
    if stream.isatty():
        return True
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class ProgressLine:
    """One line that is written over and over, from two seconds after the start until the fit is done.

    A thread of its own writes it, because not every part of a fit comes in steps.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.words = stream, "preparing"
        self.started, self._width = time.perf_counter(), 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparsegp progress", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        wait = SECONDS_OF_SILENCE
        while not self._done.wait(wait):
            self._write(self.words)
            wait = SECONDS_BETWEEN_LINES

    def _write(self, words: str) -> None:
        text = f"[sparsegp] {time.perf_counter() - self.started:.0f} s: {words}"
        # spaces wipe out what is left of a longer line; a warning in between starts where the line does
        self.stream.write(f"\r{text.ljust(self._width)}\r")
        self.stream.flush()
        self._width = len(text)

    def close(self) -> None:
        """The line ends, if there is one."""
        self._done.set()
        self._thread.join()
        if self._width:
            self._write("done")
            self.stream.write("\n")
            self.stream.flush()


class StepListener:
    """Called after every accepted step; asks the callbacks whether to stop.

    `verbose` None: one line of progress after two seconds, if somebody watches. 0: not a word. 1 or more: so many lines
    a second, and after a second what the fit is going to do, and how long that will take.
    """

    def __init__(self, estimator: Any, verbose: int | None) -> None:
        if verbose is not None and not (isinstance(verbose, int | float) and verbose >= 0):
            raise InputError(
                "verbose must be None (one line of progress on a terminal or in a notebook), 0 (silence), or the "
                f"number of lines a second; got {verbose!r}."
            )
        self.estimator, self.verbose = estimator, verbose or 0
        self.started = self.last_line = time.perf_counter()
        self.intention: Intention | None = None
        self.line = ProgressLine(sys.stderr) if verbose is None and is_watched(sys.stderr) else None
        self.context = None
        if hasattr(estimator, "set_callbacks"):
            self.context = CALLBACKS._init_callback_context(estimator, max_subtasks=None)
            self.context.call_on_fit_task_begin(estimator=estimator)

    def __call__(self, step: LearningStep) -> bool:
        if self.line is not None:
            self.line.words = self._described(step)
        if self.verbose:
            self._tell_intention(step)
            self._print(step)
        return self._asks_to_stop(step)

    def _asks_to_stop(self, step: LearningStep) -> bool:
        if self.context is None or not hasattr(self.estimator, "_skl_callbacks"):
            return False
        task = self.context.subcontext(task_name="learning step").call_on_fit_task_begin(estimator=self.estimator)
        evidence = step.objective / step.n_rows
        metadata = {"log_evidence_per_row": evidence, "n_rows": step.n_rows}
        return bool(task.call_on_fit_task_end(estimator=self.estimator, metadata=metadata))

    def _described(self, step: LearningStep) -> str:
        evidence = f"log evidence per row {step.objective / step.n_rows:.4f}"
        if self.intention is None:
            return f"choosing, {step.n_rows:,} rows, {evidence}"
        return f"{self.intention.words}, evaluation {step.evaluations}, {evidence}"

    def _tell_intention(self, step: LearningStep) -> None:
        """Once, from what the evaluations of a second have cost."""
        if self.intention is None or time.perf_counter() - self.started < SECONDS_BEFORE_INTENTION:
            return
        visits = max(step.n_rows * step.evaluations, 1)
        print(self.intention.in_words(step.seconds / visits), file=sys.stderr)
        self.intention = None

    def _print(self, step: LearningStep) -> None:
        now = time.perf_counter()
        if now - self.last_line < SECONDS_BETWEEN_LINES / self.verbose:
            return
        self.last_line = now
        print(
            f"[sparsegp] {now - self.started:7.1f} s  {step.n_rows:>10,} rows  evaluation {step.evaluations:>4}  "
            f"log evidence per row {step.objective / step.n_rows:.5f}",
            file=sys.stderr,
        )

    def close(self) -> None:
        if self.line is not None:
            self.line.close()
        if self.context is not None:
            self.context.call_on_fit_task_end(estimator=self.estimator)
