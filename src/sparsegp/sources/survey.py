"""One pass over a source before anything is learned: checks, number of rows, standardisation, a random sample."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sparsegp.errors import InputError
from sparsegp.sources.batch import Array, Batch, Source
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
    for batch in prefetched(valid_batches(source)):
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

    def add(self, batch: Batch) -> None:
        self.n_read += len(batch)
        batch = with_weight(batch)
        if len(batch) == 0:
            return
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
