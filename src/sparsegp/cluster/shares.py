"""Sources on workers: opened on the driver, cut into shares, then scanned, loaded or summed up where the shares are."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np
import torch

from sparsegp.cluster.client import READING_RETRIES, dask_package, gathered, losses_explained, submit, worker_threads
from sparsegp.cluster.dask_rows import DaskRows
from sparsegp.cluster.executor import DaskExecutor, all_threads
from sparsegp.core.block import Block, MemoryRows, Sum
from sparsegp.data import Scan, scan
from sparsegp.data.arrays import ArraySource
from sparsegp.data.batches import Batch, Source
from sparsegp.data.columns import Columns
from sparsegp.data.encoded import (
    Numbers,
    SurveyedColumns,
    effect_sums,
    needs_survey,
    sum_of,
    survey_of,
    tabular,
    with_encoding,
)
from sparsegp.data.encoding import Encoding
from sparsegp.data.files import FileSource
from sparsegp.data.iterables import DaskArraySource, DaskFrameSource
from sparsegp.data.layout import FeatureLayout
from sparsegp.data.rows import Scaling, SourceRows, to_block
from sparsegp.data.scan import (
    SAMPLE_ROWS,
    MissingInputError,
    OnScale,
    as_they_are,
    valid_batches,
    with_weight,
)
from sparsegp.data.survey import Asked
from sparsegp.data.tables import TableSource
from sparsegp.errors import InputError, SparseGPError
from sparsegp.parallel import packed, unpacked


@dataclass(frozen=True)
class Joined:
    """Several sources with the same columns, one after another."""

    sources: tuple[Any, ...]
    feature_names: tuple[str, ...] | None
    n_features: int
    encoding: Encoding | None = None

    @property
    def layout(self) -> FeatureLayout:
        return FeatureLayout.plain(self.n_features) if self.encoding is None else self.encoding.layout

    @property
    def n_rows(self) -> None:
        return None

    def __iter__(self) -> Iterator[Batch]:
        for source in self.sources:
            yield from source


def pieces_of(source: Source, n_shares: int) -> list[tuple[Source, float]]:
    """Consecutive pieces of a source, each with the number of its rows (1 where nobody knows it)."""
    if isinstance(source, Numbers):
        inner = pieces_of(source.source, n_shares)
        return [(replace(source, source=piece), size) for piece, size in inner]
    if isinstance(source, FileSource):
        return [(part, 1.0 if part.n_rows is None else part.n_rows) for part in source.cut()]
    if isinstance(source, ArraySource | TableSource):
        cuts = [round(source.n_rows * k / n_shares) for k in range(n_shares + 1)]
        return [(_rows(source, a, b), b - a) for a, b in pairwise(cuts)]
    raise InputError(
        f"A {type(source).__name__} can only be read on this machine, not by workers. Give arrays, a table, a dask "
        "collection, or paths to files that every worker can read."
    )


def shared_out(pieces: Sequence[Any], sizes: Sequence[float], n_shares: int) -> list[list[Any]]:
    """Consecutive pieces for each share, about as many rows in each; a piece goes where its middle falls."""
    size = np.asarray(sizes, dtype=np.float64)
    middle = np.cumsum(size) - size / 2.0
    share = np.minimum((middle / max(float(size.sum()), 1.0) * n_shares).astype(int), n_shares - 1)
    return [[piece for piece, k in zip(pieces, share, strict=True) if k == j] for j in range(n_shares)]


def _rows(source: ArraySource | TableSource, start: int, stop: int) -> Source:
    """Rows start:stop; messages count rows from `start`, which the name says."""
    name = source.name if start == 0 else f"{source.name} from row {start} on"
    if isinstance(source, TableSource):
        return replace(source, table=source.table.slice(start, stop - start), name=name)
    noise, weight = (None if part is None else part[start:stop] for part in (source.noise_var, source.weight))
    return replace(source, X=source.X[start:stop], y=source.y[start:stop], noise_var=noise, weight=weight, name=name)


def partitions_of(source: DaskFrameSource | DaskArraySource) -> list[Any]:
    """What dask computes for each partition: a frame, or the list [X, y, noise variances, weights]."""
    if isinstance(source, DaskFrameSource):
        return list(source.frame.to_delayed())
    columns = (source.X.rechunk({1: -1}), source.y, source.noise_var, source.weight)
    parts = [None if values is None else values.to_delayed().ravel() for values in columns]
    together = dask_package().delayed(list)
    return [together([None if part is None else part[k] for part in parts]) for k in range(source.X.numblocks[0])]


def frame_source(columns: Columns, first: int, frames: Sequence[Any]) -> Joined:
    """Runs on a worker: partitions `first`, `first + 1`, ... of a dask DataFrame."""
    sources = tuple(TableSource.like(frame, columns, f"partition {first + k}") for k, frame in enumerate(frames))
    return Joined(sources, columns.features, columns.n_features, columns.encoding)


def array_source(n_features: int, first: int, blocks: Sequence[Sequence[Any]]) -> Joined:
    """Runs on a worker: partitions `first`, `first + 1`, ... of dask arrays X, y, noise variances and weights."""
    sources = tuple(
        ArraySource.of(X, y, noise_var, weight, name=f"partition {first + k}")
        for k, (X, y, noise_var, weight) in enumerate(blocks)
    )
    return Joined(sources, None, n_features)


@dataclass(frozen=True)
class ScannedShares:
    """Futures of the sources of each share, and what one pass over them told."""

    client: Any
    threads: Mapping[str, int]
    sources: tuple[Any, ...]
    counts: tuple[int, ...]
    scan: Scan

    def load(self, scaling: Scaling, dtype: torch.dtype = torch.float64) -> DaskRows:
        """The rows in the scaling of the model, kept in the memory of the workers."""
        homes = tuple(self.threads)
        arguments = zip(self.sources, self.counts, homes, strict=True)
        shares = tuple(
            submit(self.client, load_share, source, scaling, n, dtype, home=home, retries=READING_RETRIES)
            for source, n, home in arguments
        )
        found, y_sq = self.scan, scaling.y_scale**2
        executor = DaskExecutor(self.client, self.threads)
        return DaskRows(
            executor,
            executor.adopt(shares, homes, self.counts),
            self.counts,
            found.total_weight,
            MemoryRows(to_block(found.sample, scaling, torch.empty(0, dtype=dtype))),
            None if found.least_noise_var is None else found.least_noise_var / y_sq,
            None if found.mean_noise_var is None else found.mean_noise_var / y_sq,
        )


def read_encoded_on(
    client: Any, source: Source, asked: Asked, seed: int, on_scale: OnScale = as_they_are
) -> tuple[Source, ScannedShares]:
    """The scan of the source as numbers, and the source with its encoding, which the workers have found together."""
    if needs_survey(source, asked):
        source = surveyed_on(client, source, asked)
    try:
        return source, scanned(client, source, seed, on_scale=on_scale)
    except MissingInputError:
        source = surveyed_on(client, source, asked)
        return source, scanned(client, source, seed, on_scale=on_scale)


def surveyed_on(client: Any, source: Source, asked: Asked) -> Source:
    """The source with the encoding of its columns: every worker looks at its share, and the findings are added up."""
    asked.require_known(tabular(source).columns.features)
    found = _asked_of_shares(client, source, survey_share, asked)
    if found is None:
        raise InputError("The data have no rows: every file, row group or partition is empty.")
    encoding = found.encoding(asked)
    if found.needs_effects(encoding):
        sums = _asked_of_shares(client, with_encoding(source, encoding), effects_of_share, found)
        encoding = found.with_effects(encoding, sums)
    return with_encoding(source, encoding)


def _asked_of_shares(client: Any, source: Source, task: Callable[..., Any], given: Any) -> Any:
    """The sum of what a task says of each share; None where no share has rows."""
    homes = tuple(worker_threads(client))
    shares = placed(client, source, homes)
    asked = [
        submit(client, task, mine, given, home=home, retries=READING_RETRIES)
        for mine, home in zip(shares, homes, strict=True)
    ]
    parts = gathered(client, asked)
    for part in parts:
        if isinstance(part, InputError):
            raise part
    return sum_of(parts)


def survey_share(source: Joined, asked: Asked) -> Any:
    """Runs on a worker: what the columns of its rows are. Bad input is a result, not a failure."""
    try:
        return sum_of([survey_of(part, asked) for part in source.sources])
    except InputError as error:
        return error


def effects_of_share(source: Joined, survey: SurveyedColumns) -> Any:
    """Runs on a worker: what its rows say of the effects of levels."""
    try:
        return sum_of([effect_sums(part, survey) for part in source.sources])
    except InputError as error:
        return error


def scanned(client: Any, source: Source, seed: int, on_scale: OnScale = as_they_are) -> ScannedShares:
    """One share for each worker; one pass, in which every worker reads its own."""
    threads = worker_threads(client)
    homes = tuple(threads)
    sources = placed(client, source, homes)
    scans = [
        submit(client, scan_share, mine, (seed, k), SAMPLE_ROWS, on_scale, home=home, retries=READING_RETRIES)
        for k, (mine, home) in enumerate(zip(sources, homes, strict=True))
    ]
    with reading_explained():
        facts = gathered(client, [submit(client, without_sample, mine) for mine in scans])
    for fact in facts:
        if fact.error is not None:
            raise fact.error
    counts = tuple(0 if fact.found is None else fact.found.n_rows for fact in facts)
    sizes = sample_sizes(counts, SAMPLE_ROWS, np.random.default_rng((seed, len(homes))))
    asked = [
        submit(client, some_rows, mine, size, (seed, k, 1))
        for k, (mine, size) in enumerate(zip(scans, sizes, strict=True))
    ]
    with reading_explained():
        samples = [part for part in gathered(client, asked) if part is not None]
    found = [fact.found for fact in facts if fact.found is not None]
    n_weightless = sum(fact.n_weightless for fact in facts)
    whole = joined_scan(found, n_weightless, samples)
    return ScannedShares(client, threads, sources, counts, whole)


@contextmanager
def reading_explained() -> Iterator[None]:
    """Within, what goes wrong in a task is that the rows cannot be had."""
    try:
        yield
    except SparseGPError:
        raise
    except Exception as error:
        raise InputError(
            f"The rows cannot be read on the workers: {error!r}. A partition of a dask collection is computed there: "
            "try `collection.partitions[k].compute()`. A file must be at the same path on every worker."
        ) from error


def placed(client: Any, source: Source, homes: tuple[str, ...]) -> tuple[Any, ...]:
    """The source of each share as a future at its home."""
    if isinstance(source, DaskFrameSource | DaskArraySource):
        return _collection_shares(client, source, homes)
    if isinstance(source, Numbers) and isinstance(source.source, DaskArraySource):
        plain = _collection_shares(client, source.source, homes)
        return tuple(
            submit(client, with_encoding, mine, source.encoding, home=home)
            for mine, home in zip(plain, homes, strict=True)
        )
    found = pieces_of(source, len(homes))
    shares = shared_out([piece for piece, _ in found], [size for _, size in found], len(homes))
    with warnings.catch_warnings():
        # Arrays of the caller have no other home than the task itself, from which a lost share is made again.
        warnings.filterwarnings("ignore", message="Sending large graph")
        return tuple(
            submit(client, Joined, tuple(mine), source.feature_names, source.n_features, source.encoding, home=home)
            for mine, home in zip(shares, homes, strict=True)
        )


def _collection_shares(
    client: Any, source: DaskFrameSource | DaskArraySource, homes: tuple[str, ...]
) -> tuple[Any, ...]:
    partitions = partitions_of(source)
    shares = shared_out(range(len(partitions)), [1.0] * len(partitions), len(homes))
    placed = []
    for mine, home in zip(shares, homes, strict=True):
        with losses_explained():
            computed = client.compute(
                [partitions[k] for k in mine], workers=[home], allow_other_workers=True, retries=READING_RETRIES
            )
        first = mine[0] if mine else 0
        if isinstance(source, DaskFrameSource):
            placed.append(submit(client, frame_source, source.columns, first, computed, home=home))
        else:
            placed.append(submit(client, array_source, source.n_features, first, computed, home=home))
    return tuple(placed)


def sample_sizes(n_rows: Sequence[int], capacity: int, rng: np.random.Generator) -> list[int]:
    """Rows to draw from each share so that the whole is a uniform sample of all rows."""
    if sum(n_rows) <= capacity:
        return list(n_rows)
    return [int(size) for size in rng.multivariate_hypergeometric(n_rows, capacity, method="marginals")]


def joined_scan(parts: Sequence[Scan], n_weightless: int, samples: Sequence[Batch]) -> Scan:
    """The scan of all rows from those of the shares that have any."""
    if not parts:
        raise InputError(
            "Every sample_weight is zero: there is nothing to learn from."
            if n_weightless
            else "The data have no rows: every file, row group or partition is empty."
        )
    n_rows = sum(part.n_rows for part in parts)
    least = [part.least_noise_var for part in parts if part.least_noise_var is not None]
    means = [part.mean_noise_var * part.n_rows for part in parts if part.mean_noise_var is not None]
    return Scan(
        n_rows,
        n_weightless,
        reduce(add, (part.inputs for part in parts)),
        reduce(add, (part.targets for part in parts)),
        Batch.concat(samples),
        min(least, default=None),
        sum(means) / n_rows if means else None,
        n_without_target=sum(part.n_without_target for part in parts),
    )


# What workers do with their share. Every function is pure: a lost result is computed again.


@dataclass(frozen=True)
class ShareScan:
    """The scan of a share (None: it has no rows that count), rows of weight zero, and what is wrong with it."""

    found: Scan | None = None
    n_weightless: int = 0
    error: InputError | None = None


def scan_share(source: Source, seed: tuple[int, int], sample_rows: int, on_scale: OnScale) -> ShareScan:
    """Bad input is a result, not a failure: reading it again would not help."""
    try:
        if not any(len(with_weight(part)) for part in valid_batches(source)):
            return ShareScan(None, sum(len(part) for part in valid_batches(source)))
        found = scan(source, np.random.default_rng(seed), sample_rows, on_scale=on_scale)
        return ShareScan(found, found.n_weightless)
    except InputError as error:
        return ShareScan(error=error)


def without_sample(share: ShareScan) -> ShareScan:
    """The facts, which are small."""
    if share.found is None:
        return share
    found = share.found
    empty = found.sample.take(slice(0, 0))
    facts = (found.n_rows, found.n_weightless, found.inputs, found.targets, empty)
    noise = found.least_noise_var, found.mean_noise_var
    return ShareScan(Scan(*facts, *noise, n_without_target=found.n_without_target), share.n_weightless)


def some_rows(share: ShareScan, n_rows: int, seed: tuple[int, ...]) -> Batch | None:
    """A random part of the sample, in the order of the sample; all of it when it is not larger."""
    if share.found is None or n_rows == 0:
        return None
    sample = share.found.sample
    if n_rows >= len(sample):
        return sample
    chosen = np.zeros(len(sample), dtype=bool)
    chosen[np.random.default_rng(seed).choice(len(sample), n_rows, replace=False)] = True
    return sample.take(chosen)


def load_share(source: Source, scaling: Scaling, n_rows: int, dtype: torch.dtype) -> MemoryRows:
    """The share in the scaling of the model, in memory."""
    empty = Block.empty(source.n_features, dtype)
    rows = SourceRows(source, scaling, n_rows, MemoryRows(empty), float(n_rows))
    return MemoryRows(Block.concat([empty, *(part.all for part in rows)]))


def sum_over(
    client: Any, source: Source, scaling: Scaling, task: Callable[[Block, int], Sum], dtype: torch.dtype
) -> Sum:
    """The sum of the task over parts of the source, each read once; the shares are added in their order.

    A part is a partition, a file or a row group. The task is given its rows and how many of weight zero there were.
    """
    homes = tuple(worker_threads(client))
    shares, message = placed(client, source, homes), packed(task)
    asked = [
        submit(client, sum_of_share, mine, scaling, message, dtype, home=home, retries=READING_RETRIES)
        for mine, home in zip(shares, homes, strict=True)
    ]
    with reading_explained():
        answers = gathered(client, asked)
    parts = [unpacked(answer) for answer in answers]
    for part in parts:
        if isinstance(part, InputError):
            raise part
    total: Sum = reduce(add, parts)
    return total


def sum_of_share(source: Joined, scaling: Scaling, message: bytes, dtype: torch.dtype) -> bytes:
    """Bad input is a result, not a failure: reading it again would not help."""
    like, empty = torch.empty(0, dtype=dtype), Block.empty(source.n_features, dtype)
    with all_threads():
        task = unpacked(message)
        total = task(empty, 0)
        try:
            for part in source.sources:
                batches = list(valid_batches(part))
                blocks = [to_block(with_weight(batch), scaling, like) for batch in batches]
                block = Block.concat([empty, *blocks])
                total = total + task(block, sum(map(len, batches)) - len(block))
        except InputError as error:
            return packed(error)
        return packed(total)
