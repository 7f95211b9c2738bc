"""Freed memory that a worker keeps for the next chunk of rows."""

import asyncio
import ctypes
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from sparsegp.errors import InputError, MissingPackageError, SparseGPError

ANSWER_SECONDS = 6.0


def dask_package(name: str) -> Any:
    """`dask` or `distributed`, which only this subpackage needs."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingPackageError("Working on a cluster needs Dask: pip install 'sparsegp[dask]'.") from error


@contextmanager
def connected(cluster: Any) -> Iterator[Any]:
    """A client of a scheduler address, a Dask cluster or a client; one that was made here is closed at the end."""
    distributed = dask_package("distributed")
    if isinstance(cluster, distributed.Client):
        yield _synchronous(cluster)
        return
    is_cluster = isinstance(cluster, distributed.deploy.Cluster)
    if not is_cluster and not isinstance(cluster, str):
        raise InputError(_no_cluster(cluster))
    _require_greeting(cluster.scheduler_address if is_cluster else cluster)
    with distributed.Client(cluster, timeout=ANSWER_SECONDS, set_as_default=False) as client:
        yield client


def _require_greeting(address: str) -> None:
    """Dask waits for the scheduler's first word for ever; this does not."""
    distributed = dask_package("distributed")

    async def greet() -> None:
        arguments = distributed.Security().get_connection_args("client")
        comm = await distributed.comm.connect(address, timeout=ANSWER_SECONDS, **arguments)
        await comm.close()

    # A thread of its own: the caller may be in an event loop, as notebooks are.
    with ThreadPoolExecutor(1) as aside:
        try:
            aside.submit(lambda: asyncio.run(asyncio.wait_for(greet(), ANSWER_SECONDS))).result()
        except (OSError, TimeoutError) as error:
            raise SparseGPError(_no_answer(address)) from error
        except (TypeError, ValueError) as error:
            raise InputError(_no_cluster(address)) from error


def worker_threads(client: Any) -> dict[str, int]:
    """Threads of each worker, by address, sorted; there is at least one worker."""
    threads = _ask(client, lambda: client.scheduler.ncores())
    if not threads:
        try:
            client.wait_for_workers(1, timeout=ANSWER_SECONDS)
        except TimeoutError as error:
            raise SparseGPError(
                "The Dask cluster has no workers. Start some with `dask worker <address of the scheduler>`."
            ) from error
        threads = _ask(client, lambda: client.scheduler.ncores())
    return dict(sorted(threads.items()))


def _ask(client: Any, question: Any) -> dict[str, int]:
    async def asked() -> Any:
        return await question()

    try:
        return dict(client.sync(asked, callback_timeout=ANSWER_SECONDS))
    except (OSError, TimeoutError, AttributeError, RuntimeError) as error:
        raise SparseGPError(_no_answer(client)) from error


def _synchronous(client: Any) -> Any:
    if client.asynchronous:
        raise InputError("This Dask client is asynchronous; give one that was made with asynchronous=False.")
    return client


def _no_cluster(given: Any) -> str:
    return f"client= takes a Dask client, a Dask cluster or an address like 'tcp://host:8786'; got {given!r}."


def _no_answer(cluster: Any) -> str:
    return (
        f"The Dask scheduler of {cluster!r} does not answer within {ANSWER_SECONDS:g} seconds. Check the address, that "
        "`dask scheduler` runs there, and that no firewall is in between."
    )


READING_RETRIES = 2


@dataclass
class Traffic:
    """Bytes of the messages that went through the scheduler, and the number of rounds."""

    sent: int = 0
    received: int = 0
    rounds: int = 0

    def add(self, sent: int, received: int, rounds: int = 1) -> None:
        self.sent += sent
        self.received += received
        self.rounds += rounds

    @property
    def total(self) -> int:
        return self.sent + self.received


def submit(
    client: Any,
    task: Callable[..., Any],
    *given: Any,
    home: str | None = None,
    retries: int = 0,
    name: str | None = None,
) -> Any:
    """The future of a task, at its home unless that worker is gone; then wherever there is room.

    Tasks carry their arguments, so whatever a lost worker held is computed again from the source. `name` is what Dask's
    dashboard shows.
    """
    key = f"sparsegp-{name or task.__name__}-{uuid.uuid4().hex}"
    where = {} if home is None else {"workers": [home], "allow_other_workers": True}
    return client.submit(task, *given, key=key, retries=retries, **where)


def gathered(client: Any, futures: Sequence[Any]) -> list[Any]:
    """The results in order; errors of the cluster itself say what to do."""
    dask = dask_package("distributed")
    try:
        return list(client.gather(list(futures)))
    except dask.scheduler.KilledWorker as error:
        raise SparseGPError(
            f"Every worker that tried a piece of the work died of it: {error}. Most often the memory of a worker is "
            "too small for its share of the rows: use more workers, or larger ones."
        ) from error
    except (CancelledError, dask.comm.CommClosedError) as error:
        raise SparseGPError(
            f"The connection to the Dask scheduler was lost: {error!r}. Start the cluster again and call fit with the "
            "same checkpoint= to go on from where it was."
        ) from error


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 64 * 2**20
LARGEST_FROM_HEAP = 32 * 2**20


@cache
def keep_freed_memory() -> bool:
    """Once a process; whether there was something to set.

    Dask starts its workers with MALLOC_TRIM_THRESHOLD_=65536, so that every temporary of a chunk (megabytes) goes back
    to the system and is faulted in again: a third more time an evaluation. These are the values that glibc comes to
    by itself; other C libraries have no such setting.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    settings = {M_MMAP_THRESHOLD: LARGEST_FROM_HEAP, M_TRIM_THRESHOLD: KEPT_BYTES}
    return all(library.mallopt(name, value) == 1 for name, value in settings.items())
