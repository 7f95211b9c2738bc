"""Which rows a model has been given, in a fixed number of bytes: rows that it never had need not be forgotten.

A counting Bloom filter of hashes of rows, as the user gave them. A row that was added is always found. One that was not
is found by chance: with N rows held about (1 - exp(-3 N / 32768))^3 times, 0.07% at 1,000 rows and 5% at 5,000. All
rows of a call must be found, so that a batch slips through far more seldom.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsegp.data.batches import Batch, Place
from sparsegp.errors import InputError

SIZE = 2**15
HASHES = 3
FULL = 255  # a counter that got there stays: it no longer tells, but never lies
MOST_PENDING = 128
HASHED_TOGETHER = 2**14
"""Rows whose numbers stay in the cache of the processor while all of their columns are mixed."""
ZERO, ONE = np.zeros(1).tobytes(), np.ones(1).tobytes()
Words = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class RowDigest:
    """How many of the rows held have each of `SIZE` values as one of their `HASHES` hashes.

    `summed` lacks the `pending` rows, which came alone: to hash one takes as long as to hash a hundred, and longer than
    the rest of an update. They are hashed together, when there are many or when someone asks.
    """

    summed: NDArray[np.uint8]
    pending: tuple[bytes, ...] = ()

    @classmethod
    def empty(cls) -> "RowDigest":
        return cls(np.zeros(SIZE, dtype=np.uint8))

    @cached_property
    def counts(self) -> NDArray[np.uint8]:
        """The counters of all rows held."""
        return _more(self.summed, *_counted(_joined(self.pending))) if self.pending else self.summed

    def with_rows(self, batch: Batch) -> "RowDigest":
        if len(batch.y) == 1 and len(self.pending) < MOST_PENDING:
            return RowDigest(self.summed, (*self.pending, _alone(batch)))
        return RowDigest(_more(self.counts, *_counted(batch)))

    def __add__(self, other: "RowDigest") -> "RowDigest":
        return RowDigest(_more(self.counts, slice(None), other.counts))

    def without_rows(self, batch: Batch) -> "RowDigest":
        """An error if one of the rows cannot have been added."""
        places, removed = _counted(batch)
        before = self.counts[places].astype(np.int64)
        if ((removed > before) & (before < FULL)).any():
            raise InputError(
                "Rows to forget must have been added before, with the same values, noise variances and weights; at "
                "least one of these was not. The model is unchanged."
            )
        counts = self.counts.copy()
        counts[places] = np.where(before == FULL, FULL, before - removed)
        return RowDigest(counts)


def _more(counts: NDArray[np.uint8], places: Any, added: NDArray[Any]) -> NDArray[np.uint8]:
    more = counts.copy()
    more[places] = np.minimum(more[places] + added.astype(np.int64), FULL)
    return more


def _alone(batch: Batch) -> bytes:
    """The numbers of a batch of one row: a copy, because the caller may overwrite what was given."""
    noise = ZERO if batch.noise_var is None else batch.noise_var.tobytes()
    weight = ONE if batch.weight is None else batch.weight.tobytes()
    return batch.X.tobytes() + batch.y.tobytes() + noise + weight


def _joined(rows: tuple[bytes, ...]) -> Batch:
    """One batch of rows that came alone."""
    columns = np.frombuffer(b"".join(rows)).reshape(len(rows), -1)
    y, noise_var, weight = columns[:, -3:].T
    return Batch(columns[:, :-3], y, noise_var, weight, Place("rows that came alone"))


def _counted(batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Hashes of the rows, each once, and how often. Rows of weight zero change no model: they do not count."""
    if batch.weight is not None:
        batch = batch.take(batch.weight > 0)
    starts = range(0, max(len(batch.y), 1), HASHED_TOGETHER)
    first = np.concatenate([_hashed(batch.take(slice(start, start + HASHED_TOGETHER))) for start in starts])
    second = _mixed(first) | np.uint64(1)
    hashes = np.concatenate([(first + np.uint64(k) * second) % np.uint64(SIZE) for k in range(HASHES)])
    if len(hashes) < SIZE:
        places, counts = np.unique(hashes.astype(np.int64), return_counts=True)
        return places, counts
    return np.arange(SIZE), np.bincount(hashes.astype(np.int64), minlength=SIZE)


def _hashed(batch: Batch) -> Words:
    """64 bits of each row, the same on every machine. A weight that is not given is 1."""
    n_rows = len(batch.y)
    weight = np.ones(n_rows) if batch.weight is None else batch.weight
    noise = np.zeros(n_rows) if batch.noise_var is None else batch.noise_var
    found = np.zeros(n_rows, dtype=np.uint64)
    for column in (*batch.X.T, batch.y, noise, weight):
        bits = np.ascontiguousarray(column + 0.0, dtype=np.float64).view(np.uint64)  # + 0.0: -0.0 is 0.0
        found = _mixed(found ^ bits)
    return found


def _mixed(words: Words) -> Words:
    """The finaliser of splitmix64: every bit of the input changes half of the bits of the output."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
