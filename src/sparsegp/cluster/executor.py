"""`Executor` of the workers of a Dask cluster: items stay there, and only questions and answers travel."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

from sparsegp import linalg, memory
from sparsegp.cluster.client import (
    Traffic,
    connected,
    distributed_package,
    gathered,
    submit,
    worker_threads,
)
from sparsegp.parallel import (
    Placed,
    Threads,
    arguments_of,
    costs_of,
    homes_by_cost,
    itself,
    largest_first,
    packed,
    unpacked,
)


@contextmanager
def executor_of(client: Any) -> Iterator["DaskExecutor"]:
    """The workers of a Dask client, of a cluster, or of the scheduler at an address."""
    with connected(client) as cluster:
        yield DaskExecutor(cluster, worker_threads(cluster))


@dataclass(frozen=True)
class Held:
    """An item on a worker: what a future has, or the item of that number in the `Stepped` that it has."""

    future: Any
    number: int | None = None


@dataclass(frozen=True)
class DaskExecutor:
    """`threads` are those of each worker, by address. A home is the address of a worker.

    Every item is a future that carries what it was made from, so the items of a lost worker are made again by the same
    steps. `map` is one task an item, which Dask may move to a worker that has nothing to do; `step` is one task a
    worker, since a task costs milliseconds. A worker uses all its threads and no more.

    `retries` is how often a task that failed is tried again, for tasks that read (`replace(executor, retries=2)`). A
    question that needs more than `most_embedded` bytes in all its tasks travels once, from worker to worker.
    """

    client: Any
    threads: Mapping[str, int]
    retries: int = 0
    most_embedded: int = 2**20
    traffic: Traffic = field(default_factory=Traffic, compare=False)

    @property
    def n_workers(self) -> int:
        return len(self.threads)

    def place(
        self,
        items: Sequence[Any],
        costs: Sequence[float] | None = None,
        beside: Placed | None = None,
        *,
        homes: Sequence[str] | None = None,
    ) -> Placed:
        """`homes`, where it is given, is the worker of each item, whatever it costs."""
        cost = costs_of(items, costs)
        where = homes_by_cost(cost, self.threads, beside) if homes is None else homes
        futures = [self._sent(packed(item), home) for item, home in zip(items, where, strict=True)]
        placed = self.adopt(futures, where, cost)
        return placed if beside is None else beside + placed

    def adopt(self, futures: Sequence[Any], homes: Sequence[str], costs: Sequence[float] | None = None) -> Placed:
        """Items that are on the cluster already, as futures, and the workers to ask about them."""
        handles = tuple(Held(future) for future in futures)
        return Placed(handles, tuple(homes), costs_of(handles, costs))

    def futures(self, placed: Placed) -> list[Any]:
        """A future of every item, for tasks that combine them."""
        return [
            held.future
            if held.number is None
            else submit(self.client, item_of, held.future, held.number, home=home, name="item")
            for held, home in zip(placed.handles, placed.homes, strict=True)
        ]

    def map(
        self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Sequence[Any] | None = None
    ) -> list[Any]:
        message, own = self._message(fn, broadcast, len(placed)), self._own(arguments_of(placed, each))
        mine, futures = placed.by_home(), dict[int, Any]()
        for k in largest_first(placed.costs):
            held, home = placed.handles[k], placed.homes[k]
            given = len(mine[home]), message, held.future, held.number, own[k]
            futures[k] = self._submitted(fn, answer_of, *given, home=home)
        return self._answers([futures[k] for k in range(len(placed))])

    def step(
        self, fn: Callable[..., Any], placed: Placed, *broadcast: Any, each: Sequence[Any] | None = None
    ) -> tuple[Placed, list[Any]]:
        mine, given = placed.by_home(), arguments_of(placed, each)
        message = self._message(fn, broadcast, len(mine))
        own = self._own([[given[k] for k in numbers] for numbers in mine.values()])
        handles, futures, answers = dict[int, Held](), [], dict[int, Any]()
        for (home, numbers), arguments in zip(mine.items(), own, strict=True):
            sources, names = _sources([placed.handles[k] for k in numbers])
            future = self._submitted(fn, stepped, message, sources, names, arguments, home=home)
            futures.append(submit(self.client, answers_in, future, home=home, name="answers"))
            handles.update({k: Held(future, number) for number, k in enumerate(numbers)})
        for numbers, found in zip(mine.values(), self._answers(futures), strict=True):
            answers.update(zip(numbers, found, strict=True))
        new = replace(placed, handles=tuple(handles[k] for k in range(len(placed))))
        return new, [answers[k] for k in range(len(placed))]

    def _message(self, fn: Callable[..., Any], broadcast: Sequence[Any], n_tasks: int) -> Any:
        """The question as bytes, or as a future of them where they are many."""
        data = packed((fn, tuple(broadcast)))
        embedded = len(data) * n_tasks <= self.most_embedded
        self.traffic.sent += len(data) * n_tasks if embedded else len(data)
        return data if embedded else self._sent(packed(data), None)

    def _own(self, given: Sequence[Any]) -> list[bytes]:
        data = [packed(own) for own in given]
        self.traffic.sent += sum(map(len, data))
        return data

    def _sent(self, data: bytes, home: str | None) -> Any:
        with warnings.catch_warnings():
            # It has no other home than the task itself, from which it is made again when a worker is lost.
            warnings.filterwarnings("ignore", message="Sending large graph")
            return submit(self.client, unpacked, data, home=home)

    def _submitted(self, fn: Callable[..., Any], task: Callable[..., Any], *given: Any, home: str) -> Any:
        return submit(self.client, task, *given, home=home, retries=self.retries, name=_name_of(fn))

    def _answers(self, futures: Sequence[Any]) -> list[Any]:
        answers = gathered(self.client, futures)
        self.traffic.rounds += 1
        self.traffic.received += sum(map(len, answers))
        return [unpacked(answer) for answer in answers]


def _sources(held: Sequence[Held]) -> tuple[list[Any], list[tuple[int, int | None]]]:
    """The futures that have these items, each once, and every item as the number of its future and its number there."""
    futures = {one.future.key: one.future for one in held}
    numbers = {key: number for number, key in enumerate(futures)}
    return list(futures.values()), [(numbers[one.future.key], one.number) for one in held]


def _name_of(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__)).strip("<>")


# On a worker


@dataclass(frozen=True)
class Stepped:
    """The items of a worker after a step, and their answers."""

    items: Sequence[Any]
    answers: bytes


def item_of(held: Any, number: int | None) -> Any:
    return held if number is None else held.items[number]


def answers_in(held: Stepped) -> bytes:
    return held.answers


def answer_of(n_items: int, message: bytes, held: Any, number: int | None, own: bytes) -> bytes:
    """One of `n_items` that this worker has, which divide its threads among them."""
    with torch_threads(max(1, _own_threads() // n_items)):
        fn, broadcast = unpacked(message)
        return packed(fn(item_of(held, number), *unpacked(own), *broadcast))


def stepped(message: bytes, sources: Sequence[Any], names: Sequence[tuple[int, int | None]], own: bytes) -> Stepped:
    threads = Threads(_own_threads())
    with torch_threads(_own_threads()):
        fn, broadcast = unpacked(message)
        items = threads.place([item_of(sources[source], number) for source, number in names])
        given = [tuple(arguments) for arguments in unpacked(own)]
        new, answers = threads.step(_called, items, fn, broadcast, each=given)
        return Stepped(threads.map(itself, new), packed(answers))


def _called(item: Any, own: Sequence[Any], fn: Callable[..., Any], broadcast: Sequence[Any]) -> Any:
    return fn(item, *own, *broadcast)


def _own_threads() -> int:
    return int(distributed_package().get_worker().state.nthreads)


def all_threads() -> AbstractContextManager[None]:
    """Within, a task uses all threads of its worker: there is one task for each worker in a round."""
    return torch_threads(_own_threads())


@contextmanager
def torch_threads(n_threads: int) -> Iterator[None]:
    memory.keep_freed()
    before = _usual_threads()
    torch.set_num_threads(n_threads)
    try:
        with linalg.flushed_denormals():
            yield
    finally:
        torch.set_num_threads(before)


@cache
def _usual_threads() -> int:
    """As the first task found it: tasks that overlap see the numbers of one another."""
    return torch.get_num_threads()
