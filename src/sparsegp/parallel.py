"""Independent pieces of work side by side: threads for the hot loops, and executors, which keep pieces at their homes.

Products and factorisations of a few hundred rows gain little from a second BLAS thread, two of them side by side do. So
a thread or process has one BLAS thread, unless it works alone.
"""

import os
import pickle
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import cloudpickle
import torch
from threadpoolctl import LibController, ThreadpoolController

from sparsegp import blas
from sparsegp.errors import InputError

Item = TypeVar("Item")
Report = TypeVar("Report")
Result = TypeVar("Result")
Home = TypeVar("Home", bound=Hashable)

WAITING_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
SECOND_TEAM = "sparsegp-second-team"
SHARED_ENTRIES = 2**20
OMP_PAUSE_HARD = 2
FEW_ROWS = 64
"""So few rows to predict are not worth a second thread."""
ALONE_ROWS = 1200
"""A matrix of so many rows is too small for two threads."""


# Threads of this process


def sleep_while_waiting() -> None:
    """Threads of OpenMP that wait for each other sleep, unless the user has decided how they wait.

    They would spin for some milliseconds, on cores that other processes want (decisions/0021). If torch was imported
    before this package, OpenMP has read its variables already. GNU's one spins only while it has no more threads than
    cores: a second team, which sleeps for good, is more.
    """
    cores = _cores()
    if cores < 2 or any(name in os.environ for name in WAITING_VARIABLES):
        return
    before, formed = available(), threading.Event()
    threading.Thread(target=_form_team, args=(cores, formed), name=SECOND_TEAM, daemon=True).start()
    formed.wait()
    torch.set_num_threads(before)


def _form_team(cores: int, formed: threading.Event) -> None:
    """A thread keeps the team of its first shared operation for as long as it lives."""
    torch.set_num_threads(cores)
    torch.ones(SHARED_ENTRIES).exp_()
    formed.set()
    threading.Event().wait()


