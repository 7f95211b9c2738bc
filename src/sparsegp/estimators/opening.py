"""Where the rows of a fit are: in memory, in a file too large for it, or on the workers of a cluster.

Nothing after this asks again.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp import memory
from sparsegp.calibration.transform import TargetTransform, named
from sparsegp.cluster.client import connected
from sparsegp.cluster.shares import read_encoded_on
from sparsegp.core.block import Block, MemoryRows, Rows
from sparsegp.data import Batch, FeatureLayout, Scan, Source, read_encoded, scan, with_encoding
from sparsegp.data.completion import Completion
from sparsegp.data.digest import RowDigest
from sparsegp.data.encoded import needs_survey, surveyed
from sparsegp.data.open import OpeningOptions
from sparsegp.data.rows import SourceRows, to_block
from sparsegp.data.scan import OnScale, as_they_are, say_without_target
from sparsegp.data.tables import library_of
from sparsegp.errors import InputError
from sparsegp.estimators import checks
from sparsegp.estimators.fitted import Columns
from sparsegp.estimators.given import Given
from sparsegp.fit.blocking import drop_weightless
from sparsegp.fit.budget import Budget
from sparsegp.fit.scaling import Scaling
from sparsegp.fit.start import StartRows
from sparsegp.learn.trace import is_over

HELD_COPIES = 3
"""Of rows in memory: as they come, in one piece, and in the scaling of the model."""


@dataclass(frozen=True)
class Needs:
    """What a model needs of its rows.

    `can_stream`: it can be summed up over rows that are not all in memory; `streams_arrays`: over those of large
    arrays, too, rather than a second copy of them. `not_on_cluster`: why workers cannot have the rows, if they cannot.
    """

    can_stream: bool
    streams_arrays: bool = True
    not_on_cluster: str | None = None


@dataclass(frozen=True)
class Opened:
    """Rows in the scaling of the model, that scaling, and how many rows came, those of weight zero included.

    `labels` are the user's blocks of the rows. `was_cut`: a short budget has left rows unread; `n_all` is then how many
    there are, as far as that is known. `digest` is that of the rows where they are in memory.
    """

    rows: Rows
    scaling: Scaling
    columns: Columns
    n_given: int
    labels: ArrayLike | None = None
    n_all: int = 0
    was_cut: bool = False
    digest: RowDigest | None = None

    @property
    def block(self) -> Block:
        """Rows in memory to start and choose from."""
        return self.rows.sample.all

    @property
    def start_rows(self) -> StartRows:
        return StartRows(self.block, self.scaling, self.columns.layout.tied)

    @property
    def completing(self) -> "Opened":
        """The same; columns of numbers know from the rows what one of them may be where it is missing."""
        if self.columns.encoding is not None:
            return self
        completion = Completion.of(self.block.X.double().cpu().numpy())
        return replace(self, columns=replace(self.columns, completion=completion))


@contextmanager
def opened(
    estimator: Any,
    given: Given,
    needs: Needs,
    *,
    seed: int,
    budget: Budget,
    like: Tensor,
    scaling: Scaling | None = None,
) -> Iterator[Opened]:
    """The rows of a fit, for as long as it lasts, or those of a model, whose `scaling` there is already.

    `like` has the precision and the device of the rows.
    """
    options = estimator.fit_options.opening.within_memory()
    where = cluster_of(given)
    if given.cluster is not None and needs.not_on_cluster is not None:
        raise InputError(f"A fit on a cluster is not possible: {needs.not_on_cluster} Fit without client=.")
    if where is not None and needs.not_on_cluster is None:
        if given.blocks is not None:
            raise InputError("blocks= cannot be given together with client=: the workers make the blocks.")
        with connected(where) as client:
            rows = given.source() if scaling is None else _like_fit(estimator, given.source())
            found = _on_cluster(client, estimator, rows, seed, like, scaling)
            yield found.completing if scaling is None else found
        return
    source = None
    if needs.can_stream and given.blocks is None:
        if scaling is None:
            given = _with_known_columns(estimator, given, budget, options)
        source = _large_source(estimator, given, options, arrays=needs.streams_arrays, is_first=scaling is None)
    if source is None:
        _require_room(given)
    found = (
        _in_memory(estimator, given, like, scaling)
        if source is None
        else _scanned(estimator, source, seed, budget, like, options, scaling)
    )
    yield found.completing if scaling is None else found


def is_dask(X: Any) -> bool:
    return library_of(X) == "dask"


def named_cluster(client: Any, cluster: Any) -> Any:
    """The cluster that was named, by one argument or the other; None: none was."""
    if client is not None and cluster is not None:
        raise InputError("Give client= or cluster=, not both: each names the Dask cluster to work on.")
    return cluster if client is None else client


def cluster_of(given: Given) -> Any:
    """The cluster that was named; for a dask collection, the Dask client in use: its partitions are there anyway."""
    module = sys.modules.get("distributed")
    if given.cluster is not None or given.blocks is not None or module is None or not is_dask(given.X):
        return given.cluster
    try:
        return module.Client.current()
    except ValueError:
        return None


def _with_known_columns(estimator: Any, given: Given, budget: Budget, options: OpeningOptions) -> Given:
    """The same rows; where columns are no numbers, how many numbers they become decides whether these are many."""
    asked = checks.asked_of(estimator)
    source = checks.source_of(given)
    if source is None or not needs_survey(source, asked):
        return given
    until = budget.deadline(options.survey_fraction * options.scan_fraction)
    return Given(surveyed(source, asked, is_late=lambda: is_over(until)))


def _like_fit(estimator: Any, source: Source) -> Source:
    """More rows with the encoding of the fit."""
    return with_encoding(source, estimator.fitted_.columns.encoding)


def _large_source(
    estimator: Any, given: Given, options: OpeningOptions, *, arrays: bool, is_first: bool
) -> Source | None:
    """The data as a source if they are too many for memory, or if only a pass over them can tell."""
    source = checks.source_of(given)
    if source is None:
        if not arrays or math.prod(getattr(given.X, "shape", ())) <= options.most_entries:
            return None
        features, y = checks.split_target(given)
        source = replace(given, X=features, y=y, target=None).source()
    if not is_first:
        source = _like_fit(estimator, source)
    is_small = source.n_rows is not None and source.n_rows * source.n_features <= options.most_entries
    return None if is_small else source


def _require_room(given: Given) -> None:
    """For rows that are to be held, where it is known how many there are."""
    shape: tuple[Any, ...] = getattr(given.X, "shape", ())
    if isinstance(given.X, str | Path) and (source := checks.source_of(given)) is not None:
        shape = source.n_rows, source.n_features
    if len(shape) == 2 and all(isinstance(n, int) for n in shape):
        n_bytes = 8.0 * HELD_COPIES * math.prod(shape)
        memory.require(n_bytes, f"Holding {shape[0]:,} rows of {shape[1]} columns in memory")


def _in_memory(estimator: Any, given: Given, like: Tensor, scaling: Scaling | None) -> Opened:
    if scaling is None:
        batch, columns = checks.training_batch(estimator, given)
        scaling = Scaling.of(
            batch, normalize=estimator.normalize, layout=columns.layout, transform=_transform(estimator)
        )
    else:
        batch = checks.later_batch(estimator, given)
        columns = estimator.fitted_.columns
    return _of_batch(batch, columns, scaling, given.blocks, like)


def _of_batch(batch: Batch, columns: Columns, scaling: Scaling, blocks: ArrayLike | None, like: Tensor) -> Opened:
    block, labels = drop_weightless(to_block(batch, scaling, like), blocks)
    digest = RowDigest.empty().with_rows(batch)
    return Opened(MemoryRows(block), scaling, columns, len(batch), labels, digest=digest)


def _scanned(
    estimator: Any,
    source: Source,
    seed: int,
    budget: Budget,
    like: Tensor,
    options: OpeningOptions,
    scaling: Scaling | None,
) -> Opened:
    """A source that is read anew in every pass, or its sample if that is all of it, or all there was time to read."""
    until, survey_until = (budget.deadline(share * options.scan_fraction) for share in (1.0, options.survey_fraction))
    started, transform = budget.clock(), _transform(estimator) if scaling is None else scaling.transform

    def scanned_rows(source: Source) -> Scan:
        sample_rows = max(1, options.most_entries // source.n_features)
        rng, on_scale = np.random.default_rng((seed, 1)), _on_scale(transform)
        return scan(source, rng, sample_rows, lambda: is_over(until), on_scale)

    source, found = read_encoded(source, checks.asked_of(estimator), scanned_rows, lambda: is_over(survey_until))
    say_without_target(found.n_without_target, found.n_rows + found.n_weightless + found.n_without_target)
    columns, n_read = Columns.of_source(source), found.n_rows + found.n_weightless
    if not (found.is_complete or found.was_cut):
        budget.read_seconds = (budget.clock() - started) / max(n_read, 1)
    if found.is_complete or found.was_cut:
        scaling = scaling or Scaling.of(
            found.sample, normalize=estimator.normalize, layout=source.layout, transform=transform
        )
        whole = _of_batch(found.sample, columns, scaling, None, like)
        n_all = max(n_read, source.n_rows or 0) if found.was_cut else n_read
        return replace(whole, n_given=n_read, n_all=n_all, was_cut=found.was_cut)
    scaling = scaling or _scaling(found, source.layout, normalize=estimator.normalize, transform=transform)
    return Opened(SourceRows.of(source, found, scaling, like), scaling, columns, n_read)


def _on_cluster(
    client: Any, estimator: Any, source: Source, seed: int, like: Tensor, scaling: Scaling | None
) -> Opened:
    """Two passes over the source; afterwards only the rows in the scaling of the model are held on the workers.

    Columns that are no numbers are looked at in one pass more, or two.
    """
    transform = _transform(estimator) if scaling is None else scaling.transform
    source, shares = read_encoded_on(client, source, checks.asked_of(estimator), seed, _on_scale(transform))
    found = shares.scan
    say_without_target(found.n_without_target, found.n_rows + found.n_weightless + found.n_without_target)
    scaling = scaling or _scaling(found, source.layout, normalize=estimator.normalize, transform=transform)
    rows = shares.load(scaling, like.dtype)
    return Opened(rows, scaling, Columns.of_source(source), found.n_rows + found.n_weightless)


def _scaling(found: Scan, layout: FeatureLayout, *, normalize: bool, transform: TargetTransform | None) -> Scaling:
    if found.is_complete or not normalize:
        return Scaling.of(found.sample, normalize=normalize, layout=layout, transform=transform)
    return Scaling(found.x_mean, found.x_scale, found.y_mean, found.y_scale, transform).only(layout.standardized)


def _transform(estimator: Any) -> TargetTransform | None:
    """What the targets of a first fit go through."""
    return named(estimator.target_transform)


def _on_scale(transform: TargetTransform | None) -> OnScale:
    return as_they_are if transform is None else transform.targets
