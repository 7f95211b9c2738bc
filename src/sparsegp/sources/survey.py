"""One pass over a source before anything is learned: checks, number of rows, standardisation, a random sample."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sparsegp.errors import InputError
from sparsegp.sources.batch import Array, Batch, Source, rows_per_batch
from sparsegp.sources.checking import require_valid
from sparsegp.sources.moments import Moments
from sparsegp.sources.prefetch import prefetched
from sparsegp.sources.reservoir import Reservoir

SAMPLE_ROWS = 100_000


@dataclass(frozen=True)
class Survey:
    """What one pass tells. Rows of weight zero say nothing: they are counted apart and left out of all else."""

    n_rows: int
    n_weightless: int
    inputs: Moments
    targets: Moments
    sample: Batch
    least_noise_var: float | None = None
    mean_noise_var: float | None = None

    @property
    def total_weight(self) -> float:
        """The number of rows, each counted with its weight."""
        return self.targets.total

    @property
    def is_complete(self) -> bool:
        """Whether the sample is all rows, in their order."""
        return len(self.sample) == self.n_rows

    @property
    def x_mean(self) -> Array:
        return self.inputs.mean

    @property
    def x_scale(self) -> Array:
        return self.inputs.scale

    @property
    def y_mean(self) -> float:
        return float(self.targets.mean[0])

    @property
    def y_scale(self) -> float:
        return float(self.targets.scale[0])


def survey(source: Source, rng: np.random.Generator, sample_rows: int = SAMPLE_ROWS) -> Survey:
    """One pass. Memory is that of the sample and a few batches."""
    tally = _Tally(Reservoir(sample_rows, rng))
    for batch in regrouped(prefetched(tally.counted(source)), rows_per_batch(source.n_features)):
        tally.add(batch)
    return tally.result()


@dataclass
class _Tally:
    """What the pass has met so far."""

    reservoir: Reservoir
    n_read: int = 0
    inputs: Moments | None = None
    targets: Moments | None = None
    least_noise_var: float = np.inf
    noise_var_sum: float = 0.0

    def counted(self, source: Source) -> Iterator[Batch]:
        """The rows with a positive weight; all of them count as read."""
        for batch in valid_batches(source):
            self.n_read += len(batch)
            yield with_weight(batch)

    def add(self, batch: Batch) -> None:
        self.reservoir.add(batch)
        X, y, weight = batch.X, batch.y[:, None], batch.weight
        self.inputs = self.inputs.including(X, weight) if self.inputs else Moments.of(X, weight)
        self.targets = self.targets.including(y, weight) if self.targets else Moments.of(y, weight)
        if batch.noise_var is not None:
            self.least_noise_var = min(self.least_noise_var, float(batch.noise_var.min()))
            self.noise_var_sum += float(batch.noise_var.sum())

    def result(self) -> Survey:
        if self.inputs is None or self.targets is None:
            raise InputError(
                "Every sample_weight is zero: there is nothing to learn from."
                if self.n_read
                else "The data have no rows: every file, row group or partition is empty."
            )
        n_rows, sample = self.reservoir.seen, self.reservoir.sample
        known = {}
        if sample.noise_var is not None:
            known = {"least_noise_var": self.least_noise_var, "mean_noise_var": self.noise_var_sum / n_rows}
        return Survey(n_rows, self.n_read - n_rows, self.inputs, self.targets, sample, **known)


def valid_batches(source: Source) -> Iterator[Batch]:
    """The batches that have rows, each checked."""
    for batch in source:
        if len(batch):
            require_valid(batch, source.feature_names)
            yield batch


def with_weight(batch: Batch) -> Batch:
    """The rows with a positive weight."""
    return batch if batch.weight is None or bool((batch.weight > 0).all()) else batch.take(batch.weight > 0)


def regrouped(batches: Iterable[Batch], size: int) -> Iterator[Batch]:
    """The same rows, `size` at a time: sums over them do not depend on how a source cuts its batches."""
    waiting: list[Batch] = []
    for batch in batches:
        waiting.append(batch)
        while sum(map(len, waiting)) >= size:
            whole = joined(waiting)
            yield whole.take(slice(0, size))
            waiting = [whole.take(slice(size, None))]
    if any(map(len, waiting)):
        yield joined(waiting)


def whole_batch(source: Source) -> Batch:
    """All rows of the source at once, for models that hold their rows in memory."""
    batches = list(prefetched(valid_batches(source)))
    if not batches:
        raise InputError("The data have no rows: every file, row group or partition is empty.")
    return joined(batches)


def joined(batches: Sequence[Batch]) -> Batch:
    """The rows of several batches, all with or all without known noise and weights."""
    filled = [batch for batch in batches if len(batch)] or list(batches[:1])
    if len(filled) == 1:
        return filled[0]
    return Batch(
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
