"""One pass over a source before anything is learned: checks, number of rows, moments of columns, a random sample."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sparsegp.data.batches import (
    USABLE_WEIGHTS,
    Array,
    Batch,
    Place,
    Source,
    prefetched,
    regrouped,
    rows_per_batch,
    usable_weights,
)
from sparsegp.errors import InputError

SAMPLE_ROWS = 100_000
CONSTANT = 1e-12

OnScale = Callable[[Array], Array]
"""Targets on the scale on which the model learns them."""


def as_they_are(y: Array) -> Array:
    return y


@dataclass(frozen=True)
class Moments:
    """Of all rows so far: their total weight, and the mean and standard deviation of each column.

    Means are kept as distances from `origin`, the mean of the first batch: a large mean does not cancel. Spreads
    are kept as standard deviations and joined by hypot, which neither overflows nor underflows.
    """

    total: float
    origin: Array
    offset: Array
    std: Array

    @classmethod
    def of(cls, X: Array, weight: Array | None) -> "Moments":
        """The first rows; at least one has a positive weight."""
        return cls._about(np.average(X, axis=0, weights=weight), X, weight)

    @classmethod
    def _about(cls, origin: Array, X: Array, weight: Array | None) -> "Moments":
        centred = X - origin
        largest = np.abs(centred).max(axis=0)
        unit = np.where(largest > 0, largest, 1.0)
        offset = np.average(centred, axis=0, weights=weight)
        centred -= offset
        centred /= unit
        squares = np.square(centred, out=centred)  # memory that is new costs more than the arithmetic
        std = np.sqrt(np.average(squares, axis=0, weights=weight)) * unit
        return cls(float(len(X) if weight is None else weight.sum()), origin, offset, std)

    def including(self, X: Array, weight: Array | None) -> "Moments":
        """These and more rows, which need not have a mean near the origin."""
        return self + self._about(self.origin, X, weight)

    def __add__(self, other: "Moments") -> "Moments":
        """Of both: var = p var_1 + q var_2 + p q (mean_2 - mean_1)^2 with p, q the fractions of the weight."""
        total = self.total + other.total
        p, q = self.total / total, other.total / total
        # Distances between origins first: a large mean does not cancel.
        gap = (other.origin - self.origin) + (other.offset - self.offset)
        within = np.hypot(np.sqrt(p) * self.std, np.sqrt(q) * other.std)
        std = np.hypot(within, np.sqrt(p * q) * np.abs(gap))
        return Moments(total, self.origin, self.offset + q * gap, std)

    @property
    def mean(self) -> Array:
        mean: Array = self.origin + self.offset
        return mean

    @property
    def scale(self) -> Array:
        """The standard deviation; 1 for a column that is constant up to the rounding of its mean."""
        constant = (self.std <= CONSTANT * np.abs(self.mean)) | (self.std == 0)
        return np.where(constant, 1.0, self.std)


class MissingInputError(InputError):
    """An input is missing where all were taken for numbers: the columns have to be looked at first."""


class Reservoir:
    """Keeps `capacity` rows; after n rows each of them is in the sample with probability capacity/n.

    Row t replaces a random slot of 0..t if that is one of the sample's. One uniform number is drawn for every row, so
    the sample depends on the rows and not on how they are cut into batches. Until it is full, rows keep their order.
    """

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        self.capacity, self.rng, self.seen = capacity, rng, 0
        self._kept: dict[str, Array] = {}

    def add(self, batch: Batch) -> None:
        serial = self.seen + np.arange(len(batch))
        drawn = np.floor(self.rng.random(len(batch)) * (serial + 1)).astype(np.int64)
        slot = np.where(serial < self.capacity, serial, drawn)
        chosen = np.flatnonzero(slot < self.capacity)
        # Of several rows for one slot the last one stays.
        last = len(chosen) - 1 - np.unique(slot[chosen][::-1], return_index=True)[1]
        rows = chosen[last]
        for name, values in self._parts(batch).items():
            kept = self._room(name, values, int(slot[rows].max(initial=-1)) + 1)
            kept[slot[rows]] = values[rows]
        self.seen += len(batch)

    def _room(self, name: str, like: Array, n_rows: int) -> Array:
        """The array of a part, grown by doubling up to the capacity."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < n_rows:
            size = min(self.capacity, max(n_rows, 0 if kept is None else 2 * len(kept)))
            grown = np.empty((size, *like.shape[1:]))
            grown[: 0 if kept is None else len(kept)] = 0.0 if kept is None else kept
            self._kept[name] = kept = grown
        return kept

    @staticmethod
    def _parts(batch: Batch) -> dict[str, Array]:
        parts = {"X": batch.X, "y": batch.y, "noise_var": batch.noise_var, "weight": batch.weight}
        return {name: values for name, values in parts.items() if values is not None}

    @property
    def sample(self) -> Batch:
        n_rows = min(self.seen, self.capacity)
        kept = {name: values[:n_rows] for name, values in self._kept.items()}
        return Batch(kept["X"], kept["y"], kept.get("noise_var"), kept.get("weight"), Place("the sample"))


