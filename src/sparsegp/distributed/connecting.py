"""A Dask client that answers, or an error within seconds that says what to do."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from sparsegp.errors import InputError, SparseGPError

ANSWER_SECONDS = 6.0


def dask_package(name: str) -> Any:
    """`dask` or `distributed`, which only this subpackage needs."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError("Working on a cluster needs Dask: pip install 'sparsegp[dask]'.") from error


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
