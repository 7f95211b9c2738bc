"""A fit under watch: progress on the terminal, a budget of seconds, and Ctrl-C that keeps what was learned."""

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sparsegp.cli.output import note, shown

INTERRUPTED = 130  # the exit code


class Watcher:
    """A scikit-learn callback: called after every learning step, it says when to stop.

    After the fit: `steps`, `stopped_by`, and `fraction`, the fraction of the rows behind the model.
    """

    def __init__(self, model: Any, bar: Any, task: Any) -> None:
        self.model, self.bar, self.task = model, bar, task
        self.interrupted, self.steps = False, 0

    def setup(self, estimator: Any, context: Any) -> None:
        """Nothing to prepare."""

    def teardown(self, estimator: Any, context: Any) -> None:
        """Nothing to clear up."""

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        """Steps count when they are done."""

    def on_fit_task_end(self, estimator: Any, context: Any, *, metadata: Mapping[str, Any] | None = None) -> bool:
        if metadata is not None:
            self.steps += 1
            self.bar.update(self.task, description=_described(self.steps, metadata))
        return self.interrupted

    def says(self, step: str) -> None:
        """Which step of the command runs."""
        self.bar.update(self.task, description=_plain(step))

    def interrupt(self, number: int, frame: Any) -> None:
        """At the first Ctrl-C learning ends with the best point so far; the second one ends the program."""
        self.interrupted = True
        signal.signal(signal.SIGINT, _quit)
        note("Stopping: the best model so far will be saved. Press Ctrl-C again to quit without it.")

    @property
    def fraction(self) -> float:
        return float(self.model.info_.get("budget", {}).get("fraction", 1.0))

    @property
    def stopped_by(self) -> str | None:
        """What ended learning before it was done; None if nothing did."""
        if self.interrupted:
            return "Ctrl-C"
        from sparsegp.core.reasons import OUT_OF_TIME, TOO_SHORT

        info = self.model.info_
        reasons = [info.get("budget", {}).get("reason"), *(stage.reason for stage in info.get("stages", []))]
        return "time budget" if self.fraction < 1.0 or {OUT_OF_TIME, TOO_SHORT} & {*reasons} else None


def _quit(number: int, frame: Any) -> None:
    """Not KeyboardInterrupt: that ends learning and goes on with the best point."""
    raise SystemExit(INTERRUPTED)


def _described(step: int, facts: Mapping[str, Any]) -> str:
    evidence, rows = facts["log_evidence_per_row"], facts["n_rows"]
    return f"learning: step {step}, {rows:,} rows, log evidence per row {evidence:.4f}"


def _plain(text: str) -> str:
    """Text from outside as a description of rich, in which brackets are markup."""
    from rich.markup import escape

    return escape(shown(text))


@contextmanager
def watched(model: Any, budget: float | None, *, quiet: bool) -> Iterator[Watcher]:
    """Within, a fit of the model keeps the budget, shows its progress and can be stopped by Ctrl-C."""
    model.set_params(time_budget=budget)
    with _progress(quiet) as bar:
        task = bar.add_task("preparing", total=budget)
        watcher = Watcher(model, bar, task)
        set_callbacks = getattr(model, "set_callbacks", None)
        if set_callbacks is None:  # scikit-learn < 1.9: Ctrl-C is raised, and the estimators keep their best point
            yield watcher
            return
        set_callbacks(watcher)
        before = signal.signal(signal.SIGINT, watcher.interrupt)
        try:
            yield watcher
        finally:
            signal.signal(signal.SIGINT, before)
            set_callbacks()


def _progress(quiet: bool) -> Any:
    """A bar of the seconds of the budget; without one there is no saying how long learning takes."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class SecondsBar(BarColumn):
        def render(self, task: Task) -> Any:
            task.completed = min(task.elapsed or 0.0, task.total or 0.0)
            return super().render(task)

    class SecondsLeft(ProgressColumn):
        def render(self, task: Task) -> Text:
            left = None if task.total is None else max(0.0, task.total - (task.elapsed or 0.0))
            return Text("" if left is None else f"{left:.0f} s left")

    columns = (SpinnerColumn(), SecondsBar(), TimeElapsedColumn(), SecondsLeft(), TextColumn("{task.description}"))
    hidden = quiet or not sys.stderr.isatty()
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden)
