"""A fit under watch: progress on the terminal, a budget of seconds, and Ctrl-C that keeps what was learned."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparsegp.cli.output import note


class Watcher:
    """A scikit-learn callback: told of every learning step, it says when to stop."""

    def __init__(self, budget: float | None, bar: Any) -> None:
        self.budget, self.bar = budget, bar
        self.interrupted, self.out_of_time, self.steps = False, False, 0
        self.started = time.perf_counter()
        self.task = bar.add_task("learning", total=budget)

    def setup(self, estimator: Any, context: Any) -> None:
        """Nothing to prepare."""

    def teardown(self, estimator: Any, context: Any) -> None:
        """Nothing to clear up."""

    def on_fit_task_begin(self, estimator: Any, context: Any, **told: Any) -> None:
        """Steps count when they are done."""

    def on_fit_task_end(self, estimator: Any, context: Any, **told: Any) -> bool:
        self.steps += 1
        seconds = time.perf_counter() - self.started
        self.bar.update(self.task, completed=seconds, description=f"learning, step {self.steps}")
        self.out_of_time = self.budget is not None and seconds >= self.budget
        return self.interrupted or self.out_of_time

    def interrupt(self, number: int, frame: Any) -> None:
        """At the first Ctrl-C learning ends with the best point so far; the second one ends the program."""
        self.interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        note("Stopping: the best model so far will be saved. Press Ctrl-C again to quit without it.")


@contextmanager
def watched(model: Any, budget: float | None, *, quiet: bool) -> Iterator[Watcher]:
    """Within, a fit of the model shows its progress and can be stopped (scikit-learn 1.9 or newer)."""
    with _progress(quiet) as bar:
        watcher = Watcher(budget, bar)
        set_callbacks = getattr(model, "set_callbacks", None)
        if set_callbacks is None:
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
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    hidden = quiet or not sys.stderr.isatty()
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden)
