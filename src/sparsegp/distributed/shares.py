"""Sources on workers: opened on the driver, cut into shares, then surveyed and loaded where the shares are."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sparsegp.distributed import pieces, worker_tasks
from sparsegp.distributed.connecting import worker_threads
from sparsegp.distributed.rounds import READING_RETRIES, gathered, submit
from sparsegp.distributed.rows import DistributedRows
from sparsegp.distributed.surveying import joined_survey, sample_sizes
from sparsegp.sources import Scan, Source, Units
from sparsegp.sources.iterables import DaskArraySource, DaskFrameSource
from sparsegp.sources.scan import SAMPLE_ROWS


@dataclass(frozen=True)
class SurveyedShares:
    """Futures of the sources of each share, and what one pass over them told."""

    client: Any
    sources: tuple[Any, ...]
    homes: tuple[str, ...]
    counts: tuple[int, ...]
    survey: Scan

    def load(self, units: Units, dtype: torch.dtype = torch.float64) -> DistributedRows:
        """The rows in the model's units, kept in the memory of the workers."""
        arguments = zip(self.sources, self.counts, self.homes, strict=True)
        shares = tuple(
            submit(self.client, worker_tasks.load_share, source, units, n, dtype, home=home, retries=READING_RETRIES)
            for source, n, home in arguments
        )
        least = self.survey.least_noise_var
        return DistributedRows(
            self.client,
            shares,
            self.homes,
            self.counts,
            self.survey.total_weight,
            len(self.survey.x_mean),
            dtype,
            None if least is None else least / units.y_scale**2,
        )


def surveyed(client: Any, source: Source, seed: int, sample_rows: int = SAMPLE_ROWS) -> SurveyedShares:
    """One share for each worker; one pass, in which every worker reads its own."""
    homes = tuple(worker_threads(client))
    sources = placed(client, source, homes)
    surveys = [
        submit(client, worker_tasks.survey_share, mine, (seed, k), sample_rows, home=home, retries=READING_RETRIES)
        for k, (mine, home) in enumerate(zip(sources, homes, strict=True))
    ]
    facts = gathered(client, [submit(client, worker_tasks.without_sample, mine) for mine in surveys])
    for fact in facts:
        if fact.error is not None:
            raise fact.error
    counts = tuple(0 if fact.found is None else fact.found.n_rows for fact in facts)
    sizes = sample_sizes(counts, sample_rows, np.random.default_rng((seed, len(homes))))
    asked = [
        submit(client, worker_tasks.some_rows, mine, size, (seed, k, 1))
        for k, (mine, size) in enumerate(zip(surveys, sizes, strict=True))
    ]
    samples = [part for part in gathered(client, asked) if part is not None]
    found = [fact.found for fact in facts if fact.found is not None]
    n_weightless = sum(fact.n_weightless for fact in facts)
    whole = joined_survey(found, n_weightless, samples)
    return SurveyedShares(client, sources, homes, counts, whole)


def placed(client: Any, source: Source, homes: tuple[str, ...]) -> tuple[Any, ...]:
    """The source of each share as a future at its home."""
    if isinstance(source, DaskFrameSource | DaskArraySource):
        return _collection_shares(client, source, homes)
    found = pieces.pieces_of(source, len(homes))
    shares = pieces.shared_out([piece for piece, _ in found], [size for _, size in found], len(homes))
    with warnings.catch_warnings():
        # Arrays of the caller have no other home than the task itself, from which a lost share is made again.
        warnings.filterwarnings("ignore", message="Sending large graph")
        return tuple(
            submit(client, pieces.Joined, tuple(mine), source.feature_names, source.n_features, home=home)
            for mine, home in zip(shares, homes, strict=True)
        )


def _collection_shares(
    client: Any, source: DaskFrameSource | DaskArraySource, homes: tuple[str, ...]
) -> tuple[Any, ...]:
    partitions = pieces.partitions_of(source)
    shares = pieces.shared_out(range(len(partitions)), [1.0] * len(partitions), len(homes))
    placed = []
    for mine, home in zip(shares, homes, strict=True):
        computed = client.compute([partitions[k] for k in mine], workers=[home], allow_other_workers=True)
        first = mine[0] if mine else 0
        if isinstance(source, DaskFrameSource):
            placed.append(submit(client, pieces.frame_source, source.columns, first, computed, home=home))
        else:
            placed.append(submit(client, pieces.array_source, source.n_features, first, computed, home=home))
    return tuple(placed)
