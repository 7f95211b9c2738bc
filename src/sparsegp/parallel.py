"""Independent pieces of work side by side: threads for the hot loops, and executors, which keep pieces at their homes.

Products and factorisations of a few hundred rows gain little from a second BLAS thread, two of them side by side do. So
a thread or process has one BLAS thread, unless it works alone.
"""

import os
import pickle
import signal
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, Generic, Protocol, Self, TypeVar
from uuid import UUID, uuid4
from weakref import finalize

import cloudpickle
import torch
from threadpoolctl import ThreadpoolController

from sparsegp import blas
from sparsegp.errors import InputError, SparseGPError

Item = TypeVar("Item")
Report = TypeVar("Report")
Result = TypeVar("Result")
Home = TypeVar("Home", bound=Hashable)

# loky replaces a process that has grown by 300 MB, which is what taking up items does; here they end soon anyway.
KEPT = {"LOKY_MAX_MEMORY_LEAK_SIZE": str(2**62)}
PARENT_SECONDS = 2.0

WAITING_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
SECOND_TEAM = "sparsegp-second-team"
SHARED_ENTRIES = 2**20
FEW_ROWS = 64
"""So few rows to predict are not worth a second thread."""
ALONE_ROWS = 1200


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


def single_for(n_rows: int) -> AbstractContextManager[None]:
    """`single` where a matrix of so many rows is too small for two threads, unless this thread computes alone."""
    return same_digits() if n_rows <= ALONE_ROWS else nullcontext()


def same_digits() -> AbstractContextManager[None]:
    """Within, numbers come out the same to the last digit whether one thread computes or one of many does."""
    return nullcontext() if blas.is_alone() else single()


def _work_alone() -> None:
    torch.set_num_threads(1)
    blas.set_alone()


@contextmanager
def threads_for(n_rows: int) -> Iterator[None]:
    """Within, torch predicts few rows in this thread alone.

    A second thread has to be woken for every operation, which takes longer than the operation, and beside busy
    processes a hundred times as long.
    """
    before = available()
    if n_rows > FEW_ROWS or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def single() -> Iterator[None]:
    """Within, torch, scipy and the OpenMP loops of scikit-learn compute in this thread alone.

    For work on a few thousand rows: a second thread costs more than it gives, and the last digits of sums would depend
    on the number of threads.
    """
    before = available()
    torch.set_num_threads(1)
    try:
        with _all_pools().limit(limits=1, user_api="openmp"), one_scipy_thread(), blas.alone():
            yield
    finally:
        torch.set_num_threads(before)


def one_scipy_thread() -> AbstractContextManager[Any]:
    """Within, the BLAS of numpy and scipy has one thread; that of torch keeps its own.

    The vectors of an optimiser are short. OpenBLAS wakes its threads for them all the same, and they spin on a core
    that torch needs. The setting belongs to the process: the first thread that asks controls it, others leave it alone.
    """
    limited: AbstractContextManager[Any] = _openblas().limit(limits=1)
    return limited


@cache
def _openblas() -> ThreadpoolController:
    return _all_pools().select(internal_api="openblas")


@cache
def _all_pools() -> ThreadpoolController:
    return ThreadpoolController()


sleep_while_waiting()


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
class Serial:
    """One item after another in this thread, with all BLAS threads. What other executors are compared with."""

    @property
    def n_workers(self) -> int:
        return 1

    def place(self, items: Sequence[Any], costs: Sequence[float] | None = None, beside: Placed | None = None) -> Placed:
        return _here(items, costs, beside)

    def map(
        self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Sequence[Any] | None = None
    ) -> list[Any]:
        given = arguments_of(placed, each)
        return [fn(item, *own, *broadcast) for item, own in zip(placed.handles, given, strict=True)]

    def step(
        self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Sequence[Any] | None = None
    ) -> tuple[Placed, list[Any]]:
        return _stepped(placed, self.map(fn, placed, *broadcast, each=each))


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
        return _here(items, costs, beside)

    def map(
        self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Sequence[Any] | None = None
    ) -> list[Any]:
        given, results = arguments_of(placed, each), dict[int, Any]()
        waiting = _Waiting({None: largest_first(placed.costs)})

        def serve() -> None:
            while (k := waiting.take(None)) is not None:
                results[k] = fn(placed.handles[k], *given[k], *broadcast)

        run([serve] * n_workers(self.n_jobs, len(placed)), on_end=waiting.clear)
        return [results[k] for k in range(len(placed))]

    def step(
        self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Sequence[Any] | None = None
    ) -> tuple[Placed, list[Any]]:
        return _stepped(placed, self.map(fn, placed, *broadcast, each=each))


