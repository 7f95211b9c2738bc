"""What every source of rows gives: batches of numbers, each of which knows where it was read."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparsegp import memory
from sparsegp.data.encoding import Encoding
from sparsegp.data.layout import FeatureLayout
from sparsegp.errors import InputError

Item = TypeVar("Item")
_END = object()


def prefetched(items: Iterator[Item], ahead: int = 2) -> Iterator[Item]:
    """The same items in the same order, at most `ahead` of them made before they are asked for.

    An error of the reader is raised where its item would have come. The reader sees the context of the caller, in
    which a Dask client may be current.
    """
    context = copy_context()

    def following() -> Item:
        return context.run(next, items, _END)  # type: ignore[return-value]

    memory.require_reserve("Reading ahead")
    with ThreadPoolExecutor(1) as reader:
        pending = deque(reader.submit(following) for _ in range(ahead))
        while (item := pending.popleft().result()) is not _END:
            pending.append(reader.submit(following))
            yield item


Array = NDArray[np.float64]

_MOST_ROWS = 65_536
_FEWEST_ROWS = 1_024
_MOST_ENTRIES = 2**22


def rows_per_batch(n_features: int) -> int:
    """Rows read at once: many enough to share out among threads, few enough that a batch stays below 32 MB."""
    return min(_MOST_ROWS, max(_FEWEST_ROWS, _MOST_ENTRIES // max(1, n_features) // _FEWEST_ROWS * _FEWEST_ROWS))


@dataclass(frozen=True)
class Place:
    """Where a batch begins: `start` rows into `name` and, in files with row groups, `group_start` rows into `group`."""

    name: str
    start: int = 0
    group: int | None = None
    group_start: int = 0

    def row(self, index: int) -> str:
        """Where row `index` of the batch stands; rows and row groups are counted from 0."""
        if self.group is None:
            return f"{self.name}, row {self.start + index}"
        within = f"row {self.group_start + index} of the group, row {self.start + index} of the file"
        return f"{self.name}, row group {self.group} ({within})"

    def later(self, n_rows: int) -> "Place":
        return Place(self.name, self.start + n_rows, self.group, self.group_start + n_rows)


LEAST_WEIGHT, MOST_WEIGHT = 1e-12, 1e12
USABLE_WEIGHTS = f"0, or between {LEAST_WEIGHT:g} and {MOST_WEIGHT:g}"
"""A row counts as many times as its weight says: beyond this, sums over rows have no digits left for the others."""


def usable_weights(weight: Array) -> NDArray[np.bool_]:
    """Which of the weights a model can work with."""
    usable: NDArray[np.bool_] = (weight == 0.0) | ((weight >= LEAST_WEIGHT) & (weight <= MOST_WEIGHT))
    return usable


@dataclass(frozen=True)
class Batch:
    """Rows as float64 arrays: inputs [b, D], targets [b], known noise variances and weights (None: not given)."""

    X: Array
    y: Array
    noise_var: Array | None
    weight: Array | None
    place: Place

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: slice | NDArray[np.bool_]) -> "Batch":
        return Batch(
            self.X[index],
            self.y[index],
            None if self.noise_var is None else self.noise_var[index],
            None if self.weight is None else self.weight[index],
            self.place,
        )

    @classmethod
    def concat(cls, batches: Sequence["Batch"]) -> "Batch":
        """The rows of several batches, all with or all without known noise and weights."""
        filled = [batch for batch in batches if len(batch)] or list(batches[:1])
        if len(filled) == 1:
            return filled[0]
        return cls(
            np.concatenate([batch.X for batch in filled]),
            np.concatenate([batch.y for batch in filled]),
            _all_or_none([batch.noise_var for batch in filled]),
            _all_or_none([batch.weight for batch in filled]),
            filled[0].place,
        )


def _all_or_none(parts: list[Array | None]) -> Array | None:
    given = [part for part in parts if part is not None]
    if len(given) not in (0, len(parts)):
        raise InputError("Some batches have noise variances or weights and others have not; give all or none.")
    return np.concatenate(given) if given else None


class Source(Protocol):
    """Rows that can be read again and again, batch by batch, in the same order. Batches may be empty."""

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the user's columns; None for arrays, which have none."""

    @property
    def n_features(self) -> int:
        """Number of columns of X."""

    @property
    def layout(self) -> FeatureLayout:
        """Which columns of X belong together, and which are standardised; `PlainLayout` where that is no question."""

    @property
    def encoding(self) -> Encoding | None:
        """How the user's columns become those of X; None where they are the same."""

    @property
    def n_rows(self) -> int | None:
        """Number of rows; None where only a pass over the data can tell."""

    def __iter__(self) -> Iterator[Batch]:
        """A new pass over all rows."""


def regrouped(batches: Iterable[Batch], size: int) -> Iterator[Batch]:
    """The same rows, `size` at a time: sums over them do not depend on how a source cuts its batches."""
    waiting: list[Batch] = []
    for batch in batches:
        waiting.append(batch)
        while sum(map(len, waiting)) >= size:
            whole = Batch.concat(waiting)
            yield whole.take(slice(0, size))
            waiting = [whole.take(slice(size, None))]
    if any(map(len, waiting)):
        yield Batch.concat(waiting)