def _cores() -> int:
    """Those that this process may use, where the system says it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def available() -> int:
    """As many threads as torch would use for one operation."""
    return int(torch.get_num_threads())


def n_workers(n_jobs: int | None, n_items: int) -> int:
    """Workers to use: n_jobs (None: as many as torch uses threads), never more than there are items."""
    return max(1, min(n_jobs or available(), n_items))


def shared_out(items: Sequence[Item]) -> list[Sequence[Item]]:
    """The items of each thread, divided in a fixed way: sums over them do not depend on who is done first."""
    n = n_workers(None, len(items))
    return [items[k::n] for k in range(n)]


def summed(work: Callable[[Sequence[Item]], Any], items: Sequence[Item]) -> Any:
    """The sum of what `work` returns for the items of each thread."""
    first, *others = run([partial(work, part) for part in shared_out(items)])
    return sum(others, start=first)


def run(tasks: Sequence[Callable[[], Result]], on_end: Callable[[], None] = lambda: None) -> list[Result]:
    """The results of the tasks, in their order. A single task keeps all BLAS threads.

    `on_end` is called when all are done, or when one of them fails or at Ctrl-C, before the others are waited for.
    """
    before = available()
    if len(tasks) < 2:
        with single() if before == 1 else nullcontext():
            return [task() for task in tasks]
    try:
        # New threads inherit the treatment of denormal numbers from this one.
        pool = ThreadPoolExecutor(len(tasks), initializer=_work_alone)
        with one_scipy_thread(), pool:
            futures = [pool.submit(task) for task in tasks]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                on_end()
            return [future.result() for future in futures]
    finally:
        torch.set_num_threads(before)


def _work_alone() -> None:
    torch.set_num_threads(1)
    blas.set_alone()


@contextmanager
def single(n_rows: int = 0) -> Iterator[None]:
    """Within, torch, scipy and the OpenMP loops of scikit-learn compute in this thread alone.

    For up to ALONE_ROWS rows: a second thread costs more than it gives, and the last digits of sums would depend on the
    number of threads. A thread that computes alone already goes on as it is.
    """
    if n_rows > ALONE_ROWS or blas.is_alone():
        yield
        return
    with one_torch_thread(), _one_thread(_pools("openmp")), one_scipy_thread(), blas.alone():
        yield


def one_torch_thread(n_rows: int = 0) -> AbstractContextManager[None]:
    """Within, torch predicts up to FEW_ROWS rows in this thread alone; scipy and scikit-learn keep their threads.

    A second thread has to be woken for every operation, which takes longer than the operation, and beside busy
    processes a hundred times as long. Also where torch has one already, because its BLAS may have more.
    """
    return nullcontext() if n_rows > FEW_ROWS else _OneTorchThread()


class _OneTorchThread(AbstractContextManager[None]):
    """A class, because a generator takes three times as long, and a single row is predicted within it."""

    def __enter__(self) -> None:
        self.before = available()
        torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self.before)


def one_scipy_thread() -> AbstractContextManager[None]:
    """Within, the BLAS of numpy and scipy has one thread; that of torch keeps its own.

    The vectors of an optimiser are short. OpenBLAS wakes its threads for them all the same, and they spin on a core
    that torch needs. The setting belongs to the process: it holds until the last thread that asked for it is done.
    """
    return _of_process()


@cache
def _libraries() -> Sequence[LibController]:
    """Those that were loaded by the first call, which looks for them for some ten milliseconds."""
    return tuple(ThreadpoolController().lib_controllers)


@cache
def _pools(kind: str) -> Sequence[LibController]:
    return tuple(pool for pool in _libraries() if pool.internal_api == kind)


@contextmanager
def _one_thread(pools: Sequence[LibController]) -> Iterator[None]:
    """`ThreadpoolController.limit` takes twenty microseconds a library, as long as the work on a single row."""
    before = [pool.num_threads for pool in pools]
    for pool in pools:
        pool.set_num_threads(1)
    try:
        yield
    finally:
        for pool, n_threads in zip(pools, before, strict=True):
            pool.set_num_threads(n_threads)


class _Shared:
    """A context that any number of threads are in together: entered with the first, left with the last of them."""

    def __init__(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        self.context, self.lock, self.n_inside, self.within = context, threading.Lock(), 0, ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self.lock:
            if self.n_inside == 0:
                self.within.enter_context(self.context())
            self.n_inside += 1
        try:
            yield
        finally:
            with self.lock:
                self.n_inside -= 1
                if self.n_inside == 0:
                    self.within.close()


_of_process = _Shared(lambda: _one_thread(_pools("openblas")))


def _dismiss_teams() -> None:
    """End the threads of GNU's OpenMP that wait for this one; its next shared operation forms them anew.

    A forked process has none of them. Its first shared operation would wait for them forever.
    """
    for pool in _pools("openmp"):
        if pool.prefix == "libgomp" and hasattr(pool.dynlib, "omp_pause_resource_all"):  # OpenMP 5.0
            pool.dynlib.omp_pause_resource_all(OMP_PAUSE_HARD)


sleep_while_waiting()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_dismiss_teams)


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


# Executors


@dataclass(frozen=True)
class Placed:
    """Items in a fixed order, each at the worker that is its home. A value: no call changes it.

    `handles` are the business of the executor that made them: the items themselves, or where they are.
    """

    handles: tuple[Any, ...]
    homes: tuple[Any, ...]
    costs: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.handles)

    def __add__(self, other: "Placed") -> "Placed":
        return Placed(self.handles + other.handles, self.homes + other.homes, self.costs + other.costs)

    def subset(self, index: Sequence[int]) -> "Placed":
        """Items by their numbers, in that order, at the homes they have."""
        columns = self.handles, self.homes, self.costs
        return Placed(*(tuple(column[k] for k in index) for column in columns))

    def by_home(self) -> dict[Any, list[int]]:
        """The numbers of the items of each home that has any, in order."""
        found: dict[Any, list[int]] = {}
        for k, home in enumerate(self.homes):
            found.setdefault(home, []).append(k)
        return found


class Executor(Protocol):
    """Workers that have items, and what can be asked of them.

    An item is sent to its home once. `fn` is a function at the top level of a module, so that it can be named to
    another process; `broadcast` goes to all items and is serialised once; `each` has one more argument for every item,
    which comes before those. Answers come in the order of the items, whoever has which: sums over them are equal to the
    last digit on every executor. An error of `fn` comes back with its type. `sparsegp.testing.check_executor` checks
    all of this.
    """

    @property
    def n_workers(self) -> int:
        """How many items are worked on at the same time, at the most (threads), or the number of homes."""

    def place(self, items: Sequence[Any], costs: Sequence[float] | None = None, beside: Placed | None = None) -> Placed:
        """The items at homes that have least to do, by cost (None: all equal), largest first; ties go in order.

        `beside` are items that have a home already: their costs count, and the result has them first.
        """

    def map(
        self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Sequence[Any] | None = None
    ) -> list[Any]:
        """[fn(item, *broadcast) for item in items]; work that costs most is begun first."""

    def step(
        self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Sequence[Any] | None = None
    ) -> tuple[Placed, list[Any]]:
        """fn(item, *broadcast) -> (new item, answer): the new items, which stay where they are, and the answers.

        `placed` keeps the items as they were, also if the step fails, as long as `fn` does not change them in place.
        """


def largest_first(costs: Sequence[float]) -> list[int]:
    """Numbers in the order in which to begin: what is begun last should be small."""
    return sorted(range(len(costs)), key=lambda k: -costs[k])


def homes_by_cost(
    costs: Sequence[float], capacity: Mapping[Home, int], beside: Placed | None = None
) -> tuple[Home, ...]:
    """A home for each item. All wait for the slowest: each goes where a thread has least to do so far.

    `capacity` is the number of threads of each home. Where loads are equal the number of items decides, then order.
    """
    load, count = defaultdict[Home, float](float), defaultdict[Home, int](int)
    for home, cost in () if beside is None else zip(beside.homes, beside.costs, strict=True):
        load[home] += cost
        count[home] += 1
    homes: dict[int, Home] = {}
    for k in largest_first(costs):
        homes[k] = min(capacity, key=lambda home: (load[home] / capacity[home], count[home] / capacity[home]))
        load[homes[k]] += costs[k]
        count[homes[k]] += 1
    return tuple(homes[k] for k in range(len(costs)))


def costs_of(items: Sequence[Any], costs: Sequence[float] | None) -> tuple[float, ...]:
    """One for each item."""
    if costs is None:
        return (1.0,) * len(items)
    if len(costs) != len(items):
        raise InputError(f"Every item has a cost: there are {len(items)} items, but {len(costs)} costs.")
    return tuple(float(cost) for cost in costs)


def arguments_of(placed: Placed, each: Sequence[Any] | None) -> list[tuple[Any, ...]]:
    """What every item is given of its own, before the broadcast arguments."""
    if each is None:
        return [()] * len(placed)
    if len(each) != len(placed):
        raise InputError(f"each= has one argument for every item: there are {len(placed)} items, but {len(each)}.")
    return [(own,) for own in each]


def itself(item: Item) -> Item:
    """`executor.map(itself, placed)` brings the items here."""
    return item


def packed(message: Any) -> bytes:
    """As bytes. Functions and classes that the caller defined in a script or a notebook travel with their code."""
    try:
        data: bytes = cloudpickle.dumps(message)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InputError(
            f"This cannot be sent to another process: {error}. Use a function at the top level of a module, not one "
            "that keeps locks, files or connections of this process, and give it plain values."
        ) from error
    return data


def unpacked(message: bytes) -> Any:
    return pickle.loads(message)


@dataclass(frozen=True)
class Threads:
    """`n_jobs` threads of this process (None: as many as torch uses), with one BLAS thread in each.

    torch releases the interpreter while it computes and threads share the items, so nothing is copied. A thread that is
    done takes the next item. A single one leaves torch all its threads.
    """

    n_jobs: int | None = None

    @property
    def n_workers(self) -> int:
        return self.n_jobs or available()

    def place(self, items: Sequence[Any], costs: Sequence[float] | None = None, beside: Placed | None = None) -> Placed:
        placed = Placed(tuple(items), (None,) * len(items), costs_of(items, costs))
        return placed if beside is None else beside + placed

    def map(
        self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Sequence[Any] | None = None
    ) -> list[Any]:
        given, results = arguments_of(placed, each), dict[int, Any]()
        waiting = Waiting({None: largest_first(placed.costs)})

        def serve() -> None:
            while (k := waiting.take(None)) is not None:
                results[k] = fn(placed.handles[k], *given[k], *broadcast)

        run([serve] * n_workers(self.n_jobs, len(placed)), on_end=waiting.clear)
        return [results[k] for k in range(len(placed))]

    def step(
        self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Sequence[Any] | None = None
    ) -> tuple[Placed, list[Any]]:
        results = self.map(fn, placed, *broadcast, each=each)
        return replace(placed, handles=tuple(new for new, _ in results)), [answer for _, answer in results]


class Waiting:
    """Numbers of items that wait at their homes, each given away once. After an error or Ctrl-C nothing waits."""

    def __init__(self, queues: Mapping[Any, Sequence[int]]) -> None:
        self.queues, self.lock = {home: deque(queue) for home, queue in queues.items()}, threading.Lock()

    def take(self, home: Any) -> int | None:
        """The next one at this home."""
        with self.lock:
            queue = self.queues.get(home)
            return queue.popleft() if queue else None

    def steal(self) -> int | None:
        """The next one of the home where most wait."""
        with self.lock:
            queue = max(self.queues.values(), key=len, default=None)
            return queue.popleft() if queue else None

    def clear(self) -> None:
        with self.lock:
            self.queues = {}