def _here(items: Sequence[Any], costs: Sequence[float] | None, beside: Placed | None) -> Placed:
    """In this process, where everybody has everything."""
    placed = Placed(tuple(items), (None,) * len(items), costs_of(items, costs))
    return placed if beside is None else beside + placed


def _stepped(placed: Placed, results: Sequence[tuple[Any, Any]]) -> tuple[Placed, list[Any]]:
    return replace(placed, handles=tuple(new for new, _ in results)), [answer for _, answer in results]


class _Waiting:
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


# Processes of this machine


@dataclass(frozen=True)
class _Group:
    """Items that were made by the same call. When nobody has a handle of it, the processes forget it."""

    token: UUID


class _Elsewhere:
    """In place of an item that only its process has."""


@dataclass(frozen=True)
class _Held:
    """An item by its number among those of a group in its process, and the item itself where it is here too."""

    group: _Group
    number: int
    item: Any = _Elsewhere

    @property
    def name(self) -> tuple[UUID, int]:
        return self.group.token, self.number


class Processes:
    """`n_workers` processes of this machine. They take a few seconds to start, in the background, and end with `with`.

    Threads wait for one another between their matrix products, because only one at a time runs Python; processes do
    not. Every pool is a single process, which keeps its items. A process that has done with its own takes over items
    that wait elsewhere in `map`, if they are in this process too.
    """

    def __init__(self, n_workers: int) -> None:
        from loky import ProcessPoolExecutor

        self._pools = tuple(
            ProcessPoolExecutor(1, initializer=_prepare, initargs=(os.getpid(),), env=KEPT) for _ in range(n_workers)
        )
        self._forgotten: tuple[deque[UUID], ...] = tuple(deque() for _ in self._pools)
        try:
            with _interrupts_held():
                for pool in self._pools:
                    pool.submit(int)
        except BaseException:
            self.close()
            raise

    @property
    def n_workers(self) -> int:
        return len(self._pools)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown(wait=True, kill_workers=True)

    def place(self, items: Sequence[Any], costs: Sequence[float] | None = None, beside: Placed | None = None) -> Placed:
        cost, group = costs_of(items, costs), self._new_group()
        homes = homes_by_cost(cost, dict.fromkeys(range(self.n_workers), 1), beside)
        placed = Placed(tuple(items), homes, cost)
        mine = placed.by_home()
        asked = [
            self._asked(home, _take_up, group.token, packed([items[k] for k in numbers]))
            for home, numbers in mine.items()
        ]
        for future in asked:
            _result(future)
        number = {k: n for numbers in mine.values() for n, k in enumerate(numbers)}
        held = tuple(_Held(group, number[k], item) for k, item in enumerate(items))
        placed = replace(placed, handles=held)
        return placed if beside is None else beside + placed

    def map(
        self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Sequence[Any] | None = None
    ) -> list[Any]:
        message, given, results = packed((fn, broadcast)), arguments_of(placed, each), dict[int, Any]()
        waiting = _Waiting({home: _largest_of(numbers, placed) for home, numbers in placed.by_home().items()})
        can_move = all(held.item is not _Elsewhere for held in placed.handles)

        def answered(home: int, k: int) -> Any:
            held = placed.handles[k]
            item = held.name if placed.homes[k] == home else packed(held.item)
            return unpacked(_result(self._asked(home, _answer, message, item, packed(given[k]))))

        def serve(home: int, k: int | None) -> None:
            while k is not None:
                results[k] = answered(home, k)
                k = waiting.take(home)
                if k is None and can_move:
                    k = waiting.steal()

        # Everybody has an item of its own in hand before anybody takes those of others.
        first = {home: waiting.take(home) for home in range(self.n_workers)}
        if can_move:
            first = {home: waiting.steal() if k is None else k for home, k in first.items()}
        run([partial(serve, home, k) for home, k in first.items() if k is not None], on_end=waiting.clear)
        return [results[k] for k in range(len(placed))]

    def step(
        self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Sequence[Any] | None = None
    ) -> tuple[Placed, list[Any]]:
        message, given, group = packed((fn, broadcast)), arguments_of(placed, each), self._new_group()
        mine, answers, handles = placed.by_home(), dict[int, Any](), dict[int, _Held]()
        asked = []
        for home, numbers in mine.items():
            names, own = [placed.handles[k].name for k in numbers], packed([given[k] for k in numbers])
            asked.append(self._asked(home, _step, message, group.token, names, own))
        for numbers, future in zip(mine.values(), asked, strict=True):
            for number, (k, answer) in enumerate(zip(numbers, unpacked(_result(future)), strict=True)):
                answers[k], handles[k] = answer, _Held(group, number)
        new = replace(placed, handles=tuple(handles[k] for k in range(len(placed))))
        return new, [answers[k] for k in range(len(placed))]

    def _new_group(self) -> _Group:
        group = _Group(uuid4())
        for forgotten in self._forgotten:
            finalize(group, forgotten.append, group.token).atexit = False
        return group

    def _asked(self, home: int, task: Callable[..., Any], *given: Any) -> "Future[Any]":
        forgotten = self._forgotten[home]
        names = [forgotten.popleft() for _ in range(len(forgotten))]
        with _deaths_explained():
            future: Future[Any] = self._pools[home].submit(_forget_and, names, task, *given)
        return future


