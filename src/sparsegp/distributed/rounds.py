"""One round on the cluster: the same question to every share, the answers in the order of the shares."""

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from sparsegp.distributed.connecting import dask_package
from sparsegp.errors import SparseGPError

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