@dataclass(frozen=True)
class Scan:
    """What one pass tells. Rows of weight zero say nothing: they are counted apart and left out of all else.

    `was_cut`: the pass ended before the rows did. Rows without a target are counted, and left out of all else.
    """

    n_rows: int
    n_weightless: int
    inputs: Moments
    targets: Moments
    sample: Batch
    least_noise_var: float | None = None
    mean_noise_var: float | None = None
    was_cut: bool = False
    n_without_target: int = 0

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


def scan(
    source: Source,
    rng: np.random.Generator,
    sample_rows: int = SAMPLE_ROWS,
    is_late: Callable[[], bool] = lambda: False,
    on_scale: OnScale = as_they_are,
) -> Scan:
    """One pass, cut short when it `is_late`. Memory is that of the sample and a few batches.

    The moments are those of targets `on_scale`; the sample has them as they come.
    """
    tally = _Tally(Reservoir(sample_rows, rng), on_scale)
    was_cut = False
    for batch in regrouped(prefetched(tally.counted(source)), rows_per_batch(source.n_features)):
        tally.add(batch)
        if is_late():
            was_cut = source.n_rows is None or tally.n_read < source.n_rows
            break
    return replace(tally.result(), was_cut=was_cut)


@dataclass
class RowCount:
    """Rows of a pass, and how many of them have no target."""

    read: int = 0
    without_target: int = 0


@dataclass
class _Tally:
    """What the pass has met so far."""

    reservoir: Reservoir
    on_scale: OnScale = as_they_are
    count: RowCount = field(default_factory=RowCount)
    n_read: int = 0
    inputs: Moments | None = None
    targets: Moments | None = None
    least_noise_var: float = np.inf
    noise_var_sum: float = 0.0

    def counted(self, source: Source) -> Iterator[Batch]:
        """The rows with a positive weight; all of them count as read."""
        for batch in valid_batches(source, self.count):
            self.n_read += len(batch)
            yield with_weight(batch)

    def add(self, batch: Batch) -> None:
        X, y, weight = batch.X, self.on_scale(batch.y)[:, None], batch.weight
        self.reservoir.add(batch)
        self.inputs = self.inputs.including(X, weight) if self.inputs else Moments.of(X, weight)
        self.targets = self.targets.including(y, weight) if self.targets else Moments.of(y, weight)
        if batch.noise_var is not None:
            self.least_noise_var = min(self.least_noise_var, float(batch.noise_var.min()))
            self.noise_var_sum += float(batch.noise_var.sum())

    def result(self) -> Scan:
        if self.inputs is None or self.targets is None:
            say_without_target(self.count.without_target, self.count.read)
            raise InputError(
                "Every sample_weight is zero: there is nothing to learn from."
                if self.n_read
                else "The data have no rows: every file, row group or partition is empty."
            )
        n_rows, sample = self.reservoir.seen, self.reservoir.sample
        known: tuple[float | None, float | None] = None, None
        if sample.noise_var is not None:
            known = self.least_noise_var, self.noise_var_sum / n_rows
        missing = self.count.without_target
        return Scan(n_rows, self.n_read - n_rows, self.inputs, self.targets, sample, *known, n_without_target=missing)