def _largest_of(numbers: Sequence[int], placed: Placed) -> list[int]:
    return [numbers[n] for n in largest_first([placed.costs[k] for k in numbers])]


def _result(future: "Future[Any]") -> Any:
    with _deaths_explained():
        return future.result()


@contextmanager
def _deaths_explained() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise SparseGPError(
            f"A worker process died: {error}. Most often there is not enough memory for all of them: use fewer "
            "(n_jobs=), smaller pieces (for a committee n_experts=), or backend='threads', which share the rows."
        ) from error


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Within, Ctrl-C waits, and processes that start inherit that: they must not die of it before they are ready."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_held: dict[UUID, list[Any]] = {}
"""Of a worker process: the items it has, by group."""


def _prepare(parent: int) -> None:
    # Ctrl-C is for the process that waits for this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A parent that was killed could not say goodbye."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def _forget_and(tokens: Sequence[UUID], task: Callable[..., Any], *given: Any) -> Any:
    for token in tokens:
        _held.pop(token, None)
    return task(*given)


def _take_up(token: UUID, items: bytes) -> None:
    _held[token] = unpacked(items)


def _answer(message: bytes, item: tuple[UUID, int] | bytes, own: bytes) -> bytes:
    fn, broadcast = unpacked(message)
    found = unpacked(item) if isinstance(item, bytes) else _held[item[0]][item[1]]
    return packed(fn(found, *unpacked(own), *broadcast))


def _step(message: bytes, token: UUID, names: Sequence[tuple[UUID, int]], own: bytes) -> bytes:
    fn, broadcast = unpacked(message)
    results = [fn(_held[group][n], *given, *broadcast) for (group, n), given in zip(names, unpacked(own), strict=True)]
    answers = packed([answer for _, answer in results])
    _held[token] = [new for new, _ in results]
    return answers
