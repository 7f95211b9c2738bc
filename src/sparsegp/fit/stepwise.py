"""Work that reports to a callback, turned into a generator of its reports."""

import threading
from collections.abc import Callable, Generator
from queue import SimpleQueue
from typing import Generic, TypeVar

Report = TypeVar("Report")
Result = TypeVar("Result")


class _Outcome(Generic[Result]):
    """What the work returned or raised."""

    result: Result
    error: BaseException | None = None


def stepwise(work: Callable[[Callable[[Report], bool]], Result]) -> Generator[Report, None, Result]:
    """Yield every report of `work` and return its result. Work and reader take turns: only one of them runs at a time.

    The callback handed to `work` answers True, a request to stop, once the generator was closed or interrupted. The
    work runs in a thread of its own, because it cannot be suspended in the middle otherwise.
    """
    reports: SimpleQueue[Report | None] = SimpleQueue()
    stops: SimpleQueue[bool] = SimpleQueue()
    outcome: _Outcome[Result] = _Outcome()

    def report(step: Report) -> bool:
        reports.put(step)
        return stops.get()

    def run() -> None:
        try:
            outcome.result = work(report)
        except BaseException as error:
            outcome.error = error
        finally:
            reports.put(None)

    threading.Thread(target=run, daemon=True).start()
    try:
        while (step := reports.get()) is not None:
            yield step
            stops.put(False)
    finally:
        stops.put(True)
    if outcome.error is not None:
        raise outcome.error
    return outcome.result
