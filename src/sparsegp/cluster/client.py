"""A Dask client: how one is found, how tasks are handed to it, and how long their answers are waited for."""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sparsegp.errors import InputError, MissingPackageError, SparseGPError

NEEDS_DASK = "Working on a cluster needs Dask: pip install 'sparsegp[dask]'."
ANSWER_SECONDS = 6.0
LOOK_SECONDS = 2.0
PATIENCE_SECONDS = 60.0


def dask_package() -> Any:
    """`dask`, which only this subpackage needs, with its arrays."""
    try:
        import dask.array
    except ImportError as error:
        raise MissingPackageError(NEEDS_DASK) from error
    return dask


def distributed_package() -> Any:
    """`distributed`, the workers and the scheduler of Dask."""
    try:
        import distributed
    except ImportError as error:
        raise MissingPackageError(NEEDS_DASK) from error
    return distributed


@contextmanager
def connected(cluster: Any) -> Iterator[Any]:
    """A client of a scheduler address, a Dask cluster or a client; one that was made here is closed at the end."""
    distributed = distributed_package()
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
    distributed = distributed_package()

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
    started = time.monotonic()
    while not (threads := _ask(client, lambda: client.scheduler.ncores())):
        if time.monotonic() - started > ANSWER_SECONDS:
            raise SparseGPError(
                "The Dask cluster has no workers. Start some with `dask worker <address of the scheduler>`."
            )
        time.sleep(0.1)
    return dict(sorted(threads.items()))


def _ask(client: Any, question: Callable[[], Any]) -> dict[str, Any]:
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

    def add(self, sent: int, received: int) -> None:
        self.sent += sent
        self.received += received
        self.rounds += 1

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
    with losses_explained():
        return client.submit(task, *given, key=key, retries=retries, **where)


def gathered(client: Any, futures: Sequence[Any]) -> list[Any]:
    """The results in order; errors of the cluster itself say what to do, and no fault of it is waited out for ever."""
    with losses_explained():
        asked = asyncio.run_coroutine_threadsafe(
            client.gather(list(futures), asynchronous=True), client.loop.asyncio_loop
        )
        watch = _Watch(client)
        try:
            while True:
                try:
                    return list(asked.result(LOOK_SECONDS))
                except TimeoutError:
                    if asked.done():  # an error of a task
                        raise
                watch.look()
        finally:
            asked.cancel()


@contextmanager
def losses_explained() -> Iterator[None]:
    """Within, errors of the cluster itself are ours, and say what to do."""
    distributed = distributed_package()
    try:
        yield
    except distributed.scheduler.KilledWorker as error:
        raise SparseGPError(
            f"Every worker that tried a piece of the work died of it: {error}. Most often the memory of a worker is "
            "too small for its share of the rows: use more workers, or larger ones."
        ) from error
    except (CancelledError, distributed.comm.CommClosedError, _closed_client()) as error:
        raise SparseGPError(f"The connection to the Dask scheduler was lost: {error!r}. {_AGAIN}") from error


def _closed_client() -> type[Exception]:
    """What Dask raises for a client that gave its scheduler up; older versions have no name for it."""
    return getattr(distributed_package().client, "ClosedClientError", CancelledError)


_AGAIN = "Start the cluster again and call fit with the same checkpoint= to go on from where it was."


class _Watch:
    """Looks at a cluster while an answer is waited for, and gives up where none can be hoped for.

    Work that a worker is busy with takes as long as it takes. A worker that stopped without a word is found by Dask
    itself (distributed.scheduler.worker-ttl).
    """

    def __init__(self, client: Any) -> None:
        self.client, self.workers = client, frozenset[str]()
        self.hopeful = time.monotonic()

    def look(self) -> None:
        try:
            busy = _ask(self.client, lambda: self.client.scheduler.processing())
        except SparseGPError as error:
            self._give_up_if_late(f"{error}", error)
            return
        if any(busy.values()):
            self.hopeful = time.monotonic()
        elif busy:
            self._give_up_if_late(
                f"The Dask cluster has workers, but gave them nothing to do for {PATIENCE_SECONDS:g} seconds. {_AGAIN}"
            )
        else:
            self._give_up_if_late(
                f"All workers of the Dask cluster are gone, and none came within {PATIENCE_SECONDS:g} seconds. {_AGAIN}"
            )
        if busy and busy.keys() != self.workers:
            self.workers = frozenset(busy)
            _forget_lost_homes(self.client)

    def _give_up_if_late(self, message: str, cause: Exception | None = None) -> None:
        if time.monotonic() - self.hopeful > PATIENCE_SECONDS:
            raise SparseGPError(message) from cause


def _forget_lost_homes(client: Any) -> None:
    """Tasks that wait for a worker that is gone may go elsewhere, as they were allowed to from the beginning.

    Dask decides that when a task becomes ready, but not again when all workers were lost at that moment and new ones
    have come since. A scheduler that runs no functions of clients (distributed.scheduler.pickle) is left alone.
    """

    def forget(dask_scheduler: Any) -> None:  # travels by its code: the scheduler need not have this package
        lost = [ts for ts in dask_scheduler.unrunnable if ts.loose_restrictions]
        lost = [ts for ts in lost if not dask_scheduler.valid_workers(ts)]
        for ts in lost:
            ts.worker_restrictions = None
        if dask_scheduler.running:
            dask_scheduler.transitions({ts.key: "processing" for ts in lost}, stimulus_id="sparsegp-lost-homes")

    # whatever goes wrong here, the patience of the watch ends the wait
    with suppress(OSError, TimeoutError, AttributeError, RuntimeError, ValueError, TypeError):
        client.run_on_scheduler(forget, callback_timeout=ANSWER_SECONDS)
