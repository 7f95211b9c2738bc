"""Where the rows of a fit are: in memory, in a file too large for it, or on the workers of a cluster.

Nothing after this asks again.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp import memory
from sparsegp.calibration.transform import TargetTransform, named
from sparsegp.cluster.client import connected
from sparsegp.cluster.shares import read_encoded_on
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block, MemoryRows, Rows
from sparsegp.data import Asked, Batch, FeatureLayout, Scan, Source, read_encoded, scan, with_encoding
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


@dataclass(frozen=True)
class Opener:
    """Opens the rows of a fit, or more rows for a model, whose `scaling` there is already.

    `like` has the precision and the device of the rows.
    """

    estimator: Any
    seed: int
    budget: Budget
    like: Tensor
    scaling: Scaling | None = None

    @contextmanager
    def rows(self, given: Given, needs: Needs) -> Iterator[Opened]:
        """The rows, for as long as the fit lasts."""
        where = cluster_of(given)
        if given.cluster is not None and needs.not_on_cluster is not None:
            raise InputError(f"A fit on a cluster is not possible: {needs.not_on_cluster} Fit without client=.")
        if where is None or needs.not_on_cluster is not None:
            yield self._completing(self._here(given, needs))
            return
        if given.blocks is not None:
            raise InputError("blocks= cannot be given together with client=: the workers make the blocks.")
        with connected(where) as client:
            yield self._completing(self._on_cluster(client, self._like_fit(given.source())))

    def _completing(self, found: Opened) -> Opened:
        return found.completing if self.scaling is None else found

    @cached_property
    def _options(self) -> OpeningOptions:
        options: OpeningOptions = self.estimator.fit_options.opening
        return options.within_memory()

    @property
    def _asked(self) -> Asked:
        return checks.asked_of(self.estimator)

    @property
    def _transform(self) -> TargetTransform | None:
        """What the targets go through."""
        return named(self.estimator.target_transform) if self.scaling is None else self.scaling.transform

    def _here(self, given: Given, needs: Needs) -> Opened:
        source = None
        if needs.can_stream and given.blocks is None:
            if self.scaling is None:
                given = self._with_known_columns(given)
            source = self._large_source(given, arrays=needs.streams_arrays)
        if source is not None:
            return self._scanned(source)
        _require_room(given)
        return self._in_memory(given)

    def _with_known_columns(self, given: Given) -> Given:
        """The same rows; where columns are no numbers, how many numbers they become decides whether these are many."""
        source, options = checks.source_of(given), self._options
        if source is None or not needs_survey(source, self._asked):
            return given
        until = self.budget.deadline(options.survey_fraction * options.scan_fraction)
        return Given(surveyed(source, self._asked, is_late=lambda: is_over(until)))

    def _like_fit(self, source: Source) -> Source:
        """More rows with the encoding of the fit."""
        if self.scaling is None:
            return source
        return with_encoding(source, self.estimator.fitted_.columns.encoding)

    def _large_source(self, given: Given, *, arrays: bool) -> Source | None:
        """The data as a source if they are too many for memory, or if only a pass over them can tell."""
        source, most_entries = checks.source_of(given), self._options.most_entries
        if source is None:
            if not arrays or math.prod(getattr(given.X, "shape", ())) <= most_entries:
                return None
            features, y = checks.split_target(given)
            source = replace(given, X=features, y=y, target=None).source()
        source = self._like_fit(source)
        is_small = source.n_rows is not None and source.n_rows * source.n_features <= most_entries
        return None if is_small else source

    def _in_memory(self, given: Given) -> Opened:
        if self.scaling is None:
            batch, columns = checks.training_batch(self.estimator, given)
            return self._of_batch(batch, columns, given.blocks)
        return self._of_batch(checks.later_batch(self.estimator, given), self.estimator.fitted_.columns, given.blocks)

    def _of_batch(self, batch: Batch, columns: Columns, blocks: ArrayLike | None = None) -> Opened:
        scaling = self.scaling or self._scaling_of(batch, columns.layout)
        block, labels = drop_weightless(to_block(batch, scaling, self.like), blocks)
        digest = RowDigest.empty().with_rows(batch)
        return Opened(MemoryRows(block), scaling, columns, len(batch), labels, digest=digest)

    def _scanned(self, source: Source) -> Opened:
        """A source that is read anew in every pass, or its sample if that is all of it, or all there was time to
        read."""
        budget, options = self.budget, self._options
        shares = options.scan_fraction, options.survey_fraction * options.scan_fraction
        until, survey_until = (budget.deadline(share) for share in shares)
        started, on_scale = budget.clock(), _on_scale(self._transform)

        def scanned_rows(source: Source) -> Scan:
            sample_rows = max(1, options.most_entries // source.n_features)
            return scan(source, np.random.default_rng((self.seed, 1)), sample_rows, lambda: is_over(until), on_scale)

        source, found = read_encoded(source, self._asked, scanned_rows, lambda: is_over(survey_until))
        columns, n_read = Columns.of_source(source), _n_read(found)
        if found.is_complete or found.was_cut:
            n_all = max(n_read, source.n_rows or 0) if found.was_cut else n_read
            return replace(self._of_batch(found.sample, columns), n_given=n_read, n_all=n_all, was_cut=found.was_cut)
        budget.read_seconds = (budget.clock() - started) / max(n_read, 1)
        scaling = self._scaling(found, source.layout)
        return Opened(SourceRows.of(source, found, scaling, self.like), scaling, columns, n_read)

    def _on_cluster(self, client: Any, source: Source) -> Opened:
        """Two passes over the source; afterwards only the rows in the scaling of the model are held on the workers.

        Columns that are no numbers are looked at in one pass more, or two.
        """
        source, shares = read_encoded_on(client, source, self._asked, self.seed, _on_scale(self._transform))
        n_read, scaling = _n_read(shares.scan), self._scaling(shares.scan, source.layout)
        return Opened(shares.load(scaling, self.like.dtype), scaling, Columns.of_source(source), n_read)

    def _scaling(self, found: Scan, layout: FeatureLayout) -> Scaling:
        """That of the model, or of all rows that were read."""
        if self.scaling is not None:
            return self.scaling
        if found.is_complete or not self.estimator.normalize:
            return self._scaling_of(found.sample, layout)
        moments = found.x_mean, found.x_scale, found.y_mean, found.y_scale
        return Scaling(*moments, self._transform).only(layout.standardized)

    def _scaling_of(self, batch: Batch, layout: FeatureLayout) -> Scaling:
        return Scaling.of(batch, normalize=self.estimator.normalize, layout=layout, transform=self._transform)


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


def first_of_stream(estimator: Any, given: Given, approx: Approximation) -> Given:
    """Where blocks are not places every batch of a stream is one, and so is the first."""
    if not approx.by_block or approx.is_local or given.blocks is not None or given.cluster is not None:
        return given
    batch, _ = checks.training_batch(estimator, given)
    return replace(given, blocks=np.zeros(len(batch), dtype=np.int64))


def _require_room(given: Given) -> None:
    """For rows that are to be held, where it is known how many there are."""
    shape: tuple[Any, ...] = getattr(given.X, "shape", ())
    if isinstance(given.X, str | Path) and (source := checks.source_of(given)) is not None:
        shape = source.n_rows, source.n_features
    if len(shape) == 2 and all(isinstance(n, int) for n in shape):
        n_bytes = 8.0 * HELD_COPIES * math.prod(shape)
        memory.require(n_bytes, f"Holding {shape[0]:,} rows of {shape[1]} columns in memory")


def _n_read(found: Scan) -> int:
    """Rows that came with a target."""
    n_read = found.n_rows + found.n_weightless
    say_without_target(found.n_without_target, n_read + found.n_without_target)
    return n_read


def _on_scale(transform: TargetTransform | None) -> OnScale:
    return as_they_are if transform is None else transform.targets