def valid_batches(source: Source, count: RowCount | None = None) -> Iterator[Batch]:
    """The batches that have rows, each checked. Rows without a target are left out."""
    for batch in source:
        if len(batch):
            require_valid(batch, names_of(source))
            known = with_target(batch)
            if count is not None:
                count.read += len(batch)
                count.without_target += len(batch) - len(known)
            yield known


def names_of(source: Source) -> tuple[str, ...] | None:
    """Of each column of X, the name of the user's column that it comes from."""
    names, encoding = source.feature_names, source.encoding
    return names if encoding is None or names is None else tuple(encoding.names[d] for d in encoding.origins)


def with_target(batch: Batch) -> Batch:
    """The rows whose target is known."""
    missing = np.isnan(batch.y)
    return batch.take(~missing) if missing.any() else batch


def with_weight(batch: Batch) -> Batch:
    """The rows with a positive weight."""
    return batch if batch.weight is None or bool((batch.weight > 0).all()) else batch.take(batch.weight > 0)


def whole_batch(source: Source) -> Batch:
    """All rows of the source at once, for models that hold their rows in memory."""
    count = RowCount()
    batches = list(prefetched(valid_batches(source, count)))
    if not batches:
        raise InputError("The data have no rows: every file, row group or partition is empty.")
    say_without_target(count.without_target, count.read)
    return Batch.concat(batches)


def say_without_target(n_missing: int, n_rows: int) -> None:
    """A warning that rows were left out, or an error where all were."""
    if n_missing and n_missing == n_rows:
        raise InputError(f"The target is missing in all {n_rows:,} rows: there is nothing to learn from.")
    if n_missing:
        warnings.warn(f"The target is missing in {n_missing:,} of {n_rows:,} rows; these are left out.", stacklevel=2)


def require_valid(batch: Batch, names: tuple[str, ...] | None) -> None:
    """Inputs finite, targets finite or missing, noise variances positive, weights not negative; else an error."""
    require_no_infinity(batch, names)
    _require_inputs(batch, names, np.isnan(batch.X), MissingInputError)
    if np.isinf(batch.y).any():
        _refuse(batch, "the target", batch.y, np.isinf(batch.y), "a finite number")
    if batch.noise_var is not None:
        _require(batch, "the noise variance", batch.noise_var, batch.noise_var > 0, "finite and > 0")
    if batch.weight is not None:
        _require(batch, "the weight", batch.weight, usable_weights(batch.weight), USABLE_WEIGHTS)


def require_no_infinity(batch: Batch, names: tuple[str, ...] | None) -> None:
    """Inputs may be missing, but not infinite."""
    _require_inputs(batch, names, np.isinf(batch.X), InputError)


def _require_inputs(
    batch: Batch, names: tuple[str, ...] | None, bad: NDArray[np.bool_], error: type[InputError]
) -> None:
    if bad.any():
        column = int(np.flatnonzero(bad.any(axis=0))[0])
        label = f"column {column}" if names is None else f"column {names[column]!r}"
        _refuse(batch, label, batch.X[:, column], bad[:, column], "a finite number", error)


def _require(batch: Batch, label: str, values: Array, in_range: NDArray[np.bool_], expected: str) -> None:
    valid = in_range & np.isfinite(values)
    if not valid.all():
        _refuse(batch, label, values, ~valid, expected)


def _refuse(
    batch: Batch,
    label: str,
    values: Array,
    bad: NDArray[np.bool_],
    expected: str,
    error: type[InputError] = InputError,
) -> None:
    row = int(np.flatnonzero(bad)[0])
    value = "NaN or missing" if np.isnan(values[row]) else f"{values[row]:g}"
    raise error(
        f"{batch.place.row(row)}: {label} is {value}; expected {expected}. {int(bad.sum())} of the {len(batch)} rows "
        "read there are like that. Drop or impute them."
    )
